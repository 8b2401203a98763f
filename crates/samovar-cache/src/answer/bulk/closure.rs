//! `GET /closure/<hash part>`: the narinfos of a path's closure.

use std::sync::Arc;

use samovar_http::Response;
use samovar_http::http::Status;
use samovar_metrics::Event;
use samovar_nix::HashPart;
use samovar_store::Closure;

use crate::answer::bulk;
use crate::known::row::Row;
use crate::known::shared_store::SharedStore;
use crate::narinfo::narinfos::Narinfos;
use crate::refusal::{Fixed, Refusal, text_response};

/// Maximum number of paths in a closure. Computing one of this size takes a worker eight seconds;
/// no known system is as large.
const COUNT_MAX: usize = 1_000_000;

/// Maximum number of paths in a closure that is computed without a slot. Computing one of this size
/// takes ten milliseconds, less than a retry of the client would take.
pub(crate) const SMALL_COUNT_MAX: usize = 1000;

/// Answers `/closure/<hash part>`.
pub(crate) fn respond(narinfos: &Arc<Narinfos>, hash_part: HashPart) -> Result<Response, Refusal> {
    let reader = &narinfos.reader;
    let shared = &reader.shared;
    let is_open = reader.policy.is_open();
    if !is_open {
        reader.readable(hash_part)?;
    }
    if shared.leases.is_on() {
        // A lease of this path also protects its closure. Errors are ignored here, because they
        // occur again below.
        let _leased = narinfos.one(hash_part);
    }
    let mut closure = shared.store.closure(hash_part, SMALL_COUNT_MAX)?;
    shared.recovered();
    if closure == Some(Closure::TooLarge) {
        let Some(_slot) = shared.closure_slots.try_acquire() else {
            return Ok(no_slot(shared));
        };
        closure = shared.store.closure(hash_part, COUNT_MAX)?;
    }
    let members = match closure {
        None => return Err(Refusal::Absent),
        Some(Closure::TooLarge) => return Ok(too_large(COUNT_MAX)),
        Some(Closure::Incomplete) => return Ok(Fixed::Incomplete.response()),
        Some(Closure::Members(members)) => members,
    };
    for member in &members {
        if !shared.health.is_marked(&member.hash_part) {
            continue;
        }
        // The epoch must not be newer than the row.
        let epoch = shared.refresh().map(|snapshot| snapshot.epoch);
        if let Some(info) = shared.lookup(member.hash_part)?
            && let Err(refusal) = shared.health.admit(&Row::from(&info), epoch)
        {
            if member.hash_part == hash_part {
                return Err(refusal);
            }
            shared.report(&member.hash_part, refusal);
            return Ok(Fixed::Incomplete.response());
        }
    }
    if !is_open && !narinfos.are_readable(&members)? {
        return Ok(Fixed::Incomplete.response());
    }
    Ok(bulk::many(narinfos, members, true, None))
}

/// Returns the response if too many closures are being computed.
pub(crate) fn no_slot(shared: &SharedStore) -> Response {
    shared.observer.event(&Event::BulkLimitReached);
    Fixed::Busy.response()
}

/// Returns the response for a closure with more than `count_max` paths.
pub(crate) fn too_large(count_max: usize) -> Response {
    let text = format!("The closure has more than {count_max} paths.\n");
    text_response(Status::UNPROCESSABLE_CONTENT, text)
}
