//! Owner of a control daemon outside this manager, as far as `/proc` shows it, and the way to end the daemon for good: if a daemon with a
//! supervisor is only quit, the supervisor starts another a second later.

use serde::{Deserialize, Serialize};

use super::TenantName;
use super::client::ClientId;
use super::count::first_few;
use super::environment::quoted;

/// The first digits of a container's ID, by which engines name it.
const SHOWN: usize = 12;
/// Services that run processes of other programs: a daemon in one of these was not started by its unit.
const HOSTS_OF_OTHERS: [&str; 16] = [
    "atd.service",
    "containerd.service",
    "cri-o.service",
    "crio.service",
    "cron.service",
    "crond.service",
    "docker.service",
    "k3s-agent.service",
    "k3s.service",
    "kubelet.service",
    "nomad.service",
    "slurmd.service",
    "snap.docker.dockerd.service",
    "ssh.service",
    "sshd.service",
    "sssd.service",
];
/// Prefix of the services of RKE2.
const RKE2: &str = "rke2-";

/// Owner of a control daemon outside this manager.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ForeignOwner {
    /// The tenant that its environment names, as in a process that `mps-manager run` started. It is a hint: whoever starts a daemon can
    /// write any name there.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantName>,
    /// True if a token of an mps-manager is in its environment.
    pub is_managed: bool,
    /// True if this manager started it and its database has lost the record.
    #[serde(default)]
    pub is_lost: bool,
    /// The systemd service that it is in, as `nvidia-mps.service`.
    pub unit: Option<String>,
    /// True if that is a service of a user's own systemd.
    #[serde(default)]
    pub is_user_unit: bool,
    /// The container that it is in, by the ID that its engine gave.
    pub container: Option<String>,
    /// The process in whose foreground it runs, as `sh (4711)`; `null` if that is the host's first process or it runs in the background.
    pub parent: Option<String>,
}

impl ForeignOwner {
    /// Sets the service from the path of its cgroup. Names that no unit can have are ignored: users can make cgroups of any name below
    /// their own.
    #[must_use]
    pub fn in_cgroup(mut self, path: Option<&str>) -> Self {
        let is_name =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":_.\\@-".contains(&byte));
        let Some(path) = path else { return self };
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let unit = parts.iter().rposition(|part| part.ends_with(".service"));
        let Some(unit) = unit.filter(|index| is_name(parts[*index])) else { return self };
        self.is_user_unit = parts[..unit].iter().any(|part| part.starts_with("user@"));
        self.unit = Some(parts[unit].to_owned());
        self
    }

    /// Returns the service, if its unit exists to run this daemon.
    fn own_unit(&self) -> Option<&str> {
        let is_other = |unit: &str| {
            HOSTS_OF_OTHERS.contains(&unit) || unit.starts_with(RKE2) || unit.starts_with("user@")
        };
        let unit = self.unit.as_deref().filter(|unit| !is_other(unit));
        // A container may have a systemd of its own, with services that the host does not know.
        unit.filter(|_| self.container.is_none())
    }

    /// Returns true if a supervisor starts another one when it ends.
    pub fn is_supervised(&self) -> bool {
        self.is_managed || self.own_unit().is_some() || self.parent.is_some()
    }

    /// Describes the owner, as `its environment names tenant batch, in slurmd.service`; empty if nothing is known.
    pub fn words(&self) -> String {
        let tenant = self.tenant.as_ref().map(|tenant| format!("its environment names tenant {tenant}"));
        let managed = match (self.is_lost, self.is_managed) {
            (true, _) => Some("started by this manager, whose database has lost it".to_owned()),
            (false, true) => Some("started by another mps-manager".to_owned()),
            (false, false) => None,
        };
        let whose = if self.is_user_unit { " of its user" } else { "" };
        let unit = self.unit.as_ref().map(|unit| format!("in {unit}{whose}"));
        let container = self.container.as_ref().map(|id| format!("in container {}", short(id)));
        let parent = self.parent.as_ref().map(|parent| format!("kept by {parent}"));
        let words: Vec<String> = [tenant, managed, unit, container, parent].into_iter().flatten().collect();
        words.join(", ")
    }

    /// Returns the remedy after which the daemon is gone and stays gone.
    pub fn remedy(&self, pipe_directory: Option<&str>) -> String {
        if self.is_lost {
            return "take it back with `mps-manager daemon adopt --all-ours`".to_owned();
        }
        if self.is_managed {
            return "give each manager GPUs of its own".to_owned();
        }
        let end = self.ending(pipe_directory);
        match &self.tenant {
            Some(tenant) => format!(
                "take the lines that start nvidia-cuda-mps-control out of the script of tenant {tenant}, if that started it, since the tenant has a \
                 daemon already; otherwise {end}"
            ),
            None => end,
        }
    }

    /// Returns the step that ends the daemon for good.
    fn ending(&self, pipe_directory: Option<&str>) -> String {
        if let Some(unit) = self.own_unit() {
            let (user, whose) = if self.is_user_unit { (" --user", ", as its user,") } else { ("", "") };
            return format!(
                "`systemctl{user} disable --now {unit}`{whose} ends it for good, and with it the work of its clients"
            );
        }
        if let Some(id) = &self.container {
            return format!("end container {}, or start it without a control daemon of its own", short(id));
        }
        if let Some(parent) = &self.parent {
            return format!("end {parent} first, which may start another, and then quit it");
        }
        match pipe_directory {
            // Whoever started it chose the path, so it is quoted.
            Some(path) => format!(
                "quit it (`echo quit | CUDA_MPS_PIPE_DIRECTORY={} nvidia-cuda-mps-control`)",
                quoted(path)
            ),
            None => "end it, as root or the user that it runs as".to_owned(),
        }
    }
}

