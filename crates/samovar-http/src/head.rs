//! Request heads and clients.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::http::{Method, Version};
use crate::proto::head::HeadIndex;

/// The client of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A TCP client, by address.
    Tcp(SocketAddr),
    /// A client on a unix socket, without an address; the kernel may know its process.
    Unix(Option<UnixPeer>),
}

/// Credentials of a client on a unix socket when it connected (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnixPeer {
    /// Effective user ID.
    pub uid: u32,
    /// Effective group ID; supplementary groups are not included.
    pub gid: u32,
}

/// A name in a client certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PeerName {
    /// The common name of the subject, if it has exactly one.
    CommonName(Box<str>),
    /// A DNS name of the subject's alternative names, in lower case.
    Dns(Box<str>),
    /// A URI of the subject's alternative names.
    Uri(Box<str>),
}

impl PeerName {
    /// The name without its kind, for logs. A DNS name and a common name with the same text are not
    /// equal.
    pub fn as_str(&self) -> &str {
        match self {
            Self::CommonName(name) | Self::Dns(name) | Self::Uri(name) => name,
        }
    }
}

impl fmt::Display for Peer {
    /// The address without the port, as access logs write it; `-` for a unix socket.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.ip().to_canonical().fmt(f),
            Self::Unix(_) => f.write_str("-"),
        }
    }
}

/// Client certificates of a TLS connection.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// As DER, the end-entity certificate first.
    pub(crate) certificates: Vec<Box<[u8]>>,
    /// Names in the first certificate.
    pub(crate) names: Vec<PeerName>,
}

/// A request head, borrowed from the received bytes.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub(crate) raw: &'a [u8],
    pub(crate) index: &'a HeadIndex,
    peer: Peer,
    pub(crate) session: Option<&'a Arc<Session>>,
}

impl<'a> Head<'a> {
    pub(crate) fn new(raw: &'a [u8], index: &'a HeadIndex, peer: Peer) -> Self {
        Self {
            raw,
            index,
            peer,
            session: None,
        }
    }

    /// The same head, with the TLS session of its connection.
    pub(crate) fn with_session(self, session: Option<&'a Arc<Session>>) -> Self {
        Self { session, ..self }
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.index.method
    }

    /// The method's token, as sent.
    pub fn method_name(&self) -> &'a [u8] {
        self.index.method_name.of(self.raw)
    }

    /// The request target, as sent: printable ASCII.
    pub fn target(&self) -> &'a [u8] {
        self.index.target.of(self.raw)
    }

    /// The path of the target, percent-encoded as sent. Empty if an absolute-form target has none.
    /// [`Request::param`](crate::Request::param) and
    /// [`param_path`](crate::Request::param_path) return decoded parts.
    pub fn path(&self) -> &'a [u8] {
        self.index.path.of(self.raw)
    }

    /// The query: everything after the first `?`, as sent.
    pub fn query(&self) -> Option<&'a [u8]> {
        self.index.query.map(|query| query.of(self.raw))
    }

    /// The protocol version.
    pub fn version(&self) -> Version {
        self.index.version
    }

    /// The value of the first header field with this name; the case of letters is ignored.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers()
            .find(|(field, _)| field.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// The value of the first header field with this name, as text; `None` if it is not UTF-8.
    ///
    /// ```
    /// # use samovar_http::Request;
    /// fn browser(request: &mut Request) -> String {
    ///     request.head().header_text("user-agent").unwrap_or("unknown").to_owned()
    /// }
    /// ```
    pub fn header_text(&self, name: &str) -> Option<&'a str> {
        std::str::from_utf8(self.header(name)?).ok()
    }

    /// All header fields in order: name as sent, value without surrounding white space.
    pub fn headers(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
        let raw = self.raw;
        self.index
            .headers
            .iter()
            .map(move |field| (field.name.of(raw), field.value.of(raw)))
    }

    /// The client that sent it.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether the connection uses TLS.
    pub fn is_secure(&self) -> bool {
        self.session.is_some()
    }

    /// The verified client certificates, as DER, the end-entity certificate first. Empty if none
    /// was requested, or none was sent and none required.
    pub fn peer_certificates(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let session = self.session.into_iter();
        session.flat_map(|session| session.certificates.iter().map(|der| &**der))
    }

    /// The names in the first of [`peer_certificates`](Self::peer_certificates): the common name,
    /// then DNS names and URIs.
    pub fn peer_names(&self) -> &'a [PeerName] {
        self.session.map_or(&[], |session| &session.names)
    }

    /// Whether the client accepts trailers. Others may drop them, so they are sent none (RFC 9110,
    /// 10.1.4).
    pub(crate) fn takes_trailers(self) -> bool {
        self.version() != Version::Http10
            && self.headers().any(|(name, value)| {
                name.eq_ignore_ascii_case(b"TE")
                    && value
                        .split(|byte| *byte == b',')
                        .any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
            })
    }
}

impl fmt::Debug for Head<'_> {
    /// The request line only: header fields may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            self.method_name().escape_ascii(),
            self.target().escape_ascii()
        )
    }
}
