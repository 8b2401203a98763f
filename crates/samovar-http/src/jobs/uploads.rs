//! Uploads whose handlers wait for their clients, and the choice of the upload that is refused to
//! make room.
//!
//! # Theory of operation
//!
//! A handler that waits for the rest of a request body has lent its worker slot, and occupies one
//! of [`Limits::waiting_handlers_max`] *places*. A client that sends just fast enough could occupy
//! all places. So if no place is free for a new upload, the address with the most places loses its
//! slowest upload, provided that this address has more than half of all places, or would then still
//! have more places than the address of the new upload. An upload is judged by its mean speed, and
//! only after it has waited for five times [`Limits::rest_time_min`]. But an address could start
//! all its uploads anew before that time. So if it has more than half of all places and none of its
//! uploads has waited that long, it loses its slowest one to an upload of another address anyway.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::client::Peer;
use crate::limits::{Limits, SLOW_FACTOR};
use crate::sync::Lock;

/// All uploads that have waited for their clients, and are not over.
#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<Vec<Arc<Upload>>>);

/// An upload.
#[derive(Debug)]
pub(crate) struct Upload {
    peer: Peer,
    /// Whether the handler waits and has lent its slot, so that it occupies a place.
    is_waiting: AtomicBool,
    /// Whether the upload must make room for another one.
    is_cut: AtomicBool,
    /// Number of bytes received.
    moved_len: AtomicU64,
    /// Time spent waiting, in microseconds: many waits are shorter than a millisecond.
    waited_us: AtomicU64,
}

/// An upload in the list of all, removed when dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    all: Arc<Uploads>,
    upload: Arc<Upload>,
}

impl Uploads {
    /// Adds an upload.
    pub(crate) fn add(self: &Arc<Self>, peer: Peer) -> Listed {
        let upload = Arc::new(Upload {
            peer,
            is_waiting: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            moved_len: AtomicU64::new(0),
            waited_us: AtomicU64::new(0),
        });
        self.0.locked().push(Arc::clone(&upload));
        let all = Arc::clone(self);
        Listed { all, upload }
    }

    /// Makes an upload end to free its place for an upload of `peer`; returns its client. Returns
    /// `None` if no upload must make room.
    pub(crate) fn make_room(&self, peer: Peer, limits: &Limits) -> Option<Peer> {
        let uploads = self.0.locked();
        let waiting = || uploads.iter().filter(|upload| upload.occupies_place());
        let mut counts: HashMap<u128, usize> = HashMap::new();
        for upload in waiting() {
            *counts.entry(upload.peer.network()).or_default() += 1;
        }
        let own_count = counts.get(&peer.network()).copied().unwrap_or(0);
        let (crowd, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let has_most = count > limits.waiting_handlers_max / 2;
        if !has_most && count <= own_count + 1 {
            return None;
        }
        let rest_time = limits.rest_time_min.saturating_mul(SLOW_FACTOR);
        let needs_rest =
            !has_most || peer.network() == crowd || limits.rest_time_min == Duration::MAX;
        let slowest = waiting()
            .filter(|upload| upload.peer.network() == crowd)
            .filter(|upload| !needs_rest || upload.waited() >= rest_time)
            .min_by_key(|upload| {
                let waited = upload.waited();
                (waited < rest_time, upload.speed(), Reverse(waited))
            })?;
        slowest.is_cut.store(true, Ordering::Release);
        Some(slowest.peer)
    }
}

impl Upload {
    fn occupies_place(&self) -> bool {
        self.is_waiting.load(Ordering::Relaxed) && !self.is_cut.load(Ordering::Relaxed)
    }

    fn waited(&self) -> Duration {
        Duration::from_micros(self.waited_us.load(Ordering::Relaxed))
    }

    /// Returns the mean speed, in bytes per second of waiting.
    fn speed(&self) -> u64 {
        let moved_len = self.moved_len.load(Ordering::Relaxed);
        moved_len.saturating_mul(1_000_000) / self.waited_us.load(Ordering::Relaxed).max(1)
    }
}

impl Listed {
    pub(crate) fn moved(&self, len: usize) {
        self.upload
            .moved_len
            .fetch_add(len as u64, Ordering::Relaxed);
    }

    pub(crate) fn waited(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.upload.waited_us.fetch_add(us, Ordering::Relaxed);
    }

    pub(crate) fn set_waiting(&self, is_waiting: bool) {
        self.upload.is_waiting.store(is_waiting, Ordering::Relaxed);
    }

    /// Returns whether the upload must make room for another one.
    pub(crate) fn is_cut(&self) -> bool {
        self.upload.is_cut.load(Ordering::Acquire)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut all = self.all.0.locked();
        if let Some(at) = all.iter().position(|one| Arc::ptr_eq(one, &self.upload)) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::Tcp(format!("{address}:1").parse().unwrap())
    }

