//! Room for new connections, once there are as many as may be.
//!
//! # Theory of operation
//!
//! Whoever opens connections and leaves them alone must not keep everybody else out. At the limit,
//! a connection that waits for its peer gives way to the new one. Which one: connections are
//! numbered by address, those at rest behind those under way and the longest at rest last; the
//! highest number goes first, so whoever has most loses first, and where all have as many, whoever
//! has rested for longest. Connections that a worker has are not touched, nor are WebSockets.
//!
//! To look at all connections takes a millisecond or so. One look finds many that may go, which are
//! looked at again when it is their turn. A look that finds few is not repeated for [`LOOK_TIME`].

use std::cmp::Reverse;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::conn::Conn;
use super::link::Link;
use super::slab::Key;
use super::thread::IoThread;
use crate::exec;
use crate::head::Peer;
use crate::observer::{End, Incident};
use crate::proto::conn::Phase;
use crate::service::Service;

/// Connections that are found at once.
const FOUND_MAX: usize = 1024;
/// A look at everybody that finds no more than one in so many is not repeated soon.
const WORTH_A_LOOK: usize = 16;
/// How soon it is.
const LOOK_TIME: Duration = Duration::from_millis(20);
/// Before a peer in the middle of a request or an answer counts as one who does nothing: so many
/// times as long as for one at rest.
const UNDER_WAY_FACTOR: u32 = 5;

/// Who may go.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The first to go is the last.
    found: Vec<Key>,
    /// When a look at everybody was not worth it.
    looked_at: Option<Instant>,
}

/// What a connection waits for, in the order in which it has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    /// Not for its peer.
    Busy,
    /// For its peer to go on with a request or an answer, which it does slowly.
    UnderWay,
    /// For a request, or the rest of a head.
    AtRest,
}

/// A connection as it is judged.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    address: u128,
    wait: Wait,
    since: Instant,
    key: Key,
}

impl<S: Service> IoThread<S> {
    /// Closes a connection for a new one, if there is one that may go.
    pub(super) fn make_room(&mut self) -> bool {
        loop {
            let Some(key) = self.room.found.pop() else {
                if !self.look_for_room() {
                    return false;
                }
                continue;
            };
            if self.close_for_room(key) {
                return true;
            }
        }
    }

    /// Finds those who may go; `false` if there are none, or if nobody looked.
    fn look_for_room(&mut self) -> bool {
        let now = self.now;
        let looked_at = self.room.looked_at;
        if looked_at.is_some_and(|at| now.saturating_duration_since(at) < LOOK_TIME) {
            return false;
        }
        // Some have come back and wait to be noticed.
        self.receive(&mut Vec::new());
        let mut keys = Vec::new();
        self.slab.keys_here(&mut keys);
        let candidates = keys.iter().filter_map(|key| self.candidate(*key));
        let rest_time_min = self.shared.limits.rest_time_min;
        self.room.found = who_may_go(candidates.collect(), now, rest_time_min);
        let is_worth_it = self.room.found.len() > keys.len() / WORTH_A_LOOK;
        self.room.looked_at = (!is_worth_it).then_some(now);
        !self.room.found.is_empty()
    }

    fn candidate(&self, key: Key) -> Option<Candidate> {
        let (peer, wait, since) = match self.slab.peek(key)? {
            Link::Http1(conn) => {
                let wait = wait_of(conn, self.shared.limits.stall_len_min);
                (conn.peer, wait, conn.since)
            }
            Link::Ws(_) => return None,
            #[cfg(feature = "http2")]
            Link::H2(conn) => {
                let wait = match conn.session.stream_count() {
                    0 => Wait::AtRest,
                    _ => Wait::Busy,
                };
                (conn.peer, wait, conn.since)
            }
        };
        Some(Candidate {
            address: address(peer),
            wait,
            since,
            key,
        })
    }

    /// `false` if it has become busy since it was found.
    fn close_for_room(&mut self, key: Key) -> bool {
        if self
            .candidate(key)
            .is_none_or(|candidate| candidate.wait == Wait::Busy)
        {
            return false;
        }
        let count = self.slab.count();
        self.guarded(Some(key), |thread| match thread.slab.take(key) {
            Some(Link::Http1(conn)) => thread.close_conn_for_room(conn),
            #[cfg(feature = "http2")]
            Some(Link::H2(mut conn)) => {
                thread.gives_way(conn.peer);
                thread.cut_off_h2(&mut conn);
            }
            Some(link) => thread.slab.put(key, link),
            None => {}
        });
        self.slab.count() < count
    }

