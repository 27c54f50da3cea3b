//! Recording of a server: its devices, the names of its devices in limits, and what a CUDA client sees of each.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{DEADLINE, PROBE, RecordedCommand, RecordingDaemon};
use crate::app::{StartupError, refused};
use crate::domain::MemoryLimit;
use crate::domain::daemon::ServerStatus;
use crate::gpu::probe::{ProbeRequest, Prober};
use crate::gpu::report::Report;
use crate::mps::{Command, DeviceSelector, PtySession, parse};

/// Largest difference of the free memory that clients see in two runs.
const SAME_MEMORY: u64 = 64 << 20;

impl RecordedCommand {
    /// Compares two recordings of a server, which have the same commands if the servers have as many devices; returns the commands with
    /// another reply in `here`, each with it.
    pub(super) fn differences(recorded: &[Self], here: &[Self]) -> Vec<(Self, String)> {
        let none = Self { line: "(no command)".to_owned(), reply: "(none)".to_owned() };
        let pairs = (0..recorded.len().max(here.len()))
            .map(|at| (recorded.get(at).unwrap_or(&none), here.get(at).unwrap_or(&none)));
        pairs
            .filter(|(recorded, here)| !recorded.agrees(here))
            .map(|(recorded, here)| (recorded.clone(), here.reply.clone()))
            .collect()
    }

    /// Returns true if two replies say the same, apart from processes, users, times, versions, and the slots of the GPUs.
    fn agrees(&self, here: &Self) -> bool {
        // The last client may still be leaving.
        if self.line == "ps" && here.line == "ps" {
            return true;
        }
        let reports = [self, here].map(|one| serde_json::from_str::<Report>(&one.reply).ok());
        if let [Some(wanted), Some(mut seen)] = reports {
            (seen.pid, seen.init_ms) = (wanted.pid, wanted.init_ms);
            seen.driver_version.clone_from(&wanted.driver_version);
            seen.cuda_version.clone_from(&wanted.cuda_version);
            for (seen, wanted) in seen.devices.iter_mut().zip(&wanted.devices) {
                seen.context_ms = wanted.context_ms;
                if seen.memory_free.abs_diff(wanted.memory_free) <= SAME_MEMORY {
                    seen.memory_free = wanted.memory_free;
                }
            }
            return self.line == here.line && seen == wanted;
        }
        let without_numbers = |line: &str| -> String {
            let is_own = |at: usize, words: &[&str]| match words[0] {
                "Server" | "set_device_pinned_mem_limit" | "get_device_pinned_mem_limit" => at == 1,
                "start_server" => at == 2,
                _ => words[at].contains(':') && words[at].contains('.'),
            };
            let words: Vec<&str> = line.split_whitespace().collect();
            let replaced = (0..words.len()).map(|at| if is_own(at, &words) { "#" } else { words[at] });
            replaced.collect::<Vec<_>>().join(" ")
        };
        let lines = |one: &Self| -> Vec<String> {
            [one.line.as_str()].into_iter().chain(one.reply.lines()).map(without_numbers).collect()
        };
        lines(self) == lines(here)
    }
}

impl RecordingDaemon {
    /// Starts a server and shows its devices, the grammar of their memory limits, and what clients see of each.
    pub(super) async fn with_server(
        &self,
        mlopart: bool,
        prober: &Prober,
    ) -> Result<Vec<RecordedCommand>, StartupError> {
        let mut session = self.session()?;
        let mut asked = Vec::new();
        let list = Command::DeviceQuery { server: None };
        self.ask(&mut session, &list, &mut asked).await?;
        let uid = rustix::process::geteuid().as_raw();
        self.ask(&mut session, &Command::StartServer { uid, mlopart }, &mut asked).await?;
        let server = self.serving(&mut session).await?;
        let listed = self.ask(&mut session, &list, &mut asked).await?;
        let listed = parse::device_query(&listed).map_err(refused)?;
        let of_server = listed.sections.into_iter().filter(|section| section.server == Some(server));
        let rows: Vec<_> = of_server.flat_map(|section| section.devices).collect();
        let numbered =
            rows.iter().filter(|row| row.ordinal.is_some()).map(|row| row.uuid.as_str().to_owned());
        let devices: Vec<String> = if mlopart { numbered.collect() } else { vec![self.gpu.to_string()] };
        let seen = |keys: Vec<(&str, String)>| {
            keys.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
        };
        for device in &devices {
            let visible = ("CUDA_VISIBLE_DEVICES", device.clone());
            let client = |more: Vec<(&'static str, String)>| seen([vec![visible.clone()], more].concat());
            self.see(prober, client(Vec::new()), &mut asked).await;
            self.see(prober, client(vec![("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50".into())]), &mut asked)
                .await;
            for key in ["0", device.as_str()] {
                let limit = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("{key}=2048M"));
                self.see(prober, client(vec![limit]), &mut asked).await;
            }
        }
        self.see(prober, seen(Vec::new()), &mut asked).await;
        let limit = MemoryLimit::parse("2048M").ok();
        for ordinal in 0..u32::try_from(devices.len()).unwrap_or(0) {
            let device = DeviceSelector::Ordinal(ordinal);
            let set = Command::SetMemoryLimit { server, device: device.clone(), limit };
            self.ask(&mut session, &set, &mut asked).await?;
            self.ask(&mut session, &Command::GetMemoryLimit { server, device }, &mut asked).await?;
            self.see(prober, seen(Vec::new()), &mut asked).await;
        }
        self.ask(&mut session, &Command::Ps { server: None }, &mut asked).await?;
        session.close().await;
        Ok(asked)
    }

