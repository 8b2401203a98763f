//! [`LooseBytes`]: counts the bytes of files that were sent with a token and that no path uses.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::StorageError;
use crate::metadata::{NewNar, OWN_LEN};
use crate::objects::Placed;
use crate::receive::PutError;
use crate::receive::Refusal;
use crate::token::Token;

/// A verified NAR whose file was placed and synced.
#[derive(Debug)]
pub(crate) struct NarOfToken {
    /// The id of the token with which it was uploaded, `None` if an upstream cache has sent it, and
    /// the NAR.
    pub(crate) new: (Option<i64>, NewNar),
    pub(crate) file: Placed,
    pub(crate) _in_flight: Option<InFlight>,
}

impl NarOfToken {
    /// Returns the NAR to record, with the place of its file.
    pub(crate) fn to_record(&self) -> Cow<'_, (Option<i64>, NewNar)> {
        match self.file.pack() {
            None => Cow::Borrowed(&self.new),
            Some(place) => {
                let (token, mut new) = self.new.clone();
                new.pack = Some(place.clone());
                Cow::Owned((token, new))
            }
        }
    }
}

/// Upper bounds, by token id, of the total length of the token's files that no path uses.
#[derive(Debug, Default)]
pub(crate) struct LooseBytes(Mutex<HashMap<i64, Bound>>);

#[derive(Debug, Clone, Copy)]
struct Bound {
    /// The bound in bytes, files in flight included.
    len: u64,
    /// Total length of the files that are counted, but perhaps not recorded yet; bytes.
    in_flight: u64,
}

/// A file that is counted. Drop this after the file was recorded.
#[derive(Debug)]
pub(crate) struct InFlight {
    bytes: Arc<LooseBytes>,
    token: i64,
    len: u64,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(bound) = self.bytes.bounds().get_mut(&self.token) {
            bound.in_flight = bound.in_flight.saturating_sub(self.len);
        }
    }
}

impl LooseBytes {
    /// Counts a file of this length. Refuses it if the total would exceed the limit. `recorded`:
    /// returns the total length of the files that are recorded.
    pub(crate) fn count(
        self: &Arc<Self>,
        token: &Token,
        file_size: u64,
        limit: u64,
        recorded: impl Fn() -> Result<u64, StorageError>,
    ) -> Result<InFlight, PutError> {
        let own = file_size.saturating_add(OWN_LEN);
        // Held until the file is counted: uploads that end at the same time count one by one.
        let mut bounds = self.bounds();
        // Publishing reduces the total, so the bound in memory is exact or too high.
        let bound = match bounds.get(&token.id).copied() {
            Some(bound) if bound.len.saturating_add(own) <= limit => bound,
            known => {
                let in_flight = known.map_or(0, |bound| bound.in_flight);
                let len = recorded()?.saturating_add(in_flight);
                Bound { len, in_flight }
            }
        };
        let used = bound.len.saturating_add(own);
        if used > limit {
            return Err(Refusal::TooManyLoose { used, limit }.into());
        }
        let counted = Bound {
            len: used,
            in_flight: bound.in_flight.saturating_add(own),
        };
        bounds.insert(token.id, counted);
        Ok(InFlight {
            bytes: Arc::clone(self),
            token: token.id,
            len: own,
        })
    }

    fn bounds(&self) -> MutexGuard<'_, HashMap<i64, Bound>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
