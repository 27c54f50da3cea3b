//! Which process listens on a TCP port.

use std::collections::BTreeSet;

use procfs::net::TcpState;
use procfs::process::{FDTarget, Process};

/// Returns true if a process listens on a TCP port; `None` if this user may not see that.
pub fn listens(pid: u32, port: u16) -> Option<bool> {
    let process = Process::new(i32::try_from(pid).ok()?).ok()?;
    let (v4, v6) = (process.tcp().ok()?, process.tcp6().unwrap_or_default());
    let listening = v4
        .into_iter()
        .chain(v6)
        .filter(|socket| socket.state == TcpState::Listen && socket.local_address.port() == port);
    let sockets: BTreeSet<u64> = listening.map(|socket| socket.inode).collect();
    let mut files = process.fd().ok()?.flatten();
    Some(files.any(|file| matches!(file.target, FDTarget::Socket(inode) if sockets.contains(&inode))))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn listening_process_is_recognised() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep");
        for address in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(address).expect("a port");
            let port = listener.local_addr().expect("an address").port();
            assert_eq!(listens(std::process::id(), port), Some(true), "{address}");
            assert_eq!(listens(child.id(), port), Some(false), "{address}");
            drop(listener);
            assert_eq!(listens(std::process::id(), port), Some(false), "{address}");
        }
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert_eq!(listens(child.id(), 1), None);
    }
}
