//! What happens, in the logs.

use std::fmt;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use samovar_cache::access::{Client, Refusal};
use samovar_cache::metrics::RecentError;
use samovar_cache::{Observer, Unheld, Visitors};
use samovar_http::{End, Exchange, Head, Incident, Peer};
use samovar_store::{SchemaRemark, StoreError};

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
    /// Who they are, once there is a site to ask.
    visitors: OnceLock<Visitors>,
    paths: Throttle,
    bodies: Throttle,
    limits: Throttle,
    counts: Counts,
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
            visitors: OnceLock::new(),
            paths: Throttle::default(),
            bodies: Throttle::default(),
            limits: Throttle::default(),
            counts: Counts::default(),
        }
    }

    /// Says whom to ask who clients are. Said once, before the first of them comes.
    pub(super) fn introduce(&self, visitors: Visitors) {
        drop(self.visitors.set(visitors));
    }

    pub(super) fn reopen(&self) {
        self.errors.reopen();
        if let Some(access) = &self.access {
            access.reopen();
        }
    }

    /// Says how often what has happened since the start.
    pub(super) fn say_counts(&self) {
        self.errors
            .info(format_args!("counted since the start: {}", self.counts));
    }

    pub(super) fn flush(&self, patience: Duration) {
        if let Some(access) = &self.access
            && !access.flush(patience)
        {
            self.errors
                .warning("the access log could not be written to its end");
        }
    }

    /// Writes what many requests may meet, without letting them fill the disk.
    fn say(&self, throttle: &Throttle, level: Level, message: impl fmt::Display) {
        let Some(left_out) = throttle.pass(Instant::now()) else {
            return;
        };
        if left_out > 0 {
            self.errors.write(
                level,
                format_args!("{left_out} lines like the next were left out"),
            );
        }
        self.errors.write(level, message);
    }

    /// `known`: what its cache knows of the client.
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

/// The client as whoever sent the request names it.
fn unproven(head: Head<'_>) -> Option<IpAddr> {
    let text = head
        .header("X-Real-IP")
        .or_else(|| head.header("X-Forwarded-For"))?;
    let first = text.split(|byte| *byte == b',').next()?;
    std::str::from_utf8(first).ok()?.trim().parse().ok()
}

