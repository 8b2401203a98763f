//! Who may read a cache: what workers find out about that, and the responses to those who may not.

use std::time::Instant;

use samovar_http::{Head, Response};
use samovar_metrics::Event;
use samovar_storage::StoredCache;

use crate::access::{self, Access, Verdict};
use crate::pages;
use crate::route::Route;
use crate::site::cache::Cache;
use crate::upload::{self, Context};

impl Cache {
    /// Whether a worker must verify a password or a token before this request can be decided.
    pub(crate) fn may_still_refuse(&self, head: Head<'_>) -> bool {
        let verdict = self
            .guard()
            .map(|access| access.evaluate(head, Instant::now()));
        match verdict {
            Some(Verdict::Unverified) => true,
            Some(Verdict::Refused(access::Refusal::Denied)) => {
                let path = self.below_prefix(head.path()).unwrap_or_default();
                self.may_admit_token(head, &self.route(path, head.query()))
            }
            _ => false,
        }
    }

    /// Whether the request has a token or an ID token, by which a worker may admit it.
    pub(super) fn may_admit_token(&self, head: Head<'_>, route: &Route) -> bool {
        self.uploads().is_some() && (upload::has_token(head) || upload::has_id_token(head, route))
    }

    /// Whether a token or an ID token admits the request to a cache that is not public. May wait
    /// for the issuer of an ID token.
    pub(super) fn admits_token(&self, head: Head<'_>, route: &Route) -> bool {
        self.uploads().is_some_and(|stored| {
            upload::admits(stored, head, route)
                || upload::exchanges(&self.context_of(stored, head), head, route)
        })
    }

    /// Returns the parts of this cache that an upload needs, with the address of its client.
    pub(super) fn context_of<'a>(&'a self, stored: &'a StoredCache, head: Head<'_>) -> Context<'a> {
        Context {
            address: upload::address(self.access.as_ref(), head),
            ..self.context(stored)
        }
    }

    /// Whether [`upload`] decides about the access of the request, because it needs a token also in
    /// a public cache. It asks clients for a token, and so would show that a hidden cache exists.
    pub(super) fn asks_for_token(&self, access: &Access, head: Head<'_>, route: &Route) -> bool {
        self.uploads().is_some() && !access.is_hiding() && upload::needs_token(head.method(), route)
    }

    /// Checks access on a worker. `Ok`: the client may read. The error is the response to send: a
    /// refusal (`None` if the cache is hidden), or a requeue because a password was verified just
    /// now.
    pub(super) fn ask(
        &self,
        access: &Access,
        head: Head<'_>,
        route: &Route,
    ) -> Result<(), Option<Response>> {
        let now = Instant::now();
        let verdict = match access.evaluate(head, now) {
            Verdict::Granted => return Ok(()),
            Verdict::Unverified => access.authenticate(head, now),
            refused @ Verdict::Refused(_) => refused,
        };
        let observer = &self.reader().shared.observer;
        Err(match verdict {
            Verdict::Granted => {
                observer.event(&Event::PasswordVerified);
                Some(match upload::reads_files(self.uploads(), route) {
                    _ if self.may_write(head, route) => Response::requeue_writing(),
                    true => Response::requeue_slow(),
                    false => Response::requeue(),
                })
            }
            Verdict::Refused(refusal) => {
                observer.event(&refusal.event());
                let fault = self
                    .uploads()
                    .and_then(|stored| upload::denial(stored, head));
                match self.sign_in(access, refusal, head) {
                    Some(page) if fault.is_none() => Some(page),
                    _ => access.refused_because(refusal, fault.as_ref()),
                }
            }
            // Unreachable: `authenticate` never returns `Unverified`.
            Verdict::Unverified => access.refused(access::Refusal::Denied),
        })
    }

    /// Returns the page for a browser that must send credentials; `None` for other clients, and if
    /// the cache does not ask for credentials.
    pub(super) fn sign_in(
        &self,
        access: &Access,
        refusal: access::Refusal,
        head: Head<'_>,
    ) -> Option<Response> {
        let is_asked = refusal == access::Refusal::Denied && self.pages.is_some();
        let challenge = access.challenge().filter(|_| is_asked)?;
        pages::wants_page(head).then(|| pages::sign_in(challenge))
    }

    /// Whether the client may read without the rights of a token for uploads.
    pub(super) fn lets_read(&self, head: Head<'_>) -> bool {
        let verdict = self
            .guard()
            .map(|access| access.evaluate(head, Instant::now()));
        matches!(verdict, None | Some(Verdict::Granted))
    }
}
