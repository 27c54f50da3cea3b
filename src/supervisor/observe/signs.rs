//! Signs of the tenant to which a process belongs that MPS has not listed.

use crate::domain::attribution::Signs;
use crate::domain::client::{ClientId, MountedDirectories};
use crate::domain::environment::TENANT_HINT;
use crate::host::process;

/// Reads the signs of a process while it lives. A process that CUDA refuses mostly reports it and ends within milliseconds.
pub(in crate::supervisor) fn living_signs(pid: u32) -> Option<Signs> {
    let identity = process::identify(pid)?;
    let signs = Signs {
        id: identity.into(),
        ancestors: process::ancestors(pid).filter_map(process::identify).map(ClientId::from).collect(),
        uid: process::uid(pid),
        // Reading a container's mounts takes longer than a process that CUDA refuses mostly lives.
        mounted: MountedDirectories::default(),
        hint: process::variable(pid, TENANT_HINT).and_then(|hint| hint.into_string().ok()),
    };
    process::is_alive(identity).then_some(signs)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn living_process_says_whose_it_is() {
        let mut child = Command::new("cat")
            .env(TENANT_HINT, "web")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cat is installed");
        // Until a program runs, `/proc` may show it without an environment.
        child.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("it reads");
        child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("it runs");
        let signs = living_signs(child.id()).expect("it lives");
        assert_eq!((signs.id.pid, signs.hint.as_deref()), (child.id(), Some("web")));
        assert_eq!(signs.uid, Some(rustix::process::geteuid().as_raw()));
        assert_eq!(signs.ancestors.first().map(|parent| parent.pid), Some(std::process::id()));
        child.kill().expect("it lives");
        child.wait().expect("it ends");
        assert_eq!(living_signs(child.id()), None);
    }
}