    fn close_conn_for_room(&mut self, mut conn: Box<Conn>) {
        if wait_of(&conn, u64::MAX) == Wait::AtRest && !conn.is_shaking() && !conn.is_lingering {
            // A request may have arrived without its event having been looked at.
            conn.readable = true;
            let next = self.go_on(&mut conn);
            let is_waiting = matches!(next, super::thread::Next::Wait);
            if !is_waiting || wait_of(&conn, u64::MAX) != Wait::AtRest {
                return self.settle(conn, next);
            }
            conn.transport.say_goodbye();
        }
        self.gives_way(conn.peer);
        if conn.is_sending() {
            conn.reset_on_close();
            drop(exec::fail(&self.shared, &mut conn, End::Cut));
        }
        self.close(conn);
    }

    fn gives_way(&self, peer: Peer) {
        let incident = Incident::GaveWay { peer };
        self.shared.service.observer().incident(&incident);
    }
}

/// What an HTTP/1 connection that is here waits for.
fn wait_of(conn: &Conn, stall_len_min: u64) -> Wait {
    if conn.is_waiting || conn.readable && !conn.is_sending() {
        return Wait::Busy;
    }
    if conn.is_sending() && !conn.is_lingering || conn.proto.phase() == Phase::Body {
        return match conn.moved_len < stall_len_min {
            true => Wait::UnderWay,
            false => Wait::Busy,
        };
    }
    Wait::AtRest
}

/// Those who may go, in the reverse of their order.
fn who_may_go(mut candidates: Vec<Candidate>, now: Instant, rest_time_min: Duration) -> Vec<Key> {
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
        let may_go = match one.wait {
            Wait::Busy => false,
            Wait::UnderWay => waited >= rest_time_min.saturating_mul(UNDER_WAY_FACTOR),
            // Who has more than half of all has no time to rest.
            Wait::AtRest => {
                waited >= rest_time_min || number > half && rest_time_min < Duration::MAX
            }
        };
        if may_go {
            found.push((number, Reverse(one.since), one.key));
        }
    }
    found.sort_unstable_by_key(|(number, since, _)| (*number, *since));
    let surplus = found.len().saturating_sub(FOUND_MAX);
    found.drain(..surplus);
    found.into_iter().map(|(.., key)| key).collect()
}

/// Whose connection it is. A customer of an IPv6 network has 64 bits to itself.
fn address(peer: Peer) -> u128 {
    match peer {
        Peer::Tcp(address) => match address.ip().to_canonical() {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits() >> 64 << 64,
        },
        Peer::Unix(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Address, wait, how long in milliseconds.
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
        let found = who_may_go(candidates.collect(), now, SECOND);
        let index = |key: Key| usize::try_from(key.to_bits()).unwrap();
        found.into_iter().rev().map(index).collect()
    }

    #[test]
    fn who_has_most_goes_first_and_then_who_rests_longest() {
        use Wait::{AtRest, Busy, UnderWay};
        // All alike: the longest at rest, and nobody who has just come to rest.
        assert_eq!(
            order(&[
                (1, AtRest, 1000),
                (2, AtRest, 3000),
                (3, AtRest, 999),
                (4, AtRest, 2000)
            ]),
            [1, 3, 0]
        );
        // One address with many, until it has no more than others.
        assert_eq!(
            order(&[
                (1, AtRest, 9000),
                (2, AtRest, 1000),
                (2, AtRest, 2000),
                (2, AtRest, 3000)
            ]),
            [3, 2, 0, 1]
        );
        // What it is busy with counts, and stays.
        assert_eq!(
            order(&[(1, AtRest, 9000), (2, Busy, 9000), (2, AtRest, 1000)]),
            [2, 0]
        );
        // Who does little of what it began goes after those at rest, and not at once.
        assert_eq!(
            order(&[(2, UnderWay, 6000), (2, AtRest, 1000), (2, UnderWay, 4999)]),
            [1, 0]
        );
        // More than half: at once, until it is half.
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
    fn a_look_finds_so_many_and_those_who_go_first() {
        let all: Vec<_> = (0..3000)
            .map(|index| (1, Wait::AtRest, 1000 + index))
            .collect();
        let found = order(&all);
        assert_eq!(found.len(), FOUND_MAX);
        assert!(found.into_iter().eq((1976..3000).rev()));
    }

    #[test]
    fn addresses() {
        let of = |text: &str| address(Peer::Tcp(text.parse().unwrap()));
        assert_eq!(of("1.2.3.4:5"), of("1.2.3.4:6"));
        assert_eq!(of("1.2.3.4:5"), of("[::ffff:1.2.3.4]:5"));
        assert_ne!(of("1.2.3.4:5"), of("1.2.3.5:5"));
        assert_eq!(of("[2001:db8::1]:5"), of("[2001:db8::2:3]:5"));
        assert_ne!(of("[2001:db8::1]:5"), of("[2001:db8:0:1::1]:5"));
    }
}
