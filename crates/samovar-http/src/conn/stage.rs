//! The stages of an HTTP/1 connection.

/// The stage of an HTTP/1 connection, changed by [`Conn::enter`](super::Conn::enter).
///
/// | stage | continues when | next stage |
/// |---|---|---|
/// | `Handshake` | readable or writable, on a worker | `Receiving`, `Lingering` |
/// | `Receiving` | readable; writable, while a response of the I/O thread is unsent | `Answering`, `Lingering` |
/// | `Answering` | a worker returns it; writable: a worker sends more of the body | `Waiting`, `Receiving` |
/// | `Waiting` | the application wakes it | `Answering` |
/// | `Lingering` | readable, until the client closes or the time is up | |
///
/// A connection may also be closed in any stage. It leaves these stages for good when it becomes a
/// WebSocket or an HTTP/2 connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The TLS handshake is in progress.
    Handshake,
    /// Between requests, receiving a request, or sending a response of the I/O thread.
    Receiving,
    /// A worker produces the response, which is not complete yet.
    Answering,
    /// The response waits for the application.
    Waiting,
    /// The last response was sent. Received bytes are discarded until the client closes.
    Lingering,
}

impl Stage {
    /// Returns whether the stage `next` may follow.
    pub(crate) fn may_become(self, next: Self) -> bool {
        use Stage::{Answering, Handshake, Lingering, Receiving, Waiting};
        match self {
            Handshake => matches!(next, Receiving | Lingering),
            Receiving => matches!(next, Answering | Lingering),
            Answering => matches!(next, Waiting | Receiving),
            Waiting => matches!(next, Answering),
            Lingering => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Stage; 5] = [
        Stage::Handshake,
        Stage::Receiving,
        Stage::Answering,
        Stage::Waiting,
        Stage::Lingering,
    ];

    #[test]
    fn the_documented_transitions_are_those_of_the_code() {
        let is_row = |line: &&str| line.starts_with("/// | `");
        let rows: Vec<_> = include_str!("stage.rs").lines().filter(is_row).collect();
        assert_eq!(rows.len(), ALL.len());
        for stage in ALL {
            let start = format!("/// | `{stage:?}` |");
            let row = rows.iter().find(|row| row.starts_with(&start)).unwrap();
            let documented = row.split('|').nth(3).unwrap();
            for next in ALL {
                assert_eq!(
                    stage.may_become(next),
                    documented.contains(&format!("`{next:?}`")),
                    "{stage:?} to {next:?}"
                );
            }
        }
    }
}
