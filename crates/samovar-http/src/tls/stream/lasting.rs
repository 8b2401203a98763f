//! The trust in a peer during the life of its connection.

use std::io;
use std::sync::Arc;

use rustls::HandshakeKind;

use super::{State, Stream};
use crate::tls::trust::{Trust, Verified};

impl Stream {
    /// Sets the authorities whose trust in the peer may end. `generation`: the generation of the
    /// configuration of this connection.
    pub(crate) fn trusting(mut self, trust: Arc<Trust>, generation: u64) -> Self {
        (self.trust, self.generation) = (trust, generation);
        self
    }

    /// Describes the verification of the peer's chain.
    pub(crate) fn verified(&self, chain: &[Box<[u8]>]) -> Verified {
        Verified::new(Arc::clone(&self.trust), self.generation, chain)
    }

    /// Verifies the certificate of a resumed session, which the handshake does not. Ends the
    /// connection with an alert if it is not trusted.
    ///
    /// # Errors
    ///
    /// If the certificate has expired, or its authority is not trusted any more.
    pub(crate) fn verify_resumed(&mut self) -> io::Result<()> {
        let State::Open(tls) = &self.state else {
            return Ok(());
        };
        let is_resumed = tls.handshake_kind() == Some(HandshakeKind::Resumed);
        let chain = self.peer_certificates();
        if !is_resumed || self.verified(&chain).verify(&chain) {
            return Ok(());
        }
        drop(self.shutdown_write());
        self.state = State::Over;
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the client certificate of the resumed session is not valid any more",
        ))
    }
}
