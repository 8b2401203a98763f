//! What a handler sees of a request.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::http::{Method, Version};
use crate::proto::head::HeadIndex;

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A TCP peer, by address.
    Tcp(SocketAddr),
    /// A peer on a unix socket; those have no useful address, but the kernel may know the process.
    Unix(Option<UnixPeer>),
}

/// The process at the other end of a unix socket, as it was when it connected (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnixPeer {
    /// Its effective user.
    pub uid: u32,
    /// Its effective group; of the others that it may be in, nothing is said.
    pub gid: u32,
}

/// A name in a certificate that a client has shown.
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
    /// The name without its kind. For logs: a DNS name and a common name that read the same are
    /// not the same.
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

/// What a secure connection knows of its peer.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// As DER, the peer's own first.
    pub(crate) certificates: Vec<Box<[u8]>>,
    /// Those of the first one.
    pub(crate) names: Vec<PeerName>,
}

/// The head of a request, borrowed from the bytes it came in.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    raw: &'a [u8],
    index: &'a HeadIndex,
    peer: Peer,
    session: Option<&'a Arc<Session>>,
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

    /// The same, come over a secure connection if there is a session.
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

    /// The path of the target, still percent-encoded. Empty if an absolute-form target has none.
    /// Decoded are [`Request::param`](crate::Request::param) and
    /// [`param_path`](crate::Request::param_path).
    pub fn path(&self) -> &'a [u8] {
        self.index.path.of(self.raw)
    }

    /// What follows the first `?`, still encoded.
    pub fn query(&self) -> Option<&'a [u8]> {
        self.index.query.map(|query| query.of(self.raw))
    }

    /// The protocol version.
    pub fn version(&self) -> Version {
        self.index.version
    }

    /// The value of the first header field with this name, in any case of letters.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers()
            .find(|(field, _)| field.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// The same as text; `None` also if it is not UTF-8.
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

    /// Who sent it.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether it came over TLS.
    pub fn is_secure(&self) -> bool {
        self.session.is_some()
    }

    /// The certificates that the client has shown and that were verified, as DER, its own first.
    /// Empty if it was not asked for any, or had none and needed none.
    pub fn peer_certificates(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let session = self.session.into_iter();
        session.flat_map(|session| session.certificates.iter().map(|der| &**der))
    }

    /// The names in the first of [`peer_certificates`](Self::peer_certificates): the common name,
    /// then DNS names and URIs.
    pub fn peer_names(&self) -> &'a [PeerName] {
        self.session.map_or(&[], |session| &session.names)
    }

    /// RFC 9110, 10.1.4: a peer that says nothing may drop trailers, so it is not sent any.
    pub(crate) fn takes_trailers(self) -> bool {
        self.version() != Version::Http10
            && self.headers().any(|(name, value)| {
                name.eq_ignore_ascii_case(b"TE")
                    && value
                        .split(|byte| *byte == b',')
                        .any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
            })
    }

    /// Copies of the bytes and of their index, for an owned request.
    pub(crate) fn to_parts(self) -> (Box<[u8]>, HeadIndex) {
        (self.raw.into(), self.index.clone())
    }

    pub(crate) fn session(self) -> Option<&'a Arc<Session>> {
        self.session
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
