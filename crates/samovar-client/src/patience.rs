//! [`Patience`]: how long a client repeats requests.

use std::time::Duration;

use crate::pace::Pace;

/// Number of attempts and maximum pause for requests that fail temporarily.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    pub(crate) attempt_count_max: u32,
    /// Maximum number of requests without a body to which the server does not respond in time. It
    /// limits the wait for a server that accepts connections and is silent.
    pub(crate) silence_count_max: u32,
    /// Minimum speed of downloads.
    pub(crate) pace: Pace,
    /// Longest pause between two attempts, also if `Retry-After` requests a longer one.
    pub(crate) pause_max: Duration,
    /// Total time of the attempts, for the notice that is printed after the first failure. `None`:
    /// no notice is printed.
    pub(crate) notice: Option<&'static str>,
}

impl Patience {
    /// For queries, while a user waits: the client's own pauses add up to at most four seconds.
    pub const QUERY: Self = Self {
        attempt_count_max: 5,
        silence_count_max: 2,
        pace: Pace::DOWNLOAD,
        pause_max: Duration::from_secs(10),
        notice: None,
    };

    /// For a command that reports a failed attempt to the user, and gives up soon.
    pub const SETUP: Self = Self {
        notice: Some("a few seconds"),
        ..Self::QUERY
    };

    /// For uploads, which survive the restart of a server: the client's own pauses add up to at
    /// most a minute.
    pub const UPLOAD: Self = Self {
        attempt_count_max: 9,
        silence_count_max: 4,
        pace: Pace::DOWNLOAD,
        pause_max: Duration::from_secs(60),
        notice: Some("a minute"),
    };

    /// Sets the minimum speed of downloads.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }
}
