//! Events of a cache, for logs and metrics.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use samovar_store::{SchemaWarning, StoreError};

use crate::status::RecentError;
use crate::transfers::Transfers;

/// Receives the events of all caches of a server. No method may block: some run on I/O threads.
pub trait Observer: samovar_http::Observer + 'static {
    /// Receives one event.
    fn event(&self, event: &Event<'_>);

    /// Receives the caches of the server, at its start and after each reload.
    fn serves(&self, caches: &[ServedCache]) {
        let _unused = caches;
    }

    /// Returns the list of NARs being sent, if this observer keeps one.
    fn transfers(&self) -> Option<&Arc<Transfers>> {
        None
    }

    /// Whether the access log writes store paths, so that caches must remember their names.
    fn names_paths(&self) -> bool {
        false
    }

    /// Returns the counters of events by name, if this observer counts.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns recent errors and warnings, newest first, if this observer stores them.
    fn recent_errors(&self) -> Vec<RecentError> {
        Vec::new()
    }
}

impl fmt::Debug for dyn Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// `()` discards all events.
impl Observer for () {
    fn event(&self, _: &Event<'_>) {}
}

/// A cache of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedCache {
    /// The cache's name, the label `cache` of its metrics.
    pub name: String,
    /// The cache's number in [`Routed::cache`](crate::Routed::cache). No two caches have the same
    /// number at a time, and a cache keeps its number as long as it exists.
    pub number: u16,
    /// The URL prefix, percent-encoded, without a trailing slash. It is empty for the root.
    pub path_prefix: String,
}