    /// Waits for the server to take clients.
    async fn serving(&self, session: &mut PtySession) -> Result<u32, StartupError> {
        let until = Instant::now() + DEADLINE;
        loop {
            let listed = session.send(&Command::GetServerList).await.map_err(refused)?;
            if let Some(server) = parse::server_list(&listed).map_err(refused)?.first().copied() {
                let status = session.send(&Command::GetServerStatus { server }).await.map_err(refused)?;
                if parse::server_status(&status).map_err(refused)? == Some(ServerStatus::Active) {
                    return Ok(server);
                }
            }
            if Instant::now() > until {
                return Err(StartupError(format!("no server took clients within {} s", DEADLINE.as_secs())));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Runs a CUDA client with these variables.
    async fn see(&self, prober: &Prober, seen: BTreeMap<String, String>, asked: &mut Vec<RecordedCommand>) {
        let words: Vec<String> = seen.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let line = [vec![PROBE.to_owned()], words].concat().join(" ");
        let pipe = ("CUDA_MPS_PIPE_DIRECTORY".to_owned(), self.spec.pipe_directory.display().to_string());
        let request = ProbeRequest {
            variables: seen.into_iter().chain([pipe]).collect(),
            uid: rustix::process::geteuid().as_raw(),
            allocate_up_to: None,
            timeout: DEADLINE,
        };
        let report = prober.see(&request).await;
        let reply = serde_json::to_string(&report).unwrap_or_else(|error| error.to_string());
        asked.push(RecordedCommand { line: self.nobodys(&line), reply: self.nobodys(&reply) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_agree_apart_from_processes_and_times() {
        let command = |line: &str, reply: &str| RecordedCommand { line: line.into(), reply: reply.into() };
        let probe = |pid: u32, sms: u32, free: u64| {
            let report = format!(
                r#"{{"schema":1,"pid":{pid},"driver_version":"{pid}","cuda_version":"13.1","mps":true,"init_ms":{pid},"devices":[
                {{"ordinal":0,"uuid":"{}","name":"B300","mps":true,"sms":{sms},"memory_free":{free},"memory_total":9,"context_ms":{pid},
                "priorities":{{"least":0,"greatest":-5}},"splitter":[],"allocation":null}}],"error":null}}"#,
                super::super::NOBODYS
            );
            serde_json::from_str::<Report>(&report).expect("a report");
            command(PROBE, &report)
        };
        let listed = |pid: u32, slot: u32, sms: u32| {
            command("device_query", &format!("Server {pid}\n0   0000:00.0{slot}.00  B300 {sms}\n"))
        };
        let recorded =
            [command("start_server -uid 0", ""), listed(7, 6, 70), probe(8, 70, 1 << 30), command("ps", "")];
        let alike = [
            command("start_server -uid 1000", ""),
            listed(9, 7, 70),
            probe(10, 70, (1 << 30) + 4096),
            command("ps", "PID 10"),
        ];
        assert_eq!(RecordedCommand::differences(&recorded, &alike), []);
        let other = [command("start_server -uid 0 -mlopart", ""), listed(7, 6, 74), probe(8, 74, 1 << 30)];
        assert_eq!(RecordedCommand::differences(&recorded, &other).len(), 4, "the last is missing");
        assert_eq!(
            RecordedCommand::differences(&recorded[..2], &[alike[0].clone(), probe(8, 70, 1)]).len(),
            1
        );
        assert_eq!(RecordedCommand::differences(&[probe(8, 70, 1 << 30)], &[probe(8, 70, 2 << 30)]).len(), 1);
    }
}
