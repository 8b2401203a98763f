//! Writes events and requests to the logs, and counts events.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use samovar_cache::Clients;
use samovar_cache::access::Client;
use samovar_http::{End, Exchange, Head, Incident, Peer};
use samovar_metrics::{Event, Metrics, Observer, RecentError, Routed, Unleased};
use samovar_text::{counted, human};

use super::counts::{Count, Counts};
use super::throttle::Throttle;
use crate::config::ClientAddress;
use crate::log::{AccessLog, Entry, ErrorLog, Level, Request};

/// The logs of a server.
#[derive(Debug)]
pub(super) struct Logs {
    access: Option<AccessLog>,
    pub(super) errors: ErrorLog,
    client_address: ClientAddress,
    /// Identifies the clients of requests. Set once the site exists.
    clients: OnceLock<Clients>,
    paths: Throttle,
    bodies: Throttle,
    limits: Throttle,
    counts: Counts,
    /// The metrics, which count the requests. Not set without an admin server.
    metrics: OnceLock<Weak<Metrics>>,
}

impl Logs {
    pub(super) fn new(
        access: Option<AccessLog>,
        errors: ErrorLog,
        client_address: ClientAddress,
    ) -> Self {
        Self {
            access,
            errors,
            client_address,
            clients: OnceLock::new(),
            paths: Throttle::default(),
            bodies: Throttle::default(),
            limits: Throttle::default(),
            counts: Counts::default(),
            metrics: OnceLock::new(),
        }
    }

    /// Sets the source of client identities. Must be called before the first request.
    pub(super) fn introduce(&self, clients: Clients) {
        drop(self.clients.set(clients));
    }

    pub(super) fn reopen(&self) {
        self.errors.reopen();
        if let Some(access) = &self.access {
            access.reopen();
        }
    }

    /// Sets the metrics, whose observer these logs are.
    pub(super) fn count_with(&self, metrics: &Arc<Metrics>) {
        drop(self.metrics.set(Arc::downgrade(metrics)));
    }

    /// Logs the values of the event counters, and the number and bytes of the requests if an admin
    /// server counts them.
    pub(super) fn say_counts(&self) {
        let totals = self.metrics.get().and_then(Weak::upgrade);
        let requests = match totals.map(|metrics| metrics.totals()) {
            Some(totals) => format!(
                "{}, {} sent",
                counted(totals.request_count, "request"),
                human(totals.body_len)
            ),
            None => "requests are not counted without an admin listener".to_owned(),
        };
        self.errors.info(format_args!(
            "events since the start: {}; {requests}",
            self.counts
        ));
    }

    pub(super) fn flush(&self, patience: Duration) {
        if let Some(access) = &self.access
            && !access.flush(patience)
        {
            self.errors
                .warning("the access log could not be written completely");
        }
    }

    /// Logs at a limited rate, so that clients cannot fill the disk.
    fn say(&self, throttle: &Throttle, level: Level, message: impl fmt::Display) {
        let Some(suppressed) = throttle.pass(Instant::now()) else {
            return;
        };
        if suppressed > 0 {
            self.errors.write(
                level,
                format_args!("suppressed {}", counted(suppressed, "similar line")),
            );
        }
        self.errors.write(level, message);
    }

    /// Returns the client address to log. `known` is the client that the requested cache has
    /// identified, if it has access rules.
    fn address(&self, head: Head<'_>, known: Option<&Client>) -> Option<IpAddr> {
        let peer = address(head.peer());
        match self.client_address {
            ClientAddress::Peer => peer,
            ClientAddress::Forwarded => known.map_or(peer, |client| client.address),
            ClientAddress::Unproven => unproven(head).or(peer),
        }
    }
}

fn address(peer: Peer) -> Option<IpAddr> {
    match peer {
        Peer::Tcp(address) => Some(address.ip().to_canonical()),
        Peer::Unix(_) => None,
    }
}

