//! Connections between the simulated programs: one message a packet, with at most one file descriptor.
//!
//! Sequenced packets keep message boundaries, so nothing has to be framed, and a message that is too long is a
//! property of one packet. A message is never empty: an empty one would read like the end of the connection.

use std::fs::{self, Permissions};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, UCred, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with, socketpair, sockopt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message: enough for the rows of a full server.
const LONGEST: usize = 160 * 1024;

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Conn(OwnedFd);

/// A received packet.
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fd: Option<OwnedFd>,
    /// Credentials that the sender stated, as far as the kernel allows.
    pub(crate) credentials: Option<UCred>,
}

impl Conn {
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let fd = socket(SocketFlags::empty())?;
        connect(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Self(fd))
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Returns true if the other side is gone.
    pub(crate) fn closed(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::empty())];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Sends bytes with this process's credentials.
    pub(crate) fn send_credentials(&self, bytes: &[u8]) -> io::Result<()> {
        let me = UCred {
            pid: rustix::process::getpid(),
            uid: rustix::process::geteuid(),
            gid: rustix::process::getegid(),
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmCredentials(me));
        Ok(sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)?)
    }

    /// Makes a connection; returns both ends.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(one), Self(other)))
    }

    /// Returns the credentials of the other end, as the kernel reports them.
    pub(crate) fn peer(&self) -> io::Result<UCred> {
        Ok(sockopt::socket_peercred(&self.0)?)
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.send_with(bytes, None)
    }

    pub(crate) fn send_with(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        loop {
            match sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                other => return other.map(drop).map_err(Into::into),
            }
        }
    }

    /// Receives the next message; `None` if the other side is gone.
    pub(crate) fn recv(&self) -> io::Result<Option<Packet>> {
        let mut bytes = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                // Reset: the other side is gone and left something of ours unread. The kernel reports that once, before its last messages.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
                other => break other?,
            }
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let (mut fd, mut credentials) = (None, None);
        for message in control.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(mut fds) => fd = fds.next(),
                RecvAncillaryMessage::ScmCredentials(sent) => credentials = Some(sent),
                _ => {}
            }
        }
        bytes.truncate(received.bytes);
        Ok(Some(Packet { bytes, fd, credentials }))
    }

    pub(crate) fn send_message<T: Serialize>(&self, message: &T) -> io::Result<()> {
        self.send_message_with(message, None)
    }

    pub(crate) fn send_message_with<T: Serialize>(
        &self,
        message: &T,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
        self.send_with(&bytes, fd)
    }

    /// Receives the next message as a value; `None` at the end of the connection or for a message that is no such value.
    pub(crate) fn receive_message<T: DeserializeOwned>(&self) -> Option<(T, Option<OwnedFd>)> {
        let packet = self.recv().ok()??;
        Some((serde_json::from_slice(&packet.bytes).ok()?, packet.fd))
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A socket in the pipe directory.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Listener {
    /// Listens at `path`, in place of whatever a dead daemon left there.
    pub(crate) fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let _ = fs::remove_file(path);
        // The process may have ended meanwhile: nothing waits for the next one.
        let fd = socket(SocketFlags::NONBLOCK)?;
        bind(&fd, &address)?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        listen(&fd, 128)?;
        Ok(Self(fd))
    }

    /// Accepts the next connection; fails at once if nobody waits.
    pub(crate) fn accept(&self) -> io::Result<Conn> {
        let fd = accept_with(&self.0, SocketFlags::CLOEXEC)?;
        sockopt::set_socket_passcred(&fd, true)?;
        Ok(Conn(fd))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | flags, None)
}
