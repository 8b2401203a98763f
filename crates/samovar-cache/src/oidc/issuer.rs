//! [`Issuer`]: one issuer with its rules, keys and counters.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use samovar_client::http::Http;
use samovar_metrics::OidcStatus;
use samovar_oidc::claims::Claims;
use samovar_oidc::id_token::IdToken;

use super::keys::KeyCache;
use super::settings::{IssuerRule, IssuerSettings};
use super::{Denial, covers, fetch, subject};

/// An issuer.
#[derive(Debug)]
pub(super) struct Issuer {
    pub(super) settings: IssuerSettings,
    source: Arc<Source>,
}

/// What is kept of an issuer when its rules change.
#[derive(Debug)]
struct Source {
    name: String,
    url: String,
    ca_file: Option<PathBuf>,
    http: Http,
    keys: KeyCache,
    counts: [AtomicU64; 3],
}

/// The outcome of an exchange.
#[derive(Debug, Clone, Copy)]
pub(super) enum Counted {
    Granted,
    Refused,
    Unavailable,
}

impl Issuer {
    /// Prepares an issuer. `before`: the issuers that are replaced.
    pub(super) fn new(settings: &IssuerSettings, before: &[Self]) -> Result<Self, String> {
        let same = before.iter().map(|before| &before.source).find(|source| {
            (&source.name, &source.url, &source.ca_file)
                == (&settings.name, &settings.issuer, &settings.ca_file)
        });
        let source = match same {
            Some(same) => Arc::clone(same),
            None => {
                let name = settings.name.clone();
                let http = fetch::client(settings)
                    .map_err(|reason| format!("the OIDC issuer {name:?}: {reason}"))?;
                Arc::new(Source {
                    name,
                    url: settings.issuer.clone(),
                    ca_file: settings.ca_file.clone(),
                    http,
                    keys: KeyCache::default(),
                    counts: Default::default(),
                })
            }
        };
        Ok(Self {
            settings: settings.clone(),
            source,
        })
    }

    /// Verifies a token of this issuer. May wait for its keys. `now`: in seconds since 1970.
    pub(super) fn verify(&self, token: IdToken<'_>, now: i64) -> Result<Claims, Denial> {
        let source = &self.source;
        let fetch = || {
            let source = Arc::clone(source);
            let thread = std::thread::Builder::new().name("oidc-keys".to_owned());
            let started = thread.spawn(move || {
                let keys = source.keys.fetching();
                keys.fetched(fetch::fetch(&source.http, &source.url).map(|answer| answer.keys));
            });
            started.map(drop)
        };
        let keys = source.keys.find(token.key_id(), Instant::now(), fetch);
        let keys = keys.map_err(|reason| Denial::Unavailable { reason })?;
        let (issuer, audience) = (&self.settings.issuer, &self.settings.audience);
        let verified = token.verify(&keys, issuer, audience, now);
        verified.map_err(Denial::Invalid)
    }

    /// Finds the rule that admits a verified token to a cache.
    pub(super) fn rule(&self, claims: &Claims, cache: &str) -> Result<&IssuerRule, Denial> {
        let mut reasons = Vec::new();
        for (number, rule) in (1..).zip(&self.settings.rules) {
            let reason = match rule.conditions.check(claims) {
                Ok(()) if covers(rule.cache.as_ref(), cache) => return Ok(rule),
                Ok(()) => "is for other caches".to_owned(),
                Err(mismatch) => match mismatch.is_absent {
                    true => format!("needs the claim {:?} as a text", mismatch.claim),
                    false => format!("does not match the claim {:?}", mismatch.claim),
                },
            };
            reasons.push(format!("rule {number} {reason}"));
        }
        Err(Denial::NoRule {
            text: format!(
                "no rule of the issuer {:?} admits this ID token: {}; ask the operator of the \
                 cache",
                self.settings.name,
                reasons.join(", ")
            ),
            subject: subject(claims),
        })
    }

    pub(super) fn count(&self, outcome: Counted) {
        if let Some(count) = self.source.counts.get(outcome as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn status(&self, now: Instant) -> OidcStatus {
        let [granted, refused, unavailable] = &self.source.counts;
        OidcStatus {
            issuer: self.settings.name.clone(),
            granted_count: granted.load(Ordering::Relaxed),
            refused_count: refused.load(Ordering::Relaxed),
            unavailable_count: unavailable.load(Ordering::Relaxed),
            keys_age_s: self.source.keys.age(now).map(|age| age.as_secs()),
        }
    }
}
