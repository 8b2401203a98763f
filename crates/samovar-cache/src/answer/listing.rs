//! Responses with the listing of a NAR.

use std::io;

use samovar_http::http::Status;
use samovar_http::{Batch, Body, Progress, Response, Source};
use samovar_nix::HashPart;
use samovar_store::{ListingReader, Tree};

use crate::known::plans::Plans;
use crate::known::registration::{Collected, Registration};
use crate::reader::Reader;
use crate::refusal::Refusal;

/// Answers `/<hash part>.ls`.
pub(crate) fn respond(reader: &Reader, hash_part: HashPart) -> Result<Response, Refusal> {
    let registration = reader.registration(hash_part)?;
    registration.admit()?;
    let tree = reader.store().tree(&registration.row.path)?;
    let shared = &reader.shared;
    let (listing, len) = listing_of(&shared.plans, &registration, &tree)
        .map_err(|error| shared.unreadable(&registration, &error))?;
    let body = ListingBody {
        reader: listing,
        len,
        left: len,
        registration,
    };
    let response = Response::new(Status::OK, Body::Source(Box::new(body)));
    Ok(response.header("Content-Type", "application/json"))
}

/// Returns the listing, and its length if it is made from a plan.
fn listing_of(
    plans: &Plans,
    registration: &Registration,
    tree: &Tree,
) -> io::Result<(ListingReader, Option<u64>)> {
    Ok(match plans.plan(registration, tree)? {
        Some(plan) => (plan.listing(), Some(plan.listing_len()?)),
        None => (tree.listing(), None),
    })
}

/// The body of a response with a listing.
struct ListingBody {
    reader: ListingReader,
    /// Length of the listing in bytes; `None` unless the listing is made from a plan, which is
    /// valid for the registration.
    len: Option<u64>,
    left: Option<u64>,
    registration: Registration,
}

impl ListingBody {
    fn fill(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        while batch.room_len() > 0 {
            let filled = self.reader.fill(batch.room())?;
            batch.advance(filled);
            self.left = self.left.map(|left| left.saturating_sub(filled as u64));
            if filled == 0 || self.left == Some(0) {
                return self.end();
            }
        }
        Ok(Progress::More)
    }

    fn end(&self) -> io::Result<Progress> {
        // A client cannot verify a listing by a hash, so check that it belongs to the registration.
        if self.len.is_none() && self.registration.is_current() != Ok(true) {
            return Err(Collected.into());
        }
        Ok(Progress::End)
    }
}

impl Source for ListingBody {
    fn len(&self) -> Option<u64> {
        self.len
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        self.fill(batch)
            .inspect_err(|error| self.registration.report(error))
    }
}