/// An event that may interest the operator. [`Display`](fmt::Display) formats it as a log line.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// The store failed as a whole. Reported once per outage.
    StoreFailed(StoreError),
    /// The store can be read again.
    StoreRecovered,
    /// The store can be read, but its schema needs the operator's attention.
    StoreRemark(SchemaWarning),
    /// One path cannot be served, although the store as a whole can be read.
    PathFailed {
        /// The path, its hash part, or the request.
        path: &'a dyn fmt::Display,
        /// Cause of the failure.
        error: &'a dyn fmt::Display,
    },
    /// A path was garbage-collected or registered anew while it was being sent; the response was
    /// aborted.
    PathCollected(&'a dyn fmt::Display),
    /// The files of a valid path do not match its registration; it is answered with 404.
    PathQuarantined {
        /// The path with the damaged files.
        path: &'a dyn fmt::Display,
        /// How the files differ from the registration.
        error: &'a dyn fmt::Display,
    },
    /// The files of a quarantined path were changed or verified; it is served again.
    PathReleased(&'a dyn fmt::Display),
    /// A request for a quarantined path was answered with 404.
    QuarantinedPathRequested,
    /// The bytes of a path were hashed and match its registration.
    PathVerified,
    /// The roots of a policy cannot be followed, so that nothing is served under it. Reported once
    /// per outage.
    RootsFailed(&'a dyn fmt::Display),
    /// The roots of policies can be followed again.
    RootsRecovered,
    /// The roots of a deny rule lead to other paths, so that it denies fewer than before.
    DenialsEnded(&'a dyn fmt::Display),
    /// Progress of a background verification of the store.
    ScrubProgress(&'a dyn fmt::Display),
    /// Verification records cannot be read from the state directory, or cannot be written to it.
    StateFailed {
        /// The state directory.
        directory: &'a Path,
        /// The reason.
        error: &'a dyn fmt::Display,
    },
    /// The NAR cache cannot be written (reported once per outage), or one of its entries cannot be
    /// read.
    NarCacheFailed(&'a dyn fmt::Display),
    /// A bulk query was refused: the limit of narinfos in progress is reached.
    BulkLimitReached,
    /// A bulk response to a slow client was aborted in favour of another one.
    BulkEvicted,
    /// Paths cannot be leased. Reported once per outage.
    LeasesFailed {
        /// Cause of the failure.
        error: &'a dyn fmt::Display,
        /// Whether this is normal: no daemon has answered since the start, and leases were not
        /// configured.
        is_expected: bool,
    },
    /// Paths can be leased again after an outage.
    LeasesRecovered,
    /// The limit of leases is reached until some of them expire.
    LeaseLimitReached,
    /// The daemon protects one more path against garbage collection.
    PathLeased,
    /// A response was sent although its paths could not be leased, or not in time.
    Unleased(Unleased),
    /// A request was refused, because its client may not read or did not authenticate.
    AccessDenied,
    /// A request was refused, because its client sends too many requests or too many wrong
    /// passwords.
    AccessLimited,
    /// A password was hashed and is right. The server remembers that for a while.
    PasswordVerified,
    /// A client has uploaded a path.
    PathUploaded {
        /// The path that was published.
        path: &'a dyn fmt::Display,
        /// The client.
        by: Uploader<'a>,
    },
    /// A client uploaded a path again with another NAR. The first NAR stays.
    UploadConflict {
        /// The path that exists already.
        path: &'a dyn fmt::Display,
        /// The client.
        by: Uploader<'a>,
    },
    /// A client has pinned an uploaded path.
    PathPinned {
        /// The path that was pinned.
        path: &'a dyn fmt::Display,
        /// The name of the pin.
        pin: &'a str,
        /// The client.
        by: Uploader<'a>,
    },
    /// A client has removed generations of a pin.
    PinRemoved {
        /// The name of the pin.
        pin: &'a str,
        /// Number of generations that were removed.
        count: usize,
        /// The client.
        by: Uploader<'a>,
    },
    /// An upload was refused.
    UploadRefused {
        /// The path in the URL of the upload.
        url: &'a dyn fmt::Display,
        /// The store path or the NAR, if the request names it outside the URL.
        path: Option<&'a dyn fmt::Display>,
        /// The client.
        by: Uploader<'a>,
        /// The reason, as it was sent to the client.
        reason: &'a dyn fmt::Display,
    },
    /// The ID token of a CI job was exchanged for a token.
    IdTokenExchanged {
        /// The name of the token.
        token: &'a str,
        /// The rights of the token.
        rights: &'a dyn fmt::Display,
        /// The client's address; `None` if it is unknown.
        address: Option<IpAddr>,
        /// The name of the cache; `None` if the server has only one.
        cache: Option<&'a str>,
    },
    /// An ID token was refused, or could not be verified.
    IdTokenRefused {
        /// The name of the issuer; `None` if it is not configured.
        issuer: Option<&'a str>,
        /// The claim `sub`, if the token was verified.
        subject: Option<&'a str>,
        /// The client's address; `None` if it is unknown.
        address: Option<IpAddr>,
        /// The name of the cache; `None` if the server has only one.
        cache: Option<&'a str>,
        /// The reason, as a sentence.
        reason: &'a str,
    },
    /// An uploaded file is missing or has a wrong length. It is recorded as lost.
    FileLost(&'a dyn fmt::Display),
    /// The storage cannot be read or written.
    StorageFailed(&'a dyn fmt::Display),
    /// An upstream cache does not answer; it is not asked until a probe gets an answer.
    UpstreamDown {
        /// The name of the upstream.
        upstream: &'a str,
        /// The last fault, as a part of a sentence.
        reason: &'a str,
    },
    /// An upstream cache answers again.
    UpstreamUp {
        /// The name of the upstream.
        upstream: &'a str,
        /// Time for which it was not asked.
        time: Duration,
    },
    /// An upstream cache has sent something that is not passed on.
    UpstreamFault {
        /// The name of the upstream.
        upstream: &'a str,
        /// The path, or its hash part.
        path: &'a dyn fmt::Display,
        /// The fault, as a part of a sentence.
        reason: &'a str,
    },
    /// A path of an upstream cache is passed on, but not kept.
    NotKept {
        /// The name of the upstream.
        upstream: &'a str,
        /// The path.
        path: &'a dyn fmt::Display,
        /// The reason, as a part of a sentence.
        reason: &'a dyn fmt::Display,
    },
}

/// A response whose paths have no lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unleased {
    /// One narinfo, or the narinfos in one part of a bulk response.
    Narinfo,
    /// A NAR read from the files of the store.
    Nar,
}

/// A client that uploads or pins. [`Display`](fmt::Display) formats it as a part of a log line.
#[derive(Debug, Clone, Copy)]
pub struct Uploader<'a> {
    /// The name of the client's token.
    pub token: &'a str,
    /// The client's address; `None` if it is unknown.
    pub address: Option<IpAddr>,
    /// The name of the cache; `None` if the server has only one.
    pub cache: Option<&'a str>,
}

impl fmt::Display for Uploader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "with the token {:?}", self.token)?;
        write_from(f, self.address, self.cache)
    }
}

/// Writes the address of a client and the cache of a request, if they are known.
fn write_from(
    f: &mut fmt::Formatter<'_>,
    address: Option<IpAddr>,
    cache: Option<&str>,
) -> fmt::Result {
    if let Some(address) = address {
        write!(f, " from {address}")?;
    }
    match cache {
        Some(cache) => write!(f, " in the cache {cache:?}"),
        None => Ok(()),
    }
}

impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({self})")
    }
}

