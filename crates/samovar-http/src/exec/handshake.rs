//! TLS handshakes. They run on workers, because each takes up to a millisecond of computation.

use std::io;
use std::sync::Arc;

use super::exchange::is_disconnect;
use super::http1::give_back;
use crate::conn::{Conn, Verdict};
use crate::core::Shared;
use crate::net::transport::Transport;
use crate::observer::Incident;
use crate::service::Service;
use crate::tls::{Handshake, Session, peer_names};

/// Continues a TLS handshake until it ends or must wait for the socket.
pub(super) fn shake<S: Service>(shared: &Shared<S>, mut conn: Box<Conn>) {
    let Transport::Tls(stream) = &mut conn.transport else {
        return give_back(shared, conn, Verdict::Handshake(Handshake::Done));
    };
    let handshake = stream.handshake().and_then(|handshake| match handshake {
        Handshake::Done => stream.verify_resumed().map(|()| handshake),
        _ => Ok(handshake),
    });
    let verdict = match handshake {
        Ok(handshake) => {
            if handshake == Handshake::Done {
                let certificates = stream.peer_certificates();
                let names = certificates.first().map(|der| peer_names(der));
                let names = names.unwrap_or_default();
                conn.session = Some(Arc::new(Session {
                    verified: stream.verified(&certificates),
                    certificates,
                    names,
                }));
            }
            Verdict::Handshake(handshake)
        }
        Err(error) => {
            let (peer, error) = (conn.peer, &error);
            if !is_disconnect(error) && error.kind() != io::ErrorKind::UnexpectedEof {
                let incident = Incident::HandshakeFailed { peer, error };
                shared.service.observer().incident(&incident);
            }
            Verdict::Handshake(Handshake::Over)
        }
    };
    give_back(shared, conn, verdict);
}