/// Returns the client address from the request's header fields, which clients can forge; `None` if
/// they contain no address.
fn unproven(head: Head<'_>) -> Option<IpAddr> {
    let text = head
        .header("X-Real-IP")
        .or_else(|| head.header("X-Forwarded-For"))?;
    let first = text.split(|byte| *byte == b',').next()?;
    std::str::from_utf8(first).ok()?.trim().parse().ok()
}

/// Whether and how often an event is logged.
enum Line<'a> {
    /// The event is not logged.
    None,
    /// Each event is logged.
    Each(Level),
    /// Events are logged at a limited rate, because clients can cause them.
    Limited(Level, &'a Throttle),
}

impl Logs {
    /// Returns the counter of an event, and how the event is logged.
    fn policy_of(&self, event: &Event<'_>) -> (Option<Count>, Line<'_>) {
        use Level::{Debug, Error, Info, Warning};
        use Line::{Each, Limited};
        let (paths, limits) = (&self.paths, &self.limits);
        match event {
            Event::StoreFailed(_) => (Some(Count::StoreFailed), Each(Error)),
            Event::StoreRecovered => (None, Each(Info)),
            Event::StoreRemark(_) => (None, Each(Warning)),
            Event::PathFailed { .. } => (Some(Count::PathFailed), Limited(Error, paths)),
            Event::PathCollected(_) => (Some(Count::PathCollected), Limited(Debug, paths)),
            Event::PathQuarantined { .. } => (Some(Count::PathQuarantined), Limited(Error, paths)),
            Event::PathReleased(_) => (Some(Count::PathReleased), Limited(Info, paths)),
            Event::QuarantinedPathRequested => (Some(Count::QuarantinedRequested), Line::None),
            Event::PathVerified => (Some(Count::PathVerified), Line::None),
            Event::RootsFailed(_) => (None, Each(Error)),
            Event::DenialsEnded(_) => (None, Each(Warning)),
            Event::RootsRecovered | Event::ScrubProgress(_) => (None, Each(Info)),
            Event::StateFailed { .. } | Event::NarCacheFailed(_) => (None, Each(Warning)),
            Event::BulkLimitReached => (Some(Count::BulkLimitReached), Limited(Warning, limits)),
            Event::BulkEvicted => (Some(Count::BulkEvicted), Limited(Warning, limits)),
            Event::LeasesFailed {
                is_expected: true, ..
            } => (None, Each(Debug)),
            Event::LeasesFailed { .. } => (Some(Count::LeasesFailed), Each(Warning)),
            Event::LeasesRecovered => (None, Each(Info)),
            Event::LeaseLimitReached => (Some(Count::LeaseLimitReached), Limited(Warning, limits)),
            Event::PathLeased => (Some(Count::PathLeased), Line::None),
            Event::Unleased(Unleased::Narinfo) => (Some(Count::NarinfoUnleased), Line::None),
            Event::Unleased(Unleased::Nar) => (Some(Count::NarUnleased), Line::None),
            Event::AccessLimited => (Some(Count::AccessLimited), Line::None),
            Event::AccessDenied => (Some(Count::AccessDenied), Line::None),
            Event::PasswordVerified => (Some(Count::PasswordVerified), Line::None),
            // Uploads and pins need a token. Their lines are an audit trail, so none is dropped.
            Event::PathUploaded { .. } => (Some(Count::PathUploaded), Each(Info)),
            Event::UploadConflict { .. } => (Some(Count::UploadConflict), Limited(Warning, paths)),
            Event::PathPinned { .. } | Event::PinRemoved { .. } => (None, Each(Info)),
            Event::UploadRefused { .. } => (Some(Count::UploadRefused), Limited(Warning, limits)),
            // The audit trail of tokens, as that of uploads.
            Event::IdTokenExchanged { .. } => (Some(Count::IdTokenExchanged), Each(Info)),
            Event::IdTokenRefused { .. } => (Some(Count::IdTokenRefused), Limited(Warning, limits)),
            Event::FileLost(_) => (Some(Count::FileLost), Limited(Error, paths)),
            Event::StorageFailed(_) => (Some(Count::StorageFailed), Limited(Error, limits)),
            Event::UpstreamDown { .. } => (Some(Count::UpstreamDown), Each(Warning)),
            Event::UpstreamUp { .. } => (None, Each(Info)),
            Event::UpstreamFault { .. } => (Some(Count::UpstreamFault), Limited(Warning, paths)),
            Event::NotKept { .. } => (Some(Count::NotKept), Limited(Warning, limits)),
        }
    }
}