    /// Adds a waiting upload that has moved `len` bytes in `seconds`.
    fn add(uploads: &Arc<Uploads>, address: &str, len: usize, seconds: u64) -> Listed {
        let listed = uploads.add(peer(address));
        listed.moved(len);
        listed.waited(Duration::from_secs(seconds));
        listed.set_waiting(true);
        listed
    }

    #[test]
    fn the_address_with_more_than_its_share_loses_its_slowest() {
        let limits = Limits {
            waiting_handlers_max: 4,
            ..Limits::default()
        };
        let uploads = Arc::<Uploads>::default();
        let room_for = |address| uploads.make_room(peer(address), &limits);
        assert_eq!(room_for("9.9.9.9"), None);
        let mut crowd: Vec<_> = (1..=3)
            .map(|n| add(&uploads, "1.1.1.1", 1000 * n, 10))
            .collect();
        let other = add(&uploads, "2.2.2.2", 1, 10);
        assert_eq!(room_for("9.9.9.9"), Some(peer("1.1.1.1")));
        assert!(crowd[0].is_cut() && !crowd[1].is_cut() && !crowd[2].is_cut());
        // An address that holds two of four places loses one only to an address that would still
        // hold fewer.
        assert_eq!(room_for("2.2.2.2"), None);
        assert_eq!(room_for("9.9.9.9"), Some(peer("1.1.1.1")));
        assert!(crowd[1].is_cut() && !crowd[2].is_cut() && !other.is_cut());
        assert_eq!(room_for("9.9.9.9"), None);
        // An address that holds more than half of the places loses one to any new upload, even to
        // its own.
        crowd.extend((0..2).map(|_| add(&uploads, "1.1.1.1", 0, 10)));
        assert_eq!(room_for("1.1.1.1"), Some(peer("1.1.1.1")));
        assert!(!crowd[2].is_cut());
    }

    #[test]
    fn an_address_with_most_places_loses_new_uploads_to_other_addresses() {
        let mut limits = Limits {
            waiting_handlers_max: 4,
            ..Limits::default()
        };
        let uploads = Arc::<Uploads>::default();
        let crowd = [(20, 4), (4, 4), (45, 5), (3, 3)];
        let crowd = crowd.map(|(len, seconds)| add(&uploads, "1.1.1.1", len, seconds));
        let cut = || crowd.each_ref().map(Listed::is_cut);
        let room_for = |address, limits: &_| uploads.make_room(peer(address), limits);
        // One that has waited for long comes first.
        assert_eq!(room_for("1.1.1.1", &limits), Some(peer("1.1.1.1")));
        assert_eq!(cut(), [false, false, true, false]);
        // No other one makes room for an upload of its own address.
        assert_eq!(room_for("1.1.1.1", &limits), None);
        limits.rest_time_min = Duration::MAX;
        assert_eq!(room_for("9.9.9.9", &limits), None);
        limits.rest_time_min = Duration::from_secs(1);
        // Of the slowest, the one that has waited longer.
        assert_eq!(room_for("9.9.9.9", &limits), Some(peer("1.1.1.1")));
        assert_eq!(cut(), [false, true, true, false]);
        // Half of the places are left, which it keeps.
        assert_eq!(room_for("9.9.9.9", &limits), None);
        assert_eq!(cut(), [false, true, true, false]);
    }

    #[test]
    fn short_waits_add_up() {
        let uploads = Arc::<Uploads>::default();
        let listed = add(&uploads, "1.1.1.1", 0, 0);
        for _ in 0..2000 {
            listed.waited(Duration::from_micros(500));
        }
        assert_eq!(listed.upload.waited(), Duration::from_secs(1));
    }

    #[test]
    fn an_upload_is_judged_only_after_some_time_and_while_it_waits() {
        let limits = Limits {
            waiting_handlers_max: 6,
            ..Limits::default()
        };
        let uploads = Arc::<Uploads>::default();
        let room = || uploads.make_room(peer("9.9.9.9"), &limits);
        let new: Vec<_> = (0..2).map(|_| add(&uploads, "1.1.1.1", 0, 4)).collect();
        assert_eq!(room(), None);
        new[0].waited(Duration::from_secs(1));
        new[0].set_waiting(false);
        assert_eq!(room(), None);
        let third = add(&uploads, "1.1.1.1", 0, 4);
        assert_eq!(room(), None);
        new[0].set_waiting(true);
        assert_eq!(room(), Some(peer("1.1.1.1")));
        assert!(new[0].is_cut() && !new[1].is_cut() && !third.is_cut());
        drop((new, third));
        assert!(uploads.0.locked().is_empty());
    }
}
