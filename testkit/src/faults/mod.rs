//! A TCP proxy between a client and a server that disturbs their connections.
//!
//! The proxy knows no protocol, so it stands in front of PostgreSQL, an S3 engine or an HTTP server
//! alike. [`FaultProxy::set`] changes the [`Faults`] at run time, for open connections as well.
//! [`FaultProxy::set_random`] gives each connection faults of its own, which follow from a seed and
//! the number of the connection.
//!
//! ```
//! # use std::time::Duration;
//! # use testkit::faults::{FaultProxy, Faults};
//! # let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
//! let proxy = FaultProxy::start(server);
//! // The server commits once, and the client does not receive the answer.
//! proxy.set(Faults::reset_responses(0).once_sent("COMMIT").times(1));
//! // The server hangs.
//! proxy.set(Faults::hold());
//! // 20 ms from here to there, and 20 ms back.
//! proxy.set(Faults::delayed(Duration::from_millis(20)));
//! proxy.set(Faults::NONE);
//! ```

mod line;
mod proxy;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::random::SplitMix64;

pub use proxy::FaultProxy;

/// What happens to a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// New connections are reset at once. A client sees that they are accepted and then reset; for
    /// a port that refuses connections, stop the server, or use a
    /// [`ClosedPort`](crate::closed_port::ClosedPort).
    pub is_refused: bool,
    /// Bytes from the client to the server.
    pub requests: Flow,
    /// Bytes from the server to the client.
    pub responses: Flow,
    /// The faults of a connection begin with the bytes from the client that contain this text, such
    /// as `COMMIT` or `PUT /bucket/nar`. Lengths are counted from there. `None`: at once.
    pub trigger: Option<String>,
    /// Number of cuts over all connections, after which there are no faults any more. `None`: no
    /// limit.
    pub times: Option<u32>,
    /// Whether the lengths of cuts are those of all connections together, since the faults were
    /// set, instead of those of each connection.
    pub is_in_total: bool,
}

/// One direction of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flow {
    /// Duration for which each byte is on its way. It does not limit the throughput.
    pub delay: Duration,
    /// Maximum number of bytes per second. `None`: no limit.
    pub rate: Option<u32>,
    /// Where the flow ends. `None`: where the sender ends it.
    pub cut: Option<Cut>,
}

/// The end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Number of bytes of the connection that are forwarded in this direction before. The cut
    /// happens when there is one more byte.
    pub after: u64,
    /// How the flow ends.
    pub end: End,
}

/// How a flow ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Both ends of the connection receive a reset.
    Reset,
    /// Both ends see that the other one has closed the connection.
    Close,
    /// Nothing more is forwarded, and the connection stays open. What was held is forwarded if the
    /// faults are changed.
    Hold,
}

impl Faults {
    /// All bytes are forwarded.
    pub const NONE: Self = Self {
        is_refused: false,
        requests: Flow::WHOLE,
        responses: Flow::WHOLE,
        trigger: None,
        times: None,
        is_in_total: false,
    };

    /// Resets connections instead of accepting them. Open ones go on.
    pub const fn refuse() -> Self {
        Self {
            is_refused: true,
            ..Self::NONE
        }
    }

    /// Forwards nothing in either direction, and keeps the connections open.
    pub const fn hold() -> Self {
        Self {
            requests: Flow::cut(0, End::Hold),
            responses: Flow::cut(0, End::Hold),
            ..Self::NONE
        }
    }

    /// Forwards `after` bytes to the server, and then nothing more.
    pub const fn hold_requests(after: u64) -> Self {
        Self {
            requests: Flow::cut(after, End::Hold),
            ..Self::NONE
        }
    }

    /// Forwards `after` bytes to the client, and then nothing more.
    pub const fn hold_responses(after: u64) -> Self {
        Self {
            responses: Flow::cut(after, End::Hold),
            ..Self::NONE
        }
    }

    /// Resets a connection instead of forwarding more than `after` bytes to the server.
    pub const fn reset_requests(after: u64) -> Self {
        Self {
            requests: Flow::cut(after, End::Reset),
            ..Self::NONE
        }
    }

    /// Resets a connection instead of forwarding more than `after` bytes to the client. With 0, the
    /// server has answered and the client does not know it.
    pub const fn reset_responses(after: u64) -> Self {
        Self {
            responses: Flow::cut(after, End::Reset),
            ..Self::NONE
        }
    }

    /// Delays each byte in both directions.
    pub const fn delayed(delay: Duration) -> Self {
        let flow = Flow {
            delay,
            ..Flow::WHOLE
        };
        Self {
            requests: flow,
            responses: Flow {
                delay,
                ..Flow::WHOLE
            },
            ..Self::NONE
        }
    }

    /// Forwards this number of bytes per second in each direction of each connection.
    pub const fn slow(rate: u32) -> Self {
        let flow = Flow {
            rate: Some(rate),
            ..Flow::WHOLE
        };
        Self {
            requests: flow,
            responses: Flow {
                rate: Some(rate),
                ..Flow::WHOLE
            },
            ..Self::NONE
        }
    }

    /// Begins these faults with the bytes from the client that contain this text.
    #[must_use]
    pub fn once_sent(self, text: &str) -> Self {
        Self {
            trigger: Some(text.to_owned()),
            ..self
        }
    }

    /// Ends these faults after this number of cuts.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        Self {
            times: Some(count),
            ..self
        }
    }

    /// Counts the bytes of all connections together.
    #[must_use]
    pub fn in_total(self) -> Self {
        Self {
            is_in_total: true,
            ..self
        }
    }

    /// Returns any of the faults that end or slow down a connection. None of them holds it for
    /// longer than two seconds.
    pub fn random(random: &mut SplitMix64) -> Self {
        // Short lengths are as frequent as long ones: heads of messages, first bytes of bodies, and
        // bodies are all cut.
        let after = random.next() >> (44 + random.below(20));
        match random.below(8) {
            0 => Self::refuse(),
            1 | 2 => Self::reset_requests(after),
            3 | 4 => Self::reset_responses(after),
            5 => Self {
                responses: Flow::cut(after, End::Close),
                ..Self::NONE
            },
            6 => Self::delayed(Duration::from_millis(random.below(2000))),
            _ => Self::slow(1 << (13 + random.below(8))),
        }
    }
}

impl Flow {
    const WHOLE: Self = Self {
        delay: Duration::ZERO,
        rate: None,
        cut: None,
    };

    const fn cut(after: u64, end: End) -> Self {
        Self {
            cut: Some(Cut { after, end }),
            ..Self::WHOLE
        }
    }
}