impl samovar_http::Observer for Logs {
    fn observes(&self) -> bool {
        self.access.is_some()
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        let Some(access) = &self.access else { return };
        let (head, routed) = (exchange.head, Routed::of(exchange.tag));
        let clients = self.clients.get();
        let client = clients.and_then(|clients| clients.client(head, routed));
        let path = clients.filter(|_| access.names_paths());
        let path = path.and_then(|clients| clients.store_path(head, routed));
        let user = client.as_ref().and_then(|client| client.name.as_deref());
        access.record(&Entry {
            client: self.address(head, client.as_ref()),
            user: user.map(str::as_bytes),
            refused_user: client.as_ref().and_then(|client| client.refused.as_deref()),
            path: path.as_deref(),
            time: SystemTime::now()
                .checked_sub(exchange.duration)
                .unwrap_or(SystemTime::UNIX_EPOCH),
            request: Some(Request {
                method: head.method_name(),
                target: head.target(),
                version: head.version().as_str(),
                routed,
            }),
            status: exchange.status.code(),
            body_len: Some(exchange.body_len),
            referer: head.header("Referer"),
            user_agent: head.header("User-Agent"),
            duration: exchange.duration,
            is_complete: exchange.end == End::Complete,
            request_id: head.header("X-Request-Id"),
        });
    }

    fn incident(&self, incident: &Incident<'_>) {
        self.counts.add(match incident {
            Incident::HandlerPanicked { .. } | Incident::SocketHandlerPanicked { .. } => {
                Count::Panicked
            }
            Incident::BodyFailed { .. } => Count::BodyFailed,
            Incident::Refused { .. } | Incident::Abused { .. } => Count::Refused,
            Incident::TooSlow { .. } => Count::TooSlow,
            Incident::HandshakeFailed { .. } => Count::HandshakeFailed,
            Incident::GaveWay { .. } => Count::ConnectionEvicted,
            Incident::ConnectionsFull => Count::ConnectionsFull,
            Incident::WorkersFull => Count::WorkersFull,
            Incident::AcceptFailed { .. } => Count::AcceptFailed,
            _ => Count::Other,
        });
        if let (Incident::Refused { peer, refusal, .. }, Some(access)) = (incident, &self.access) {
            // Leave the request line out, because a malformed one may contain anything.
            access.record(&Entry {
                client: address(*peer),
                user: None,
                refused_user: None,
                path: None,
                time: SystemTime::now(),
                request: None,
                status: refusal.status().code(),
                body_len: None,
                referer: None,
                user_agent: None,
                duration: Duration::ZERO,
                is_complete: true,
                request_id: None,
            });
        }
        match incident {
            Incident::HandlerPanicked { .. } => self.errors.error(incident),
            // Clients can cause these incidents at will, so log them at debug level only.
            Incident::Refused { .. } | Incident::TooSlow { .. } => self.errors.debug(incident),
            Incident::BodyFailed { .. } => self.say(&self.bodies, Level::Warning, incident),
            _ => self.say(&self.limits, Level::Warning, incident),
        }
    }
}

impl Observer for Logs {
    fn event(&self, event: &Event<'_>) {
        let (count, line) = self.policy_of(event);
        if let Some(count) = count {
            self.counts.add(count);
        }
        match line {
            Line::None => {}
            Line::Each(level) => self.errors.write(level, event),
            Line::Limited(level, throttle) => self.say(throttle, level, event),
        }
    }

    fn names_paths(&self) -> bool {
        self.access.as_ref().is_some_and(AccessLog::names_paths)
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.counts.all()
    }

    fn recent_errors(&self) -> Vec<RecentError> {
        self.errors.recent()
    }
}
