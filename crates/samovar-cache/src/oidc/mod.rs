//! OIDC: which ID tokens of CI services are exchanged for tokens of a cache.
//!
//! # Theory of operation
//!
//! A CI service, the issuer, gives each job an ID token: a JSON Web Token with claims about the
//! job. [`Oidc::verify`] finds the issuer by the claim `iss`, which is not verified yet, verifies
//! the token by the issuer's keys (`samovar-oidc`), and decides by the claims and the rules of the
//! configuration. The first rule counts whose conditions hold and that is for the cache of the
//! request. `upload/oidc.rs` then adds a token of the storage, with which the job works as with any
//! other one.
//!
//! The same ID token can be exchanged until it expires: a client whose response was lost repeats
//! the request, perhaps to another node, and a long push extends its token. To remember used ID
//! tokens would not stop a thief, who can be the first.
//!
//! [`KeyCache`](keys::KeyCache) decides when the keys of an issuer are fetched. A thread of its own
//! fetches them, and the requests that need them lend their worker slots meanwhile.

mod fetch;
mod issuer;
mod keys;
mod settings;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use samovar_metrics::OidcStatus;
use samovar_nix::Glob;
use samovar_oidc::claims::Claims;
use samovar_oidc::id_token::{Fault, IdToken};
use samovar_storage::metadata::NewToken;
use samovar_storage::token::OIDC_PREFIX;

pub use self::fetch::{IssuerAnswer, ask_issuer};
pub use self::settings::{IssuerRule, IssuerSettings, LIFETIME_MAX, LIFETIME_MIN};

use self::issuer::{Counted, Issuer};

/// Maximum number of characters of a name of a token after its prefix.
const SUBJECT_LEN_MAX: usize = 150;

/// Pairs of claims that name a project and a job, of GitHub and GitLab. Tokens of other issuers are
/// named by the claim `sub`.
const JOBS: [(&str, &str); 2] = [("repository", "run_id"), ("project_path", "job_id")];

/// Name of unknown issuers in metrics. No configured name has parentheses.
const UNKNOWN: &str = "(unknown)";

/// All issuers of a server.
#[derive(Debug)]
pub struct Oidc {
    issuers: Vec<Issuer>,
    /// Number of ID tokens of other issuers, or without a readable one.
    unknown_count: AtomicU64,
}

/// What an ID token gives.
#[derive(Debug)]
pub(crate) struct Granted {
    /// The token to add; its time of expiry is not set.
    pub(crate) token: NewToken,
    /// Time for which the token is valid, in seconds.
    pub(crate) lifetime_s: i64,
    issuer: usize,
}

/// Why an ID token gives nothing. Each text is a sentence for the client.
#[derive(Debug)]
pub(crate) enum Denial {
    /// The ID token is invalid.
    Invalid(Fault),
    /// No rule admits the holder of the ID token.
    NoRule { text: String, subject: String },
    /// The keys of the issuer cannot be fetched: `reason`, which is for the log.
    Unavailable { reason: String },
}

/// An ID token that gives nothing, and its issuer, if it is known.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(crate) issuer: Option<String>,
    pub(crate) denial: Denial,
}

impl Oidc {
    /// Prepares the issuers. Sends no request. `before`: the issuers that are replaced; the keys
    /// and counters of those with the same URL are kept.
    ///
    /// # Errors
    ///
    /// A sentence: a URL is invalid, or the file of certificates cannot be read.
    pub fn new(settings: &[IssuerSettings], before: Option<&Self>) -> Result<Self, String> {
        let before = before.map_or(&[][..], |before| &before.issuers);
        let issuers = settings
            .iter()
            .map(|settings| Issuer::new(settings, before));
        Ok(Self {
            issuers: issuers.collect::<Result<_, _>>()?,
            unknown_count: AtomicU64::new(0),
        })
    }