fn short(container: &str) -> String {
    container.chars().take(SHOWN).collect()
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
    /// Its owner.
    pub owner: ForeignOwner,
}

impl SharingDaemon {
    /// Describes it, as `control daemon 4711 of uid 1000 in /tmp/mps (kept by sh (4700))`.
    pub fn describe(&self) -> String {
        let uid = self.uid.map(|uid| format!(" of uid {uid}")).unwrap_or_default();
        let path = self.pipe_directory.as_ref().map(|path| format!(" in {path}")).unwrap_or_default();
        let owner = self.owner.words();
        let owner = if owner.is_empty() { owner } else { format!(" ({owner})") };
        format!("control daemon {}{uid}{path}{owner}", self.process.pid)
    }
}

/// Describes several daemons, the first few by name, each with its remedy.
pub fn describe_sharing(daemons: &[SharingDaemon]) -> String {
    listed(daemons, |daemon| {
        format!("{}: {}", daemon.describe(), daemon.owner.remedy(daemon.pipe_directory.as_deref()))
    })
}

/// Describes several daemons without remedies, so that the text stays true once they are gone, and without tenants, which an incident names
/// separately.
pub fn name_sharing(daemons: &[SharingDaemon]) -> String {
    listed(daemons, |daemon| {
        let owner = ForeignOwner { tenant: None, ..daemon.owner.clone() };
        SharingDaemon { owner, ..daemon.clone() }.describe()
    })
}

fn listed(daemons: &[SharingDaemon], words: impl Fn(&SharingDaemon) -> String) -> String {
    first_few(daemons.iter().map(words), 0, "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_fits_who_keeps_it() {
        let within = |path: &str| ForeignOwner::default().in_cgroup(Some(path));
        let batch = TenantName::parse("batch").ok();
        let contained =
            ForeignOwner { container: Some("0123456789abcdef".into()), ..ForeignOwner::default() };
        for (owner, is_supervised, remedy) in [
            (
                within("/system.slice/nvidia-mps.service"),
                true,
                "`systemctl disable --now nvidia-mps.service`",
            ),
            (
                within("/system.slice/slurmd.service"),
                false,
                "quit it (`echo quit | CUDA_MPS_PIPE_DIRECTORY=/p ",
            ),
            (within("/system.slice/ssh.service"), false, "quit it"),
            (within("/system.slice/rke2-agent.service/x"), false, "quit it"),
            (within("/user.slice/user-7.slice/user@7.service"), false, "quit it"),
            (
                within("/user.slice/user-7.slice/user@7.service/app.slice/mps.service"),
                true,
                "`systemctl --user disable --now mps.service`, as its user,",
            ),
            (within("/user.slice/user-7.slice/user@7.service/a$(id).service"), false, "quit it"),
            (
                ForeignOwner { tenant: batch, ..within("/system.slice/slurmd.service") },
                false,
                "out of the script of tenant batch, if that started it",
            ),
            (ForeignOwner { is_managed: true, ..ForeignOwner::default() }, true, "GPUs of its own"),
            (
                ForeignOwner { is_managed: true, is_lost: true, ..ForeignOwner::default() },
                true,
                "daemon adopt --all-ours",
            ),
            (
                contained.in_cgroup(Some("/system.slice/docker-0.scope/system.slice/mps.service")),
                false,
                "end container 0123456789ab,",
            ),
            (
                ForeignOwner { parent: Some("sh (7)".into()), ..ForeignOwner::default() },
                true,
                "end sh (7) first",
            ),
            (ForeignOwner::default(), false, "quit it"),
        ] {
            let text = owner.remedy(Some("/p"));
            assert!(text.contains(remedy), "{text}");
            assert_eq!(owner.is_supervised(), is_supervised, "{owner:?}");
        }
        assert!(ForeignOwner::default().remedy(None).starts_with("end it"));
        let chosen = ForeignOwner::default().remedy(Some("/tmp/a;reboot"));
        assert!(chosen.contains("CUDA_MPS_PIPE_DIRECTORY='/tmp/a;reboot' "), "{chosen}");
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
        let text = describe_sharing(&five);
        assert!(
            text.starts_with("control daemon 7 of uid 0 in /p: quit it") && text.ends_with("and 1 more"),
            "{text}"
        );
    }
}
