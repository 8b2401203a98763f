//! Request heads.

use std::fmt;
use std::sync::Arc;

use crate::client::{Peer, PeerName};
use crate::http::{Method, Version};
use crate::proto::head::HeadIndex;
use crate::tls::Session;

/// A request head, borrowed from the received bytes.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub(crate) raw: &'a [u8],
    pub(crate) index: &'a HeadIndex,
    peer: Peer,
    pub(crate) session: Option<&'a Arc<Session>>,
    was_sent_back: bool,
}

impl<'a> Head<'a> {
    /// Combines the bytes of a head, their index, and the client. `session` is the TLS session of
    /// the connection, if it has one.
    pub(crate) fn new(
        raw: &'a [u8],
        index: &'a HeadIndex,
        peer: Peer,
        session: Option<&'a Arc<Session>>,
    ) -> Self {
        Self {
            raw,
            index,
            peer,
            session,
            was_sent_back: false,
        }
    }

    /// Returns the head of a request that a handler has sent back.
    pub(crate) fn sent_back(mut self) -> Self {
        self.was_sent_back = true;
        self
    }

    /// Returns the method; [`Method::Other`] for one without a variant of its own, whose name
    /// [`method_name`](Self::method_name) returns.
    pub fn method(&self) -> Method {
        self.index.method
    }

    /// Returns the method's token, as sent, such as `PURGE`. Methods are case-sensitive (RFC 9110,
    /// 9.1).
    pub fn method_name(&self) -> &'a [u8] {
        self.index.method_name.of(self.raw)
    }

    /// Returns the request target, as sent: printable ASCII. It is usually a path with a query, but
    /// a client may send a whole URL (`http://example.org/a?b`), as to a proxy, or `*` with
    /// OPTIONS. Use [`path`](Self::path) and [`query`](Self::query), which are the same for all
    /// forms: a program that appends the target to the address of another server makes a wrong URL.
    pub fn target(&self) -> &'a [u8] {
        self.index.target.of(self.raw)
    }

    /// Returns the path of the target, percent-encoded as sent. Empty if an absolute-form target
    /// has no path. For decoded parts use [`Request::param`](crate::Request::param) and
    /// [`param_path`](crate::Request::param_path).
    pub fn path(&self) -> &'a [u8] {
        self.index.path.of(self.raw)
    }

    /// Returns the query, as sent: everything after the first `?`; `None` if the target has no `?`.
    pub fn query(&self) -> Option<&'a [u8]> {
        self.index.query.map(|query| query.of(self.raw))
    }

    /// Returns the protocol version.
    pub fn version(&self) -> Version {
        self.index.version
    }

    /// Returns the value of the first header field with this name, compared case-insensitively;
    /// `None` if there is no such field.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers()
            .find(|(field, _)| field.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// Returns the value of the first header field with this name, as text; `None` if there is no
    /// such field, or if its value is not UTF-8.
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

    /// Iterates over all header fields in order: name as sent, value without surrounding white
    /// space.
    pub fn headers(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
        let raw = self.raw;
        self.index
            .headers
            .iter()
            .map(move |field| (field.name.of(raw), field.value.of(raw)))
    }

    /// Returns whether a handler has sent the request back to its I/O thread, with
    /// [`Response::send_back`](crate::Response::send_back).
    pub fn was_sent_back(&self) -> bool {
        self.was_sent_back
    }

    /// Returns the client that sent the request.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns whether the connection uses TLS.
    pub fn is_secure(&self) -> bool {
        self.session.is_some()
    }

    /// Returns the verified client certificates as DER, the end-entity certificate first. Empty if
    /// the server requests none, or if they are optional and the client has sent none.
    pub fn peer_certificates(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let session = self.session.into_iter();
        session.flat_map(|session| session.certificates.iter().map(|der| &**der))
    }

    /// Returns the names in the first of [`peer_certificates`](Self::peer_certificates): the common
    /// name, then DNS names, then URIs.
    pub fn peer_names(&self) -> &'a [PeerName] {
        self.session.map_or(&[], |session| &session.names)
    }
}

impl fmt::Debug for Head<'_> {
    /// Writes only the request line: header fields may contain credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            self.method_name().escape_ascii(),
            self.target().escape_ascii()
        )
    }
}
