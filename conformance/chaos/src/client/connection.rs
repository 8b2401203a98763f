//! The client's side of an HTTP/1.1 connection.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use testkit::http1::{self, Framing, Stream};

use crate::ask::{Ask, End, Outcome};
use crate::oracle::{check, check_pipelined};
use crate::timeline::Moment;
use crate::world::{World, lock};

/// Read and write timeout: longer than a response may take.
const PATIENCE: Duration = Duration::from_secs(25);

/// A connection on which a client sends consecutive requests.
pub(crate) struct Connection {
    connection: http1::Connection<Box<dyn Stream>>,
    via: &'static str,
}

/// Speed at which a client reads a response body, and where it aborts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// If set, the client pauses for this duration before it reads at most this many bytes.
    pub(crate) pace: Option<(usize, Duration)>,
    /// Whether to read the second half of the body at full speed.
    pub(crate) is_quick_at_last: bool,
    /// If set, the client aborts after it has read this many bytes of the body.
    pub(crate) leave_at: Option<usize>,
}

/// Name in reports of the connections with a small receive window.
pub(crate) const NARROW: &str = "slow HTTP/1.1";

/// Connects with a small receive window, so that the server has to wait for the client.
pub(crate) fn narrow(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_recv_buffer_size(&socket, 32 * 1024)?;
    rustix::net::connect(&socket, &address)?;
    Ok(TcpStream::from(socket))
}

impl Connection {
    pub(crate) fn over(stream: TcpStream, via: &'static str) -> io::Result<Self> {
        configure(&stream)?;
        let connection = http1::Connection::new(stream).boxed();
        Ok(Self { connection, via })
    }

    /// Starts TLS on `stream` and checks the server's certificate. For `began` see [`handshake`].
    pub(crate) fn tls(
        world: &World,
        stream: TcpStream,
        began: Moment,
        config: &Arc<ClientConfig>,
    ) -> io::Result<Self> {
        configure(&stream)?;
        let stream = handshake(world, stream, began, config)?;
        let connection = http1::Connection::new(stream).boxed();
        Ok(Self {
            connection,
            via: "TLS",
        })
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.try_send(bytes)
    }

    /// Sends a request, reads the response, and has the oracle judge it. Returns the outcome, and
    /// whether the connection can be reused.
    pub(crate) fn exchange(&mut self, world: &World, ask: &Ask, manner: Manner) -> (Outcome, bool) {
        let sent = world.now();
        let (outcome, goes_on) = match self.send(&ask.bytes()) {
            Ok(()) => self.answer(world, ask, sent, manner),
            Err(error) => (silent(world, "sending", sent, &error), false),
        };
        check(world, ask, &outcome);
        (outcome, goes_on)
    }

    /// Sends all requests at once and has the oracle judge the responses. Aborts before the
    /// response with the index `leave_at`. Returns whether the connection can be reused.
    pub(crate) fn pipeline(
        &mut self,
        world: &World,
        asks: &[Ask],
        leave_at: Option<usize>,
    ) -> bool {
        let sent = world.now();
        let bytes: Vec<u8> = asks.iter().flat_map(Ask::bytes).collect();
        if let Err(error) = self.send(&bytes) {
            let outcome = silent(world, "sending", sent, &error);
            check_pipelined(world, &asks[0], &asks[1..], &outcome);
            return false;
        }
        for (index, ask) in asks.iter().enumerate() {
            if leave_at == Some(index) {
                return false;
            }
            let (outcome, goes_on) = self.answer(world, ask, sent, Manner::default());
            check_pipelined(world, ask, &asks[index + 1..], &outcome);
            if !goes_on {
                return false;
            }
        }
        if !self.connection.unused().is_empty() {
            world.finding("more responses than requests");
        }
        true
    }