impl samovar_http::Observer for Logs {
    fn observes(&self) -> bool {
        self.access.is_some()
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        let Some(access) = &self.access else { return };
        let head = exchange.head;
        let visitors = self.visitors.get();
        let client = visitors.and_then(|visitors| visitors.client(head));
        let path = visitors.filter(|_| access.names_paths());
        let path = path.and_then(|visitors| visitors.store_path(head));
        let user = client.as_ref().and_then(|client| client.name.as_deref());
        access.record(&Entry {
            client: self.address(head, client.as_ref()),
            user: user.map(str::as_bytes),
            path: path.as_deref(),
            time: SystemTime::now()
                .checked_sub(exchange.duration)
                .unwrap_or(SystemTime::UNIX_EPOCH),
            request: Some(Request {
                method: head.method_name(),
                target: head.target(),
                version: head.version().as_str(),
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
            Incident::GaveWay { .. } => Count::GaveWay,
            Incident::ConnectionsFull => Count::ConnectionsFull,
            Incident::WorkersFull => Count::WorkersFull,
            Incident::AcceptFailed { .. } => Count::AcceptFailed,
            _ => Count::Other,
        });
        if let (Incident::Refused { peer, refusal }, Some(access)) = (incident, &self.access) {
            // What was not understood is not repeated.
            access.record(&Entry {
                client: address(*peer),
                user: None,
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
            // Peers can cause these at will; they are for whoever looks for a fault.
            Incident::Refused { .. } | Incident::TooSlow { .. } => self.errors.debug(incident),
            Incident::BodyFailed { .. } => self.say(&self.bodies, Level::Warning, incident),
            _ => self.say(&self.limits, Level::Warning, incident),
        }
    }
}

impl Observer for Logs {
    fn store_failed(&self, error: StoreError) {
        self.counts.add(Count::StoreFailed);
        let remedy = error.remedy();
        let separator = remedy.map_or("", |_| "; ");
        self.errors.error(format_args!(
            "the store cannot be read, answering 503: {error}{separator}{}",
            remedy.unwrap_or_default()
        ));
    }

    fn store_recovered(&self) {
        self.errors.info("the store can be read again");
    }

    fn store_remark(&self, remark: SchemaRemark) {
        self.errors.warning(remark);
    }

    fn path_failed(&self, path: &dyn fmt::Display, error: &dyn fmt::Display) {
        self.counts.add(Count::PathFailed);
        let message = format_args!("{path} cannot be served: {error}");
        self.say(&self.paths, Level::Error, message);
    }

    fn path_collected(&self, path: &dyn fmt::Display) {
        self.counts.add(Count::CollectedUnderWay);
        let message = format_args!("{path} was collected, or registered anew, while it was sent");
        self.say(&self.paths, Level::Debug, message);
    }

    fn path_damaged(&self, path: &dyn fmt::Display, error: &dyn fmt::Display) {
        self.counts.add(Count::Damaged);
        let message = format_args!(
            "{path} is not what its registration says: {error}; \
             `nix-store --verify --check-contents --repair` mends it"
        );
        self.say(&self.paths, Level::Error, message);
    }

    fn path_verified(&self, _: &dyn fmt::Display) {
        self.counts.add(Count::Verified);
    }

    fn path_mended(&self, path: &dyn fmt::Display) {
        self.counts.add(Count::Mended);
        let message = format_args!("{path} is served again: its files have changed");
        self.say(&self.paths, Level::Info, message);
    }

    fn path_kept_out(&self) {
        self.counts.add(Count::KeptOut);
    }

    fn roots_failed(&self, error: &dyn fmt::Display) {
        self.errors.error(format_args!(
            "nothing is served under a policy whose roots cannot be followed: {error}"
        ));
    }

    fn roots_recovered(&self) {
        self.errors.info("the roots of policies can be followed");
    }

    fn scrubbed(&self, progress: &dyn fmt::Display) {
        self.errors.info(progress);
    }

    fn not_remembered(&self, error: &dyn fmt::Display) {
        self.errors.warning(format_args!(
            "what was verified is not remembered in --state-directory: {error}"
        ));
    }

    fn not_kept(&self, error: &dyn fmt::Display) {
        self.errors.warning(format_args!(
            "NARs are not kept in --nar-cache, and served from their files: {error}"
        ));
    }

    fn hold_failed(&self, error: &dyn fmt::Display, is_expected: bool) {
        if is_expected {
            self.errors.debug(format_args!(
                "paths are not held against garbage collection: {error}"
            ));
            return;
        }
        self.counts.add(Count::HoldFailed);
        self.errors.warning(format_args!(
            "paths are not held against garbage collection, and served all the same: {error}"
        ));
    }

    fn hold_recovered(&self) {
        self.errors
            .info("paths are held against garbage collection");
    }

    fn hold_full(&self) {
        self.counts.add(Count::HoldFull);
        let message = "no more paths can be held against garbage collection for some time";
        self.say(&self.limits, Level::Warning, message);
    }

    fn held(&self) {
        self.counts.add(Count::Held);
    }

    fn access_refused(&self, refusal: Refusal) {
        self.counts.add(match refusal {
            Refusal::TooMany(_) => Count::AccessLimited,
            _ => Count::AccessDenied,
        });
    }

    fn password_verified(&self) {
        self.counts.add(Count::PasswordVerified);
    }

    fn unheld(&self, what: Unheld) {
        self.counts.add(match what {
            Unheld::Narinfo => Count::AnnouncedUnheld,
            Unheld::Nar => Count::SentUnheld,
        });
    }

    fn lists_full(&self) {
        self.counts.add(Count::ListsFull);
        let message = "too many narinfos are asked for at once: 503 for one who asks for many";
        self.say(&self.limits, Level::Warning, message);
    }

    fn list_gave_way(&self) {
        self.counts.add(Count::ListGaveWay);
        let message = "an answer of many narinfos gave way: its client reads too slowly";
        self.say(&self.limits, Level::Warning, message);
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
