//! Recording of a server: its devices, the names of its devices in limits, and what a CUDA client sees of each.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{DEADLINE, PROBE, RecordedCommand, RecordingDaemon};
use crate::app::{StartupError, refused};
use crate::domain::MemoryLimit;
use crate::domain::daemon::ServerStatus;
use crate::gpu::probe::{ProbeRequest, Prober};
use crate::mps::{Command, DeviceSelector, PtySession, parse};

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