    /// Reads a response. Returns its outcome, and whether the connection can be reused.
    pub(crate) fn answer(
        &mut self,
        world: &World,
        ask: &Ask,
        sent: Moment,
        manner: Manner,
    ) -> (Outcome, bool) {
        let mut outcome = pending(world, self.via, sent);
        outcome.is_slow = manner.pace.is_some();
        let goes_on = match self.head(ask, &mut outcome) {
            Ok(framing) => {
                outcome.head_at = world.now();
                let read = self.body(world, framing, &mut outcome, manner);
                outcome.end = match read {
                    Ok(true) => End::Whole,
                    Ok(false) => End::Left,
                    Err(error) => End::Cut(error.to_string()),
                };
                outcome.end == End::Whole && outcome.field("connection") != Some("close")
            }
            Err(error) => {
                outcome.end = End::Silent(error.to_string());
                false
            }
        };
        outcome.end_at = world.now();
        if outcome.head_at == 0 {
            outcome.head_at = outcome.end_at;
        }
        (outcome, goes_on)
    }

    fn head(&mut self, ask: &Ask, outcome: &mut Outcome) -> io::Result<Framing> {
        let head = self.connection.try_head(ask.is_head)?;
        let head = head.ok_or(ErrorKind::UnexpectedEof)?;
        if !head.bytes.starts_with(b"HTTP/1.1 ") {
            return Err(io::Error::other(format!("{head:?}")));
        }
        outcome.status = head.status;
        let fields = head.headers();
        outcome.fields = fields
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Ok(head.framing)
    }

    /// Reads the body; returns `false` if the client aborted.
    fn body(
        &mut self,
        world: &World,
        framing: Framing,
        outcome: &mut Outcome,
        manner: Manner,
    ) -> io::Result<bool> {
        // The middle of a chunked body is unknown, because its length is not announced.
        let half = match framing {
            Framing::Length(len) => usize::try_from(len / 2).ok(),
            Framing::Chunked => None,
            Framing::Close => return Err(io::Error::other("neither a length nor chunks")),
        };
        let mut pace = manner.pace;
        loop {
            let mut max = usize::MAX;
            if let Some(half) = half {
                if outcome.body.len() < half {
                    max = half - outcome.body.len();
                } else if outcome.half_at.is_none() {
                    outcome.half_at = Some(world.now());
                    pace = pace.filter(|_| !manner.is_quick_at_last);
                }
            }
            if let Some((piece, time)) = pace {
                max = max.min(piece);
                std::thread::sleep(time);
            }
            let Some(piece) = self.connection.try_piece(max)? else {
                return Ok(true);
            };
            outcome.body.extend_from_slice(piece);
            let len = outcome.body.len();
            if manner.leave_at.is_some_and(|leave_at| len >= leave_at) {
                return Ok(false);
            }
        }
    }
}

fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)
}

/// Returns the outcome of a request whose response has not started.
pub(crate) fn pending(world: &World, via: &'static str, sent: Moment) -> Outcome {
    Outcome {
        head_at: 0,
        ..silent(world, via, sent, &ErrorKind::UnexpectedEof.into())
    }
}

/// Returns the outcome of a request that could not be sent.
pub(crate) fn silent(world: &World, via: &'static str, sent: Moment, error: &io::Error) -> Outcome {
    let now = world.now();
    Outcome {
        via,
        sent,
        head_at: now,
        half_at: None,
        end_at: now,
        status: 0,
        fields: Vec::new(),
        body: Vec::new(),
        end: End::Silent(error.to_string()),
        is_slow: false,
    }
}

/// Completes a TLS handshake and checks the certificate. `began` is a time before connecting,
/// because the server may choose its certificate when it accepts.
pub(crate) fn handshake(
    world: &World,
    mut stream: TcpStream,
    began: Moment,
    config: &Arc<ClientConfig>,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let mut session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    while session.is_handshaking() {
        session.complete_io(&mut stream)?;
    }
    let shown = session.peer_certificates().and_then(<[_]>::first);
    let certificates = lock(&world.certificates);
    let possible = certificates.possible(began, world.now());
    if !possible
        .iter()
        .any(|one| shown.is_some_and(|shown| one.as_slice() == &**shown))
    {
        world.finding("a certificate was shown that was not in use");
    }
    drop(certificates);
    Ok(StreamOwned::new(session, stream))
}

/// Returns a TLS client configuration without session resumption, so that every handshake shows a
/// certificate.
pub(crate) fn tls_config(authority: &[u8], alpn: &[u8]) -> Result<Arc<ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.to_vec().into())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("TLS")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}