impl fmt::Display for Event<'_> {
    // Long: a table of log lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StoreFailed(error) => {
                write!(f, "the store cannot be read, answering 503: {error}")?;
                match error.remedy() {
                    Some(remedy) => write!(f, "; {remedy}"),
                    None => Ok(()),
                }
            }
            Self::StoreRecovered => f.write_str("the store can be read again"),
            Self::StoreRemark(remark) => remark.fmt(f),
            Self::PathFailed { path, error } => write!(f, "{path} cannot be served: {error}"),
            Self::PathCollected(path) => {
                write!(
                    f,
                    "{path} was collected or registered anew while it was being sent"
                )
            }
            Self::PathQuarantined { path, error } => write!(
                f,
                "{path} does not match its registration: {error}; \
                 repair it with `nix-store --verify --check-contents --repair`"
            ),
            Self::PathReleased(path) => {
                write!(
                    f,
                    "{path} is served again: its files are right, or were changed since the \
                           damage was found"
                )
            }
            Self::QuarantinedPathRequested => f.write_str("a quarantined path was requested"),
            Self::PathVerified => f.write_str("a path was verified"),
            Self::RootsFailed(error) => write!(
                f,
                "the roots of a policy cannot be followed, so nothing is served under it: {error}"
            ),
            Self::RootsRecovered => f.write_str("the roots of policies can be followed again"),
            Self::DenialsEnded(ended) => ended.fmt(f),
            Self::ScrubProgress(progress) => progress.fmt(f),
            Self::StateFailed { directory, error } => write!(
                f,
                "cannot use the state directory {directory:?} for verification records: {error}"
            ),
            Self::NarCacheFailed(error) => write!(
                f,
                "the NAR cache cannot be used, serving NARs from their files: {error}"
            ),
            Self::BulkLimitReached => {
                f.write_str("too many bulk queries in progress, answering 503")
            }
            Self::BulkEvicted => f.write_str(
                "a bulk response was aborted for another one: its client reads too slowly",
            ),
            Self::LeasesFailed { error, is_expected } => {
                let consequence = if *is_expected {
                    ""
                } else {
                    ", serving them anyway"
                };
                write!(
                    f,
                    "paths cannot be leased against garbage collection{consequence}: {error}"
                )
            }
            Self::LeasesRecovered => {
                f.write_str("paths are leased against garbage collection again")
            }
            Self::LeaseLimitReached => f.write_str(
                "the limit of GC leases is reached: further paths are not protected against \
                 garbage collection",
            ),
            Self::PathLeased => f.write_str("a path was leased"),
            Self::Unleased(Unleased::Narinfo) => f.write_str("a narinfo was sent without a lease"),
            Self::Unleased(Unleased::Nar) => f.write_str("a NAR was sent without a lease"),
            Self::AccessDenied => f.write_str("a request was denied access"),
            Self::AccessLimited => f.write_str("a request exceeded a rate limit"),
            Self::PasswordVerified => f.write_str("a password was verified"),
            Self::PathUploaded { path, by } => write!(f, "{path} was uploaded {by}"),
            Self::UploadConflict { path, by } => write!(
                f,
                "{path} was uploaded again {by}, with another NAR; the first one stays: its build \
                 is not reproducible"
            ),
            Self::PathPinned { path, pin, by } => {
                write!(f, "{path} was pinned as {pin:?} {by}")
            }
            Self::PinRemoved { pin, count, by } => write!(
                f,
                "{count} {} of the pin {pin:?} {} removed {by}",
                if *count == 1 {
                    "generation"
                } else {
                    "generations"
                },
                if *count == 1 { "was" } else { "were" },
            ),
            Self::UploadRefused {
                url,
                path,
                by,
                reason,
            } => {
                f.write_str("the upload ")?;
                if let Some(path) = path {
                    write!(f, "of {path} ")?;
                }
                write!(f, "to {url} {by} was refused: {reason}")
            }
            Self::IdTokenExchanged {
                token,
                rights,
                address,
                cache,
            } => {
                write!(f, "the token {token:?} with the rights {rights} was given")?;
                write_from(f, *address, *cache)
            }
            Self::IdTokenRefused {
                issuer,
                subject,
                address,
                cache,
                reason,
            } => {
                f.write_str("an ID token")?;
                if let Some(issuer) = issuer {
                    write!(f, " of the issuer {issuer:?}")?;
                }
                if let Some(subject) = subject {
                    write!(f, " for {subject:?}")?;
                }
                write_from(f, *address, *cache)?;
                write!(f, " was not exchanged: {reason}")
            }
            Self::FileLost(file) => write!(f, "the uploaded file {file}"),
            Self::StorageFailed(error) => write!(f, "the storage cannot be used: {error}"),
            Self::UpstreamDown { upstream, reason } => write!(
                f,
                "the upstream {upstream:?} is not asked until it answers again: {reason}"
            ),
            Self::UpstreamUp { upstream, time } => write!(
                f,
                "the upstream {upstream:?} answers again after {} s",
                time.as_secs()
            ),
            Self::UpstreamFault {
                upstream,
                path,
                reason,
            } => write!(
                f,
                "the upstream {upstream:?} cannot be used for {path}: {reason}"
            ),
            Self::NotKept {
                upstream,
                path,
                reason,
            } => write!(
                f,
                "{path} of the upstream {upstream:?} is passed on, but not kept: {reason}"
            ),
        }
    }
}
