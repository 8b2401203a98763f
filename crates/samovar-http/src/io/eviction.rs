//! Eviction: closing connections for new ones at the connection limit.
//!
//! # Theory of operation
//!
//! A client that opens connections and leaves them idle must not lock out others. At the connection
//! limit, a connection that waits for its peer is closed for the new one. To choose it, the
//! connections of each address are numbered from 0: busy ones first, then slow ones, then idle
//! ones, the longest idle last. The connection with the highest number is closed first. So the
//! address with most connections loses one first; among equal numbers, the connection that waits
//! longest. WebSockets, and connections that a worker has, are never evicted.
//!
//! A search of all connections takes about a millisecond. One search finds many candidates, each of
//! which is checked again before it is evicted. After a search that finds few, the next search
//! waits for [`SEARCH_TIME`].

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use super::link::Link;
use super::slab::Slab;
use crate::conn::{Conn, Stage};
use crate::limits::{Limits, SLOW_FACTOR};
use crate::net::key::Key;
use crate::proto::conn::Phase;

/// Maximum number of candidates kept from a search.
const FOUND_MAX: usize = 1024;
/// Minimum yield of a search: if it finds at most one candidate per this number of connections, the
/// next search must wait for [`SEARCH_TIME`].
const WORTH_A_SEARCH: usize = 16;
/// Minimum time between two searches if the first has found few candidates.
const SEARCH_TIME: Duration = Duration::from_millis(20);

/// The candidates for eviction that the last search has found.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    /// Candidates in reverse order: the last one is evicted first.
    found: Vec<Key>,
    /// Time of the last search if it found few candidates; otherwise `None`.
    searched: Option<Instant>,
}

/// The party that a connection waits for. The order of the variants is the order in which the
/// connections of an address are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wait {
    /// Waits for the server; never evicted.
    Busy,
    /// Waits for its peer, which sends a request or reads a response slowly.
    Slow,
    /// Waits for a request, or for the rest of a head: idle.
    AtRest,
}

/// A connection that could be evicted at the time of the search.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    address: u128,
    wait: Wait,
    since: Instant,
    key: Key,
}

impl Eviction {
    /// Returns the next candidate for eviction, which may have changed since the search; `None` if
    /// none is left.
    pub(super) fn pop(&mut self) -> Option<Key> {
        self.found.pop()
    }

    /// Returns whether a recent search has found few candidates.
    pub(super) fn is_futile(&self, now: Instant) -> bool {
        let since = |at| now.saturating_duration_since(at);
        self.searched.is_some_and(|at| since(at) < SEARCH_TIME)
    }

    /// Searches all connections; returns `false` if none may be evicted.
    pub(super) fn search(&mut self, slab: &Slab, limits: &Limits, now: Instant) -> bool {
        let mut keys = Vec::new();
        slab.keys_here(&mut keys);
        let candidates = keys.iter().filter_map(|key| candidate(slab, *key, limits));
        self.found = evictable(candidates.collect(), now, limits.rest_time_min);
        let is_worth_it = self.found.len() > keys.len() / WORTH_A_SEARCH;
        self.searched = (!is_worth_it).then_some(now);
        !self.found.is_empty()
    }
}

/// Returns whether a candidate may still be evicted.
pub(super) fn is_evictable(slab: &Slab, key: Key, limits: &Limits) -> bool {
    candidate(slab, key, limits).is_some_and(|candidate| candidate.wait != Wait::Busy)
}

fn candidate(slab: &Slab, key: Key, limits: &Limits) -> Option<Candidate> {
    let (peer, wait, since) = match slab.peek(key)? {
        Link::Http1(conn) => (conn.peer, wait_of(conn, limits.stall_len_min), conn.since),
        Link::Ws(_) => return None,
        Link::H2(conn) => {
            let wait = match conn.session.stream_count() {
                0 => Wait::AtRest,
                _ => Wait::Busy,
            };
            (conn.peer, wait, conn.since)
        }
    };
    Some(Candidate {
        address: peer.network(),
        wait,
        since,
        key,
    })
}

/// Returns the party that an HTTP/1 connection waits for.
pub(super) fn wait_of(conn: &Conn, stall_len_min: u64) -> Wait {
    if conn.stage() == Stage::Waiting || conn.readable && !conn.is_sending() {
        return Wait::Busy;
    }
    let is_sending = conn.is_sending() && conn.stage() != Stage::Lingering;
    if is_sending || conn.proto.phase() == Phase::Body {
        return if conn.moved_len < stall_len_min {
            Wait::Slow
        } else {
            Wait::Busy
        };
    }
    Wait::AtRest
}

