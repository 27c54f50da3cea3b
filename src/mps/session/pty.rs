//! A pseudo terminal in raw mode, read without blocking.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::host::readable;

/// The reading end of a pseudo terminal.
#[derive(Debug)]
pub(super) struct Master(AsyncFd<OwnedFd>);

/// Opens a pair: ours to read, and the one for a child to write to.
///
/// Raw, so that bytes come as they were written and nothing is echoed.
pub(super) fn open() -> io::Result<(Master, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    // By ioctl and not by name: a name would need the right /dev/pts to be mounted.
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    let mut attributes = tcgetattr(&slave)?;
    attributes.make_raw();
    tcsetattr(&slave, OptionalActions::Now, &attributes)?;
    fcntl_setfl(&master, fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
    Ok((Master(readable(master)?), slave))
}

impl Master {
    /// Reads some bytes; 0 when every writer has closed its end.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0
            .async_io(Interest::READABLE, |fd| match rustix::io::read(fd, &mut *buffer) {
                Ok(count) => Ok(count),
                // How Linux says that nobody holds the other end any more, once everything was read.
                Err(Errno::IO) => Ok(0),
                Err(error) => Err(error.into()),
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_come_unchanged_and_then_the_end() {
        let (master, slave) = open().expect("a pty");
        let sent = b"a\nb\r\n\x03\x04\x1a\xff".as_slice();
        assert_eq!(rustix::io::write(&slave, sent).expect("written"), sent.len());
        drop(slave);
        let (mut all, mut buffer) = (Vec::new(), [0; 4]);
        loop {
            let count = master.read(&mut buffer).await.expect("read");
            if count == 0 {
                break;
            }
            all.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(all, sent);
    }
}
