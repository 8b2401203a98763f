//! Sockets that the service manager has bound (`LISTEN_FDS`).
//!
//! They take the place of everything on the command line, as in other servers: the NixOS module
//! always gives `--listen`, so a unit with sockets would otherwise bind twice.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;

/// A listening socket from outside. It may be blocking or not: set what you need.
#[derive(Debug)]
pub enum InheritedListener {
    /// TCP, IPv4 or IPv6.
    Tcp(TcpListener),
    /// A Unix stream socket.
    Unix(UnixListener),
}

/// A descriptor that is no stream socket.
#[derive(Debug, thiserror::Error)]
#[error("descriptor {index} of LISTEN_FDS is no stream socket")]
pub struct InheritedError {
    /// Counted from 0; the descriptor's number is three more.
    pub index: usize,
    /// What is wrong with it.
    #[source]
    pub source: io::Error,
}

/// Takes the sockets that `LISTEN_FDS` announces to this process; empty if there are none.
///
/// Call it once: a second call would give the same descriptors to a second owner, which `listenfd`
/// cannot see. `LISTEN_PID` is compared with our own, so a child does not take what was meant for
/// its parent.
///
/// # Errors
///
/// [`InheritedError`] for the first descriptor that is something else: serving on the rest only
/// would leave clients of that socket waiting for ever.
pub fn inherited() -> Result<Vec<InheritedListener>, InheritedError> {
    let mut sockets = ListenFd::from_env();
    (0..sockets.len())
        .map(|index| take(&mut sockets, index))
        .collect()
}

fn take(sockets: &mut ListenFd, index: usize) -> Result<InheritedListener, InheritedError> {
    // On a mismatch of kind the descriptor stays where it is, so the order of questions is free.
    if let Ok(Some(tcp)) = sockets.take_tcp_listener(index) {
        return Ok(InheritedListener::Tcp(tcp));
    }
    match sockets.take_unix_listener(index) {
        Ok(Some(unix)) => Ok(InheritedListener::Unix(unix)),
        Ok(None) => Err(InheritedError {
            index,
            source: io::ErrorKind::NotFound.into(),
        }),
        Err(source) => Err(InheritedError { index, source }),
    }
}