/// Returns the connections that may be evicted, in reverse order of eviction.
fn evictable(mut candidates: Vec<Candidate>, now: Instant, rest_time_min: Duration) -> Vec<Key> {
    let half = candidates.len() / 2;
    candidates.sort_unstable_by_key(|one| (one.address, one.wait, Reverse(one.since)));
    let mut found = Vec::new();
    let (mut address, mut number) = (None, 0);
    for one in candidates {
        number = if address == Some(one.address) {
            number + 1
        } else {
            0
        };
        address = Some(one.address);
        let waited = now.saturating_duration_since(one.since);
        let may_evict = match one.wait {
            Wait::Busy => false,
            Wait::Slow => waited >= rest_time_min.saturating_mul(SLOW_FACTOR),
            // If an address has more than half of the candidates, the idle ones that exceed that
            // half may be evicted without waiting for `rest_time_min`.
            Wait::AtRest => {
                waited >= rest_time_min || number > half && rest_time_min < Duration::MAX
            }
        };
        if may_evict {
            found.push((number, Reverse(one.since), one.key));
        }
    }
    found.sort_unstable_by_key(|(number, since, _)| (*number, *since));
    let surplus = found.len().saturating_sub(FOUND_MAX);
    found.drain(..surplus);
    found.into_iter().map(|(.., key)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the order of eviction of connections, each given as address, kind of wait, and
    /// duration of the wait in milliseconds.
    fn order(all: &[(u128, Wait, u64)]) -> Vec<usize> {
        let start = Instant::now();
        let now = start + Duration::from_secs(100);
        let candidates = all
            .iter()
            .zip(0..)
            .map(|((address, wait, ms), index)| Candidate {
                address: *address,
                wait: *wait,
                since: now - Duration::from_millis(*ms),
                key: Key::from_bits(index),
            });
        let found = evictable(candidates.collect(), now, SECOND);
        let index = |key: Key| usize::try_from(key.to_bits()).unwrap();
        found.into_iter().rev().map(index).collect()
    }

    #[test]
    fn the_address_with_most_goes_first_and_then_the_longest_idle() {
        use Wait::{AtRest, Busy, Slow};
        // With equal numbers per address, the longest idle goes first; a connection that has just
        // become idle stays.
        assert_eq!(
            order(&[
                (1, AtRest, 1000),
                (2, AtRest, 3000),
                (3, AtRest, 999),
                (4, AtRest, 2000)
            ]),
            [1, 3, 0]
        );
        // The address with most connections loses some until all addresses have the same number.
        assert_eq!(
            order(&[
                (1, AtRest, 9000),
                (2, AtRest, 1000),
                (2, AtRest, 2000),
                (2, AtRest, 3000)
            ]),
            [3, 2, 0, 1]
        );
        // Busy connections count towards their address, but are never evicted.
        assert_eq!(
            order(&[(1, AtRest, 9000), (2, Busy, 9000), (2, AtRest, 1000)]),
            [2, 0]
        );
        // Slow connections are evicted after idle ones, and only after a longer wait.
        assert_eq!(
            order(&[(2, Slow, 6000), (2, AtRest, 1000), (2, Slow, 4999)]),
            [1, 0]
        );
        // An address with more than half of all connections loses idle ones at once, until it has
        // half of them.
        assert_eq!(
            order(&[
                (1, AtRest, 1),
                (2, AtRest, 1),
                (2, AtRest, 2),
                (2, AtRest, 3)
            ]),
            [] as [usize; 0]
        );
        assert_eq!(
            order(&[
                (2, AtRest, 1),
                (2, AtRest, 2),
                (2, AtRest, 3),
                (2, AtRest, 4)
            ]),
            [3]
        );
    }

    #[test]
    fn a_search_keeps_the_first_candidates() {
        let all: Vec<_> = (0..3000)
            .map(|index| (1, Wait::AtRest, 1000 + index))
            .collect();
        let found = order(&all);
        assert_eq!(found.len(), FOUND_MAX);
        assert!(found.into_iter().eq((1976..3000).rev()));
    }
}
