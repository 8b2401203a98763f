//! [`Doubt`]: why the collector may be wrong.

use std::fmt;

use samovar_text::counted;

/// Length of a day, in seconds.
const DAY: i64 = 86_400;

/// The reason to doubt a run. `Display` prints it with what the operator can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The clock has advanced by this number of seconds more than the time that has passed.
    Jump(i64),
    /// The last run ended this number of seconds ago.
    Pause(i64),
    /// So many paths, the first number, would be condemned of those that were kept.
    Many(usize, usize),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jump(seconds) => write!(
                f,
                "the clock has jumped forward by {} while the server ran; correct the clock",
                counted(seconds / 3600, "hour")
            )?,
            Self::Pause(seconds) => write!(
                f,
                "by the clock, the last run of the collector was {} ago; check the clock",
                counted(seconds / DAY, "day")
            )?,
            Self::Many(dead, kept) => write!(
                f,
                "{dead} of {} that were kept would be deleted; check samovar gc --dry-run",
                counted(*kept, "path")
            )?,
        }
        let wait = match self {
            Self::Jump(_) => "wait for a day, or ",
            _ => "",
        };
        write!(
            f,
            ", and if it is right, {wait}run samovar gc --force with the configuration of the \
             server; until then, nothing is deleted"
        )
    }
}
