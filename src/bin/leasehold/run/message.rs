//! What leasehold and its keeper say to each other over a socket without a name: a line each.

use super::clock::{Moment, Until};
use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use rustix::process::Signal;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tokio::net::unix::OwnedWriteHalf;

/// From leasehold to the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// A renewal was confirmed.
    Until(Until),
    /// The lease is lost. The tree is asked to stop now, and killed at this moment.
    Lost(Moment),
    /// A signal for the group of the child.
    Signal(Signal),
    /// Kill the tree now.
    Kill,
    /// Leasehold needs the keeper no longer.
    Done,
}

/// From the keeper to leasehold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The child runs, as the leader of its group.
    Started(i32),
    /// The child was stopped by a signal, and has given up the terminal.
    Stopped(i32),
    /// The keeper has asked the tree to stop, because no renewal came in time.
    Expired,
    /// A process cannot be stopped: it runs as another user.
    Denied(i32),
    /// The child has ended, as a shell would say it. Others of the tree still run.
    Ended(u8),
    /// The tree has ended; the code is that of the child.
    Gone(u8),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Until(until) => writeln!(f, "until {} {}", until.stop.0, until.kill.0),
            Self::Lost(kill) => writeln!(f, "lost {}", kill.0),
            Self::Signal(signal) => writeln!(f, "signal {}", signal.as_raw()),
            Self::Kill => writeln!(f, "kill"),
            Self::Done => writeln!(f, "done"),
        }
    }
}

impl Order {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let word = words.next()?;
        let mut moment = || words.next()?.parse().ok().map(Moment);
        Some(match word {
            "until" => Self::Until(Until { stop: moment()?, kill: moment()? }),
            "lost" => Self::Lost(moment()?),
            "signal" => Self::Signal(Signal::from_named_raw(words.next()?.parse().ok()?)?),
            "kill" => Self::Kill,
            "done" => Self::Done,
            _ => return None,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(pid) => writeln!(f, "started {pid}"),
            Self::Stopped(signal) => writeln!(f, "stopped {signal}"),
            Self::Expired => writeln!(f, "expired"),
            Self::Denied(pid) => writeln!(f, "denied {pid}"),
            Self::Ended(code) => writeln!(f, "ended {code}"),
            Self::Gone(code) => writeln!(f, "gone {code}"),
        }
    }
}

impl Report {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (word, value) = line.split_once(' ').unwrap_or((line, ""));
        Some(match word {
            "started" => Self::Started(value.parse().ok()?),
            "stopped" => Self::Stopped(value.parse().ok()?),
            "expired" => Self::Expired,
            "denied" => Self::Denied(value.parse().ok()?),
            "ended" => Self::Ended(value.parse().ok()?),
            "gone" => Self::Gone(value.parse().ok()?),
            _ => return None,
        })
    }
}

/// Sends a line, if the socket has room, without a wait for the runtime to know it.
pub(super) fn send_line(socket: &OwnedWriteHalf, line: impl fmt::Display) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = send(socket.as_ref(), line.to_string().as_bytes(), flags);
}

/// Sends an open file, with one byte.
pub(super) fn send_file(socket: impl AsFd, file: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[IoSlice::new(b".")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives what [`send_file`] has sent.
pub(super) fn receive_file(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| io::Error::other("no file has come"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_read_as_it_was_written() {
        let until = Until { stop: Moment(5), kill: Moment(7) };
        for order in [
            Order::Until(until),
            Order::Lost(Moment(9)),
            Order::Signal(Signal::TERM),
            Order::Kill,
            Order::Done,
        ] {
            assert_eq!(Order::parse(order.to_string().trim_end()), Some(order));
        }
        for report in [
            Report::Started(5),
            Report::Stopped(20),
            Report::Expired,
            Report::Denied(3),
            Report::Ended(2),
            Report::Gone(3),
        ] {
            assert_eq!(Report::parse(report.to_string().trim_end()), Some(report));
        }
        assert_eq!((Order::parse("until 5"), Report::parse("?")), (None, None));
    }
}
