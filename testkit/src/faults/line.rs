//! The faults of one connection, and how far it is.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use super::{End, Faults, Flow};
use crate::random::SplitMix64;

/// Maximum number of bytes that are forwarded at once.
pub(super) const PIECE_LEN_MAX: usize = 16 << 10;

/// A direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Requests,
    Responses,
}

/// Which faults a connection has.
#[derive(Debug, Clone)]
pub(super) enum Rule {
    /// All have the same.
    Same(Faults),
    /// This share of the connections, in percent, has faults that follow from the seed.
    Random { seed: u64, percent: u64 },
}

impl Rule {
    /// Returns the faults of a connection, which is counted from 0.
    pub(super) fn faults(&self, number: u64) -> Faults {
        match self {
            Self::Same(faults) => faults.clone(),
            Self::Random { seed, percent } => {
                let mut random = SplitMix64::for_actor(*seed, &number.to_string());
                match random.percent(*percent) {
                    true => Faults::random(&mut random),
                    false => Faults::NONE,
                }
            }
        }
    }

    /// Returns the number of cuts after which there are no faults.
    pub(super) fn times(&self) -> Option<u32> {
        match self {
            Self::Same(faults) => faults.times,
            Self::Random { .. } => None,
        }
    }
}

/// What is to be done with bytes that have arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This number of them is forwarded, then there is a pause.
    Forward(usize, Duration),
    /// They wait for this duration, or until the faults are changed.
    Wait(Option<Duration>),
    /// The connection ends.
    Cut(End),
}

/// A connection.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) client: Arc<TcpStream>,
    pub(super) server: Arc<TcpStream>,
    faults: Faults,
    /// Number of changes of the rule up to the one from which `faults` are.
    change: u64,
    /// Whether the faults have begun.
    has_begun: bool,
    /// Number of bytes that were forwarded since the faults have begun, by direction.
    forwarded: [u64; 2],
    /// The last bytes of the client, in which the first part of the trigger may be.
    tail: Vec<u8>,
}

impl Line {
    /// Makes a connection without faults; [`follow`](Self::follow) gives it those of the rule.
    pub(super) fn new(client: Arc<TcpStream>, server: Arc<TcpStream>) -> Self {
        Self {
            client,
            server,
            faults: Faults::NONE,
            change: 0,
            has_begun: true,
            forwarded: [0; 2],
            tail: Vec::new(),
        }
    }

    /// Takes the faults of the rule, unless they are from this change of it.
    pub(super) fn follow(&mut self, rule: &Rule, change: u64, number: u64) {
        if self.change != change {
            self.change = change;
            self.faults = rule.faults(number);
            self.has_begun = self.faults.trigger.is_none();
            self.forwarded = [0; 2];
            self.tail.clear();
        }
    }

    /// Looks for the trigger in bytes of the client that are going to be forwarded.
    pub(super) fn look_for_trigger(&mut self, bytes: &[u8]) {
        let Some(trigger) = self.faults.trigger.as_ref().filter(|_| !self.has_begun) else {
            return;
        };
        let trigger = trigger.as_bytes();
        self.tail.extend_from_slice(bytes);
        self.has_begun = self.tail.windows(trigger.len()).any(|part| part == trigger);
        let kept = self.tail.len().min(trigger.len() - 1);
        self.tail.drain(..self.tail.len() - kept);
    }

    /// Says what to do with `len` bytes that arrived this long ago. `total`: number of bytes that
    /// all connections have forwarded since the change of the rule, by direction.
    pub(super) fn step(
        &mut self,
        way: Way,
        len: usize,
        age: Duration,
        total: &mut [u64; 2],
    ) -> Step {
        let flow = match way {
            _ if !self.has_begun => return Step::Forward(len, Duration::ZERO),
            Way::Requests => &self.faults.requests,
            Way::Responses => &self.faults.responses,
        };
        let forwarded = match self.faults.is_in_total {
            true => &mut total[way as usize],
            false => &mut self.forwarded[way as usize],
        };
        if let Some(left) = flow.delay.checked_sub(age).filter(|left| !left.is_zero()) {
            return Step::Wait(Some(left));
        }
        let step = next(flow, *forwarded, len);
        if let Step::Forward(len, _) = step {
            *forwarded += len as u64;
        }
        step
    }
}

/// Says what to do with `len` bytes that follow `forwarded` ones.
fn next(flow: &Flow, forwarded: u64, len: usize) -> Step {
    let mut len = len.min(PIECE_LEN_MAX);
    if let Some(cut) = flow.cut {
        let left = cut.after.saturating_sub(forwarded);
        match (left, cut.end) {
            (0, End::Hold) => return Step::Wait(None),
            (0, end) => return Step::Cut(end),
            _ => len = len.min(usize::try_from(left).unwrap_or(usize::MAX)),
        }
    }
    let Some(rate) = flow.rate else {
        return Step::Forward(len, Duration::ZERO);
    };
    // Fifty pieces per second.
    len = len.min((rate / 50).max(1) as usize);
    let pause = Duration::from_secs(len as u64) / rate.max(1);
    Step::Forward(len, pause)
}
