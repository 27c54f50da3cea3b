//! Whose a control daemon outside this manager is, as far as `/proc` shows, and what ends it for good: who only quits one that has a
//! supervisor gets another a second later.

use serde::{Deserialize, Serialize};

use super::TenantName;
use super::client::ClientId;

/// The most daemons that a text names.
const NAMED: usize = 4;
/// The first digits of a container's ID, by which engines name it.
const SHOWN: usize = 12;
/// Services whose processes are other programs' work: what is in one of these was not set up by its unit.
const HOSTS_OF_OTHERS: [&str; 9] = [
    "containerd.service",
    "cri-o.service",
    "crio.service",
    "cron.service",
    "crond.service",
    "docker.service",
    "kubelet.service",
    "slurmd.service",
    "sshd.service",
];

/// Who keeps a control daemon that is not this manager's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ForeignOwner {
    /// The tenant that its environment names: a process of that tenant started it.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantName>,
    /// Whether another mps-manager started it.
    pub is_managed: bool,
    /// The systemd service that it is in, as `nvidia-mps.service`.
    pub unit: Option<String>,
    /// The container that it is in, by the ID that its engine gave.
    pub container: Option<String>,
    /// The process that started it and still runs, as `sh (4711)`; `null` where that is the host's first process.
    pub parent: Option<String>,
}

impl ForeignOwner {
    /// The service, where its unit is there to run this daemon.
    fn own_unit(&self) -> Option<&str> {
        let is_other = |unit: &str| HOSTS_OF_OTHERS.contains(&unit) || unit.starts_with("user@");
        self.unit.as_deref().filter(|unit| !is_other(unit))
    }

    /// Whether something starts another one when it ends.
    pub fn is_supervised(&self) -> bool {
        self.is_managed || self.own_unit().is_some() || self.parent.is_some()
    }

    /// In words, as `started by a process of tenant batch, in slurmd.service`; empty where nothing is known.
    pub fn words(&self) -> String {
        let tenant = self.tenant.as_ref().map(|tenant| format!("started by a process of tenant {tenant}"));
        let managed = self.is_managed.then(|| "started by another mps-manager".to_owned());
        let unit = self.unit.as_ref().map(|unit| format!("in {unit}"));
        let short = |id: &String| id.chars().take(SHOWN).collect::<String>();
        let container = self.container.as_ref().map(|id| format!("in container {}", short(id)));
        let parent = self.parent.as_ref().map(|parent| format!("kept by {parent}"));
        let words: Vec<String> = [tenant, managed, unit, container, parent].into_iter().flatten().collect();
        words.join(", ")
    }

    /// What to do so that it is gone, and stays gone.
    pub fn remedy(&self, pipe_directory: Option<&str>) -> String {
        if let Some(tenant) = &self.tenant {
            return format!(
                "take the lines that start nvidia-cuda-mps-control out of the script of tenant {tenant}, whose processes have a daemon already"
            );
        }
        if self.is_managed {
            return "give each manager GPUs of its own".to_owned();
        }
        if let Some(unit) = self.own_unit() {
            return format!(
                "`systemctl disable --now {unit}` ends it for good, and with it the work of its clients"
            );
        }
        if let Some(id) = &self.container {
            let short: String = id.chars().take(SHOWN).collect();
            return format!("end container {short}, or start it without a control daemon of its own");
        }
        if let Some(parent) = &self.parent {
            return format!("end {parent} first, which may start another, and then quit it");
        }
        match pipe_directory {
            Some(path) => {
                format!(
                    "quit it (`echo quit | CUDA_MPS_PIPE_DIRECTORY={path} nvidia-cuda-mps-control`), or adopt it"
                )
            }
            None => "end it, as root or the user that it runs as".to_owned(),
        }
    }
}

/// A control daemon outside this manager that serves a GPU of one of its daemons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharingDaemon {
    /// Its process.
    pub process: ClientId,
    /// Its user.
    pub uid: Option<u32>,
    /// Its pipe directory, as it sees it.
    pub pipe_directory: Option<String>,
    /// Who keeps it.
    pub owner: ForeignOwner,
}

impl SharingDaemon {
    /// Which one it is: `control daemon 4711 of uid 1000 in /tmp/mps (kept by sh (4700))`.
    pub fn describe(&self) -> String {
        let uid = self.uid.map(|uid| format!(" of uid {uid}")).unwrap_or_default();
        let path = self.pipe_directory.as_ref().map(|path| format!(" in {path}")).unwrap_or_default();
        let owner = self.owner.words();
        let owner = if owner.is_empty() { owner } else { format!(" ({owner})") };
        format!("control daemon {}{uid}{path}{owner}", self.process.pid)
    }
}

/// Several of them, the first few by name, each with what to do.
pub fn describe_sharing(daemons: &[SharingDaemon]) -> String {
    let with_remedy = |daemon: &SharingDaemon| {
        format!("{}: {}", daemon.describe(), daemon.owner.remedy(daemon.pipe_directory.as_deref()))
    };
    let mut named: Vec<String> = daemons.iter().take(NAMED).map(with_remedy).collect();
    let more = daemons.len().saturating_sub(NAMED);
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_fits_who_keeps_it() {
        let unit = |unit: &str| ForeignOwner { unit: Some(unit.to_owned()), ..ForeignOwner::default() };
        let batch = TenantName::parse("batch").ok();
        for (owner, is_supervised, remedy) in [
            (unit("nvidia-mps.service"), true, "`systemctl disable --now nvidia-mps.service`"),
            (unit("slurmd.service"), false, "quit it (`echo quit | CUDA_MPS_PIPE_DIRECTORY=/p "),
            (unit("user@1000.service"), false, "quit it"),
            (
                ForeignOwner { tenant: batch, ..unit("slurmd.service") },
                false,
                "out of the script of tenant batch",
            ),
            (ForeignOwner { is_managed: true, ..ForeignOwner::default() }, true, "GPUs of its own"),
            (
                ForeignOwner { container: Some("0123456789abcdef".into()), ..unit("docker.service") },
                false,
                "end container 0123456789ab,",
            ),
            (
                ForeignOwner { parent: Some("sh (7)".into()), ..ForeignOwner::default() },
                true,
                "end sh (7) first",
            ),
            (ForeignOwner::default(), false, "or adopt it"),
        ] {
            let said = owner.remedy(Some("/p"));
            assert!(said.contains(remedy), "{said}");
            assert_eq!(owner.is_supervised(), is_supervised, "{owner:?}");
        }
        assert!(ForeignOwner::default().remedy(None).starts_with("end it"));
    }

    #[test]
    fn daemon_is_named_with_who_keeps_it() {
        let daemon = |owner| SharingDaemon {
            process: ClientId { pid: 7, start_time: 1 },
            uid: Some(0),
            pipe_directory: Some("/p".into()),
            owner,
        };
        let kept = ForeignOwner { parent: Some("sh (3)".into()), ..ForeignOwner::default() };
        assert_eq!(daemon(kept).describe(), "control daemon 7 of uid 0 in /p (kept by sh (3))");
        let five = vec![daemon(ForeignOwner::default()); 5];
        let said = describe_sharing(&five);
        assert!(
            said.starts_with("control daemon 7 of uid 0 in /p: quit it") && said.ends_with("and 1 more"),
            "{said}"
        );
    }
}
