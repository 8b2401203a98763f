//! A connection of HTTP/1.1 as its client reads it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::ask::{Ask, End, Outcome};
use crate::timeline::Moment;
use crate::world::{World, lock};

/// How long a client waits for the next byte: longer than an answer may take.
const PATIENCE: Duration = Duration::from_secs(25);

trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

/// Connected, and used for one request after the other.
pub(crate) struct Connection {
    wire: Box<dyn Wire>,
    /// Received and not used yet.
    bytes: Vec<u8>,
    via: &'static str,
}

/// How a client reads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// Waits so long after each so many bytes.
    pub(crate) pace: Option<(usize, Duration)>,
    /// The second half of a body it reads as quickly as it comes.
    pub(crate) is_quick_at_last: bool,
    /// Goes away after so many bytes of a body.
    pub(crate) leave_at: Option<usize>,
}

/// How connections with a small window are called.
pub(crate) const NARROW: &str = "slow HTTP/1.1";

/// Connects with a small window, so that the server has to wait for this client.
pub(crate) fn narrow(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_recv_buffer_size(&socket, 32 * 1024)?;
    rustix::net::connect(&socket, &address)?;
    Ok(TcpStream::from(socket))
}

impl Connection {
    pub(crate) fn over(stream: TcpStream, via: &'static str) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            wire: Box::new(stream),
            bytes: Vec::new(),
            via,
        })
    }

    /// With TLS; checks which certificate is shown. `began`: see [`handshake`].
    pub(crate) fn tls(
        world: &World,
        stream: TcpStream,
        began: Moment,
        config: &Arc<ClientConfig>,
    ) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let wire = handshake(world, stream, began, config)?;
        Ok(Self {
            wire: Box::new(wire),
            bytes: Vec::new(),
            via: "TLS",
        })
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wire.write_all(bytes)?;
        self.wire.flush()
    }

    /// Reads an answer; whether the connection can go on stands in the other.
    pub(crate) fn answer(
        &mut self,
        world: &World,
        ask: &Ask,
        sent: Moment,
        manner: Manner,
    ) -> (Outcome, bool) {
        let mut outcome = self.nothing(world, sent);
        outcome.is_slow = manner.pace.is_some();
        let goes_on = match self.head(&mut outcome) {
            Ok(()) => {
                outcome.head_at = world.now();
                let read = self.body(world, ask, &mut outcome, manner);
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

    fn nothing(&self, world: &World, sent: Moment) -> Outcome {
        let mut outcome = silent(world, self.via, sent, &io::Error::other("?"));
        outcome.head_at = 0;
        outcome
    }

    fn head(&mut self, outcome: &mut Outcome) -> io::Result<()> {
        let len = loop {
            let end = self.bytes.windows(4).position(|part| part == b"\r\n\r\n");
            match end {
                Some(at) => break at + 4,
                None => self.more()?,
            }
        };
        let rest = self.bytes.split_off(len);
        let head = std::mem::replace(&mut self.bytes, rest);
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| {
            let rest = line.strip_prefix("HTTP/1.1 ")?;
            rest.split(' ').next()?.parse().ok()
        });
        outcome.status = status.ok_or_else(|| io::Error::other(format!("head {head:?}")))?;
        let fields = lines.filter_map(|line| line.split_once(": "));
        outcome.fields = fields
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Ok(())
    }

    /// `false`: the client left.
    fn body(
        &mut self,
        world: &World,
        ask: &Ask,
        outcome: &mut Outcome,
        manner: Manner,
    ) -> io::Result<bool> {
        if ask.is_head {
            return Ok(true);
        }
        if outcome.field("transfer-encoding") == Some("chunked") {
            return self.chunks(outcome, manner);
        }
        let len = outcome.field("content-length").map(str::parse);
        let Some(Ok(len)) = len else {
            return Err(io::Error::other("neither a length nor chunks"));
        };
        if !self.take(len / 2, &mut outcome.body, manner)? {
            return Ok(false);
        }
        outcome.half_at = Some(world.now());
        let rest = Manner {
            pace: manner.pace.filter(|_| !manner.is_quick_at_last),
            ..manner
        };
        self.take(len, &mut outcome.body, rest)
    }

    fn chunks(&mut self, outcome: &mut Outcome, manner: Manner) -> io::Result<bool> {
        loop {
            let end = loop {
                let end = self.bytes.windows(2).position(|part| part == b"\r\n");
                match end {
                    Some(at) => break at,
                    None => self.more()?,
                }
            };
            let line = String::from_utf8_lossy(&self.bytes[..end]).into_owned();
            self.bytes.drain(..end + 2);
            let len = usize::from_str_radix(&line, 16)
                .map_err(|_error| io::Error::other(format!("chunk size {line:?}")))?;
            let until = outcome.body.len() + len;
            if !self.take(until, &mut outcome.body, manner)? {
                return Ok(false);
            }
            let mut end = Vec::new();
            self.take(2, &mut end, Manner::default())?;
            if end != b"\r\n" {
                return Err(io::Error::other("a chunk does not end where it should"));
            }
            if len == 0 {
                return Ok(true);
            }
        }
    }

    /// Fills `body` up to `len` bytes.
    fn take(&mut self, len: usize, body: &mut Vec<u8>, manner: Manner) -> io::Result<bool> {
        while body.len() < len {
            if self.bytes.is_empty() {
                self.more()?;
            }
            let mut count = self.bytes.len().min(len - body.len());
            if let Some((piece, time)) = manner.pace {
                count = count.min(piece);
                std::thread::sleep(time);
            }
            body.extend(self.bytes.drain(..count));
            if manner
                .leave_at
                .is_some_and(|leave_at| body.len() >= leave_at)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn more(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.wire.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    self.bytes.extend_from_slice(&buffer[..len]);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether something came that nobody asked for.
    pub(crate) fn has_left_over(&self) -> bool {
        !self.bytes.is_empty()
    }
}

/// What comes of a request that could not even be sent.
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

/// The client's side of a handshake, to its end. `began`: before it connected, because a server may
/// choose its certificate when it accepts.
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

/// What a client of TLS trusts and speaks; every connection shakes hands in full, so that it sees
/// a certificate.
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