    /// Decides what an ID token gives in a cache. May wait for the issuer. `now`: in seconds since
    /// 1970.
    pub(crate) fn verify(&self, text: &[u8], cache: &str, now: i64) -> Result<Granted, Denied> {
        let unknown = |fault| Denied {
            issuer: None,
            denial: Denial::Invalid(fault),
        };
        let token = IdToken::parse(text).map_err(unknown)?;
        let stated = token.issuer().map_err(unknown)?;
        let mut issuers = self.issuers.iter().enumerate();
        let found = issuers.find(|(_, issuer)| issuer.settings.issuer == stated);
        let (at, issuer) = found.ok_or_else(|| unknown(Fault::Issuer))?;
        let verified = issuer.verify(token, now).and_then(|claims| {
            let rule = issuer.rule(&claims, cache)?;
            Ok(granted(at, issuer, rule, &claims))
        });
        verified.map_err(|denial| Denied {
            issuer: Some(issuer.settings.name.clone()),
            denial,
        })
    }

    /// Counts an ID token that was exchanged.
    pub(crate) fn count_granted(&self, granted: &Granted) {
        if let Some(issuer) = self.issuers.get(granted.issuer) {
            issuer.count(Counted::Granted);
        }
    }

    /// Counts an ID token that gives nothing.
    pub(crate) fn count_denied(&self, denied: &Denied) {
        let counted = match denied.denial {
            Denial::Invalid(_) | Denial::NoRule { .. } => Counted::Refused,
            Denial::Unavailable { .. } => Counted::Unavailable,
        };
        let name = denied.issuer.as_deref();
        let mut issuers = self.issuers.iter();
        match issuers.find(|issuer| Some(&*issuer.settings.name) == name) {
            Some(issuer) => issuer.count(counted),
            None => drop(self.unknown_count.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Returns the counters of the issuers, and of unknown issuers.
    pub(crate) fn status(&self) -> Vec<OidcStatus> {
        let unknown = OidcStatus {
            issuer: UNKNOWN.to_owned(),
            refused_count: self.unknown_count.load(Ordering::Relaxed),
            ..OidcStatus::default()
        };
        let now = Instant::now();
        let known = self.issuers.iter().map(|issuer| issuer.status(now));
        known.chain([unknown]).collect()
    }
}

/// Returns the token that a rule gives.
fn granted(at: usize, issuer: &Issuer, rule: &IssuerRule, claims: &Claims) -> Granted {
    let name = format!("{OIDC_PREFIX}{}:{}", issuer.settings.name, job(claims));
    let lifetime = i64::try_from(rule.lifetime.as_secs());
    Granted {
        token: NewToken {
            name,
            cache: rule.cache.clone(),
            names: rule.names.clone(),
            rights: rule.rights,
            expires_at: None,
        },
        lifetime_s: lifetime.unwrap_or_default(),
        issuer: at,
    }
}

/// Returns the name of the job that has a token, without blanks and characters that shells or
/// terminals interpret.
fn job(claims: &Claims) -> String {
    let pair = JOBS.iter().find_map(|(project, job)| {
        Some(format!("{}:{}", claims.text(project)?, claims.text(job)?))
    });
    let name = pair.or_else(|| Some(claims.text("sub")?.into_owned()));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/:@+=,".contains(c);
    let plain = |c: char| if is_plain(c) { c } else { '_' };
    let name = name.unwrap_or_default();
    name.chars().take(SUBJECT_LEN_MAX).map(plain).collect()
}

/// Returns the claim `sub` for messages.
fn subject(claims: &Claims) -> String {
    let subject = claims.text("sub").unwrap_or_default();
    subject.chars().take(SUBJECT_LEN_MAX).collect()
}

/// Returns whether a pattern for caches, which may be missing, matches a cache.
fn covers(pattern: Option<&Glob>, cache: &str) -> bool {
    pattern.is_none_or(|pattern| pattern.matches(cache))
}
