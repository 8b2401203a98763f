//! Access control: which clients may read, and how often.
//!
//! # Theory of operation
//!
//! A request is admitted if one configured method admits it: a user's password, a token, a client
//! certificate, a peer on a unix socket, or a network. If no method is configured, all clients may
//! read.
//!
//! [`Access::admit`] decides on an I/O thread: it never blocks and takes a few microseconds. Only a
//! password that is not remembered takes longer. Then the I/O thread gets [`Verdict::Unverified`],
//! and a worker of the [lane for long computations](samovar_http::Reply::dispatch_costly) calls
//! [`Access::authenticate`]. That lane has few worker slots, so clients that guess passwords cannot
//! use up the CPU. In the queue of that lane, the clients' networks take turns: a /48 of IPv6
//! addresses, an IPv4 address. Names that exist, and some others, come first, and a request whose
//! client has left is not handled. Verified passwords are remembered, so the client's next request
//! is answered at once (`users.rs`).
//!
//! Wrong passwords are counted by user name and address. After ten of them, one more is verified
//! every six seconds; in between, unverified passwords for that name from that address get 429.
//! Other names at the address are not affected, but an address may send only ten times as many for
//! all names together. Unknown names are treated like known ones, so that responses do not reveal
//! which users exist.
//!
//! # Reload
//!
//! The rules of an [`Access`] are immutable. A reload creates new ones ([`Access::renewed`]), which
//! replace the old ones together with the rest of the cache's configuration. A user whose line was
//! removed is refused from the next request on; a user whose line is unchanged stays verified.
//!
//! # Limitations
//!
//! The bytes of a request, including credentials, stay in the engine's buffers until they are
//! overwritten. Copies made here are zeroized.

mod address;
mod buckets;
mod certificate;
mod config;
pub(crate) mod credentials;
mod error;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod refusal;
mod secret;
mod secret_file;
mod tokens;
mod users;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_http::{Claimant, Head, Inline, Peer, Reply, Response};

pub use self::address::{is_network, without_host_bits};
pub use self::certificate::is_fingerprint;
pub use self::config::{AccessConfig, CertificateConfig, Forwarded, RateLimit, RefuseWith};
pub use self::error::{AccessError, FileKind, LineProblem};
pub use self::refusal::Refusal;
pub(crate) use self::refusal::TokenFault;
pub use self::tokens::new_token;
pub use self::users::hash_password;

use self::address::{Networks, Proxies};
use self::buckets::Buckets;
use self::certificate::Certificates;
use self::credentials::{Basic, Credentials};
use self::refusal::{Denied, too_many};
use self::secret::Secret;
use self::tokens::Tokens;
use self::users::{Recalled, Users};

/// Number of wrong passwords in a row that an address may send for one name: enough for a forgetful
/// person or for a few misconfigured machines behind one address.
const ATTEMPTS_BURST: u32 = 10;

/// Number of names for which an address may use up [`ATTEMPTS_BURST`] at once.
const ATTEMPTS_NAMES: u32 = 10;

/// Interval at which an address regains one attempt with a wrong password.
const ATTEMPT_TIME: Duration = Duration::from_secs(6);

/// Access control of a cache: which clients may read, and how often.
#[derive(Debug)]
pub struct Access {
    config: AccessConfig,
    /// Whether all requests are admitted without a check.
    is_open: bool,
    lets_everybody_in: bool,
    users: Option<Users>,
    tokens: Option<Tokens>,
    certificates: Certificates,
    networks: Networks,
    proxies: Proxies,
    /// The response to clients that are not admitted; `None` if the cache is hidden from them.
    denied: Option<Denied>,
    rate: Option<Arc<Buckets>>,
    lasting: Arc<Lasting>,
}

/// State of access control that is kept across reloads.
#[derive(Debug)]
struct Lasting {
    secret: Secret,
    /// Limits the wrong passwords that an address may send for one user name.
    attempts: Buckets,
    /// Limits the wrong passwords that an address may send for all user names together.
    attempts_of_all: Buckets,
    start: Instant,
}

/// The decision of access control about a request.
#[derive(Debug, Clone, Copy)]
pub enum Verdict {
    /// The client may read.
    Granted,
    /// The password must be verified by a worker, with [`Access::authenticate`].
    Unverified,
    /// The request is refused; see [`Access::refuse`].
    Refused(Refusal),
}

/// The client of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Client {
    /// The name of the user, of the token or in the certificate, or `uid:1000`; `None` if the
    /// client was not authenticated.
    pub name: Option<Arc<str>>,
    /// The address of the client, not of a trusted proxy; `None` if it is unknown.
    pub address: Option<IpAddr>,
    /// The name of a login that was not admitted, of bounded length. Clients can
    /// send any.
    pub refused: Option<Box<[u8]>>,
}

