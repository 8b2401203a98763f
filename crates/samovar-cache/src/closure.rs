//! `GET /closure/<hash part>`: the narinfos of all that a path needs.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | paths | 1,000,000 | eight seconds of a worker; no system comes near it |
//! | closures worked out at once | 4 | the workers are there for others too |
//! | paths of one that is not counted | 1,000 | ten milliseconds: less than asking again |

use std::sync::atomic::{AtomicUsize, Ordering};

use samovar_http::Response;
use samovar_http::http::Status;
use samovar_nix::HashPart;
use samovar_store::{Closure, Member, StoreError};

use crate::cache::Cache;
use crate::observer::Event;
use crate::refusal::{Fixed, Refusal};
use crate::under_way::Wanted;

/// Paths that a closure may have.
const COUNT_MAX: usize = 1_000_000;

/// Paths up to which a closure is worked out whatever else is.
const SMALL_COUNT_MAX: usize = 1000;

/// Members that are looked at together.
const STEP_COUNT: usize = 256;

/// Larger ones worked out at once.
const AT_ONCE_MAX: usize = 4;

/// How many large closures are being worked out.
#[derive(Debug, Default)]
pub(crate) struct Closures {
    count: AtomicUsize,
}

struct Place<'a>(&'a Closures);

impl Closures {
    fn place(&self) -> Option<Place<'_>> {
        let before = self.count.fetch_add(1, Ordering::AcqRel);
        // Counted, so given back by dropping.
        let place = Place(self);
        (before < AT_ONCE_MAX).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Cache {
    pub(crate) fn closure(&self, hash_part: HashPart) -> Result<Response, Refusal> {
        let is_open = self.narinfos.policy.is_open();
        if !is_open {
            self.readable(hash_part)?;
        }
        if self.origin.holds.is_on() {
            // All that it needs is held with it. What is wrong with it is said below.
            let _held = self.narinfos.one(hash_part);
        }
        let mut closure = self.origin.store.closure(hash_part, SMALL_COUNT_MAX)?;
        self.origin.recovered();
        if closure == Some(Closure::TooLarge) {
            let Some(_place) = self.origin.closures.place() else {
                self.origin.observer.event(&Event::BulkLimitReached);
                return Ok(Fixed::Busy.response());
            };
            closure = self.origin.store.closure(hash_part, COUNT_MAX)?;
        }
        let members = match closure {
            None => return Err(Refusal::Absent),
            Some(Closure::TooLarge) => {
                let text = format!("The closure has more than {COUNT_MAX} paths.\n");
                return Ok(Response::text(Status::UNPROCESSABLE_CONTENT, text));
            }
            Some(Closure::Incomplete) => return Ok(Fixed::Incomplete.response()),
            Some(Closure::Members(members)) => members,
        };
        for member in &members {
            if self.origin.health.is_marked(&member.hash_part)
                && let Some(registration) = self.origin.registration(member.hash_part)?
                && let Err(refusal) = registration.admit()
            {
                if member.hash_part == hash_part {
                    return Err(refusal);
                }
                self.origin.report(&member.hash_part, refusal);
                return Ok(Fixed::Incomplete.response());
            }
        }
        if !is_open && !self.may_read_all(&members)? {
            return Ok(Fixed::Incomplete.response());
        }
        Ok(self.many(Wanted::Closure(members)))
    }

    /// Whether all these may be read here; a path whose row makes no sense may not.
    pub(crate) fn may_read_all(&self, members: &[Member]) -> Result<bool, StoreError> {
        for some in members.chunks(STEP_COUNT) {
            let hash_parts: Vec<HashPart> = some.iter().map(|member| member.hash_part).collect();
            let answers = self.narinfos.many(&hash_parts, false)?;
            if !answers.iter().all(Result::is_ok) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let closures = Closures::default();
        for _ in 0..2 {
            let places: Vec<_> = (0..AT_ONCE_MAX).filter_map(|_| closures.place()).collect();
            assert_eq!(places.len(), AT_ONCE_MAX);
            assert!(closures.place().is_none());
            assert!(closures.place().is_none());
        }
    }
}
