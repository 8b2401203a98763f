//! In place of the module `tls`, without the feature of that name: no connection is secure. The
//! types have no values where the compiler can use that, so the rest of the engine needs no
//! attributes.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::client::PeerName;

#[derive(Debug, Clone)]
pub(crate) struct TlsConfig(Infallible);

impl TlsConfig {
    pub(crate) fn stream(&self, _: OwnedFd) -> Stream {
        match self.0 {}
    }
}

/// As in the module `tls`; there are no values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(dead_code, reason = "there are no TLS handshakes")]
pub(crate) enum Handshake {
    WantsRead,
    WantsWrite,
    Done,
    Over,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) certificates: Vec<Box<[u8]>>,
    pub(crate) names: Vec<PeerName>,
    pub(crate) verified: Verified,
}

#[derive(Debug)]
pub(crate) struct Verified(Infallible);

impl Session {
    pub(crate) fn has_lapsed(&self) -> bool {
        match self.verified.0 {}
    }
}

pub(crate) fn peer_names(_: &[u8]) -> Vec<PeerName> {
    Vec::new()
}

#[derive(Debug)]
pub(crate) struct Stream(Infallible);

impl Stream {
    pub(crate) fn handshake(&mut self) -> io::Result<Handshake> {
        match self.0 {}
    }

    pub(crate) fn verify_resumed(&mut self) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn verified(&self, _: &[Box<[u8]>]) -> Verified {
        Verified(self.0)
    }

    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        match self.0 {}
    }

    pub(crate) fn peer_certificates(&self) -> Vec<Box<[u8]>> {
        match self.0 {}
    }

    pub(crate) fn recv(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
        match self.0 {}
    }

    pub(crate) fn send(&mut self, _: &[u8], _: bool) -> io::Result<Option<usize>> {
        match self.0 {}
    }

    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match self.0 {}
    }

    pub(crate) fn has_pending(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn shutdown_write(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}