/// Maximum length of the name of a refused login that is kept for logs.
const REFUSED_LEN_MAX: usize = 64;

impl Access {
    /// Reads the configured files. Also returns warnings about them, one line each.
    ///
    /// # Errors
    ///
    /// If a file cannot be used, or an entry is invalid.
    pub fn new(config: AccessConfig) -> Result<(Self, Vec<String>), AccessError> {
        let start = Instant::now();
        let lasting = Lasting {
            secret: Secret::new().map_err(AccessError::Random)?,
            attempts: Buckets::new(ATTEMPT_TIME, ATTEMPTS_BURST, start),
            attempts_of_all: Buckets::new(
                ATTEMPT_TIME / ATTEMPTS_NAMES,
                ATTEMPTS_BURST * ATTEMPTS_NAMES,
                start,
            ),
            start,
        };
        Self::read(config, Arc::new(lasting), None)
    }

    /// Makes the access control for a new configuration. Reads its files, and inherits verified
    /// passwords and rate limits.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn renewed(&self, config: AccessConfig) -> Result<(Self, Vec<String>), AccessError> {
        Self::read(config, Arc::clone(&self.lasting), Some(self))
    }

    fn read(
        config: AccessConfig,
        lasting: Arc<Lasting>,
        before: Option<&Self>,
    ) -> Result<(Self, Vec<String>), AccessError> {
        let mut warnings = Vec::new();
        let users = secret_file::read(
            FileKind::Users,
            config.users_file.as_deref(),
            &mut warnings,
            Users::parse,
            Users::len,
        )?;
        if let (Some(users), Some(old)) = (&users, before.and_then(|before| before.users.as_ref()))
        {
            users.inherit(old);
        }
        let tokens = secret_file::read(
            FileKind::Tokens,
            config.tokens_file.as_deref(),
            &mut warnings,
            |text| Tokens::parse(&lasting.secret, text),
            Tokens::len,
        )?;
        let (unix, proxies): (Vec<_>, Vec<_>) = config
            .trusted_proxies
            .iter()
            .cloned()
            .partition(|proxy| proxy == "unix");
        let network = |entries| {
            Networks::parse(entries).map_err(|entry| AccessError::Network(entry.to_owned()))
        };
        let access = Self {
            is_open: config.is_open(),
            lets_everybody_in: config.lets_everybody_in(),
            users,
            tokens,
            certificates: Certificates::new(&config.certificates)?,
            networks: network(&config.networks)?,
            proxies: Proxies {
                networks: network(&proxies)?,
                unix: !unix.is_empty(),
                header: config.forwarded,
            },
            denied: Denied::new(&config)?,
            rate: Self::rate(&config, lasting.start, before)?,
            config,
            lasting,
        };
        Ok((access, warnings))
    }

    /// Creates the buckets of the rate limit, or inherits the old ones if the limit is unchanged: a
    /// reload must not refill them. Returns `None` if no limit is configured.
    fn rate(
        config: &AccessConfig,
        start: Instant,
        before: Option<&Self>,
    ) -> Result<Option<Arc<Buckets>>, AccessError> {
        let Some(limit) = config.rate_limit else {
            return Ok(None);
        };
        if limit.per_second == 0 || limit.burst == 0 {
            return Err(AccessError::RateLimit);
        }
        if let Some(before) = before
            && before.config.rate_limit == config.rate_limit
        {
            return Ok(before.rate.clone());
        }
        let interval = Duration::from_secs(1) / limit.per_second;
        Ok(Some(Arc::new(Buckets::new(interval, limit.burst, start))))
    }

    /// Whether all clients may read without a rate limit, so that no check is needed.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Decides as [`admit`](Self::admit) does, without counting the request.
    pub fn evaluate(&self, head: Head<'_>, now: Instant) -> Verdict {
        self.identify(head, now).1
    }

    /// Decides whether a request may be answered, without verifying a password; for I/O threads.
    /// Counts the request against the rate limit. `token`: the number of a valid token of a
    /// storage, which counts as one client.
    pub fn admit(&self, head: Head<'_>, now: Instant, token: Option<i64>) -> Verdict {
        let (client, verdict) = self.identify(head, now);
        let Some(rate) = &self.rate else {
            return verdict;
        };
        let counted = match token {
            Some(token) if client.name.is_none() => Counted::Token(token),
            _ => Counted::of(&client),
        };
        match rate.take(&counted, now) {
            Ok(()) => verdict,
            Err(wait) => self.limited(&verdict, wait),
        }
    }

    /// Returns the verdict about a client that must wait. A hidden cache sends a 429 only to
    /// clients that it admits: to others, a 429 would show that the cache exists.
    fn limited(&self, verdict: &Verdict, wait: Duration) -> Verdict {
        match verdict {
            Verdict::Granted => Verdict::Refused(Refusal::TooMany(wait)),
            _ if self.is_hiding() => Verdict::Refused(Refusal::Denied),
            _ => Verdict::Refused(Refusal::TooMany(wait)),
        }
    }

    /// Whether the number of requests of a client is limited.
    pub(crate) fn has_rate_limit(&self) -> bool {
        self.rate.is_some()
    }

    /// Dispatches a request whose password must be verified to a worker.
    pub(crate) fn dispatch(&self, head: Head<'_>, reply: Reply<'_>) -> Inline {
        reply.dispatch_costly_for(self.claimant(head))
    }

    /// Returns for whom the password of a request is verified. Wrong passwords for names that do
    /// not exist, of which there are always enough, never delay others.
    fn claimant(&self, head: Head<'_>) -> Claimant {
        let claimant = Claimant::of(self.proxies.client(head.peer(), head.headers()));
        match (self.credentials(head), &self.users) {
            (Some(Credentials::Basic(basic)), Some(users))
                if users.comes_first(&self.lasting.secret, &basic) =>
            {
                claimant.first()
            }
            _ => claimant,
        }
    }

    /// Decides without counting the request. Verifies the password if necessary, which takes tens
    /// of milliseconds, and never returns [`Verdict::Unverified`]. For workers.
    pub fn authenticate(&self, head: Head<'_>, now: Instant) -> Verdict {
        match self.identify(head, now) {
            (client, Verdict::Unverified) => self.verify_password(head, &client, now),
            (_, verdict) => verdict,
        }
    }

    /// Identifies the client of an admitted request, for logs.
    pub fn client(&self, head: Head<'_>, now: Instant) -> Client {
        let (mut client, verdict) = self.identify(head, now);
        if !matches!(verdict, Verdict::Granted)
            && let Some(Credentials::Basic(basic)) = self.credentials(head)
        {
            let len = basic.user().len().min(REFUSED_LEN_MAX);
            client.refused = basic.user().get(..len).map(Into::into);
        }
        // Without the header, all that is known is the proxy.
        if let Peer::Tcp(proxy) = head.peer()
            && !self.proxies.is_told(head.headers())
        {
            client.address = Some(proxy.ip().to_canonical());
        }
        client
    }

    /// Answers a refused request on an I/O thread.
    ///
    /// # Errors
    ///
    /// Returns the unused reply if the cache is hidden from the client ([`RefuseWith::NotFound`]):
    /// the caller must answer as if the cache did not exist.
    pub fn refuse<'r>(&self, refusal: Refusal, reply: Reply<'r>) -> Result<Inline, Reply<'r>> {
        match (refusal, &self.denied) {
            (Refusal::Denied, Some(denied)) => Ok(reply.prepared(&denied.prepared)),
            (Refusal::Denied, None) => Err(reply),
            (Refusal::TooMany(wait), _) => Ok(reply.response(too_many(wait))),
        }
    }

    /// Makes the response to a refused request, for workers; `None` if the cache is hidden from the
    /// client.
    pub fn refused(&self, refusal: Refusal) -> Option<Response> {
        self.refused_because(refusal, None)
    }

    /// Makes the response to a refused request, like [`refused`](Self::refused). `fault`: the fault
    /// of the client's token for uploads.
    pub(crate) fn refused_because(
        &self,
        refusal: Refusal,
        fault: Option<&TokenFault>,
    ) -> Option<Response> {
        match refusal {
            Refusal::Denied => Some(self.denied.as_ref()?.response(fault)),
            Refusal::TooMany(wait) => Some(too_many(wait)),
        }
    }

    /// Returns the value of `WWW-Authenticate` in the response to clients without credentials;
    /// `None` if the cache does not ask for any.
    pub(crate) fn challenge(&self) -> Option<&str> {
        self.denied.as_ref()?.challenge.as_deref()
    }

    /// Whether the cache is hidden from clients that are not admitted.
    pub(crate) fn is_hiding(&self) -> bool {
        self.denied.is_none()
    }

    /// Whether the cache is hidden from the client, unless a worker finds that a password or a
    /// token for uploads admits it.
    pub(crate) fn hides_from(&self, head: Head<'_>) -> bool {
        self.is_hiding() && !matches!(self.evaluate(head, Instant::now()), Verdict::Granted)
    }

    /// Identifies the client as far as that is possible without verifying a password, and decides
    /// about the request.
    fn identify(&self, head: Head<'_>, now: Instant) -> (Client, Verdict) {
        let mut client = Client {
            address: self.proxies.client(head.peer(), head.headers()),
            ..Client::default()
        };
        let mut asks = None;
        match self.credentials(head) {
            Some(Credentials::Bearer(token)) => client.name = self.token(token),
            Some(Credentials::Basic(basic)) => {
                client.name = self.token(basic.password());
                if client.name.is_none()
                    && let Some(users) = &self.users
                {
                    match users.recall(&self.lasting.secret, &basic, now) {
                        Recalled::Known(name) => client.name = Some(Arc::clone(name)),
                        Recalled::Unverified => asks = Some(self.may_try(&client, &basic, now)),
                        Recalled::Wrong => {}
                    }
                }
            }
            None => {}
        }
        if client.name.is_none() {
            client.name = self.proven(head);
        }
        let verdict = if client.name.is_some() || self.lets_in(client.address) {
            Verdict::Granted
        } else {
            match asks {
                Some(Ok(())) => Verdict::Unverified,
                Some(Err(wait)) => self.limited(&Verdict::Unverified, wait),
                None => Verdict::Refused(Refusal::Denied),
            }
        };
        (client, verdict)
    }

    fn verify_password(&self, head: Head<'_>, client: &Client, now: Instant) -> Verdict {
        let Some(Credentials::Basic(basic)) = self.credentials(head) else {
            return Verdict::Refused(Refusal::Denied);
        };
        let users = self.users.as_ref();
        let name = users.and_then(|users| users.verify(&self.lasting.secret, &basic, now));
        if name.is_some() {
            return Verdict::Granted;
        }
        // Count the wrong password. It was already verified, so this only limits later attempts.
        self.lasting
            .attempts
            .take(&Counted::attempt(client, &basic), now)
            .ok();
        self.lasting
            .attempts_of_all
            .take(&Counted::address(client), now)
            .ok();
        Verdict::Refused(Refusal::Denied)
    }

    /// Whether an unverified password may be verified now. If not, the error is the time to wait.
    fn may_try(&self, client: &Client, basic: &Basic, now: Instant) -> Result<(), Duration> {
        self.lasting
            .attempts
            .peek(&Counted::attempt(client, basic), now)?;
        self.lasting
            .attempts_of_all
            .peek(&Counted::address(client), now)
    }

    fn token(&self, token: &[u8]) -> Option<Arc<str>> {
        let tokens = self.tokens.as_ref()?;
        tokens.find(&self.lasting.secret, token).cloned()
    }

    /// Parses the credentials of a request, if any configured method uses them.
    fn credentials<'a>(&self, head: Head<'a>) -> Option<Credentials<'a>> {
        let are_used = self.users.is_some() || self.tokens.is_some();
        are_used.then(|| Credentials::of(head.headers())).flatten()
    }

    /// Returns whether all clients are admitted, because no method is configured.
    pub(crate) fn lets_everybody_in(&self) -> bool {
        self.lets_everybody_in
    }

    /// Identifies the client by its connection: by the process at the other end of a Unix socket,
    /// or by a client certificate. Returns `None` if neither is configured to be admitted.
    fn proven(&self, head: Head<'_>) -> Option<Arc<str>> {
        if let Peer::Unix(Some(process)) = head.peer()
            && (self.config.uids.contains(&process.uid) || self.config.gids.contains(&process.gid))
        {
            return Some(format!("uid:{}", process.uid).into());
        }
        self.certificates.find(head)
    }

    fn lets_in(&self, address: Option<IpAddr>) -> bool {
        self.lets_everybody_in || address.is_some_and(|address| self.networks.contains(address))
    }
}

/// The subject that a rate limit counts.
#[derive(Hash)]
enum Counted<'a> {
    Name(&'a str),
    /// A valid token of a storage.
    Token(i64),
    /// An IPv4 address, or an IPv6 /64 network, because one customer usually has a whole /64. All
    /// clients without a known address count as one (`None`).
    Address(Option<IpAddr>),
    /// A user name, together with the address that has sent it.
    Attempt(Option<IpAddr>, &'a [u8]),
}

impl<'a> Counted<'a> {
    fn of(client: &'a Client) -> Self {
        match &client.name {
            Some(name) => Self::Name(name),
            None => Self::address(client),
        }
    }

    fn address(client: &Client) -> Self {
        Self::Address(client.address.map(Self::network))
    }

    fn attempt(client: &Client, basic: &'a Basic) -> Self {
        Self::Attempt(client.address.map(Self::network), basic.user())
    }

    fn network(address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        }
    }
}
