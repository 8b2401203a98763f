//! Limits of values that depend on the scheduler, the allocator or the disk.
//!
//! A value above its limit is a warning, which the summary of `xtask test` repeats. A value above
//! twice the limit fails the test. So a test has a limit that is close to what is measured, and
//! does not fail because of other work on the machine. Values that are the same in each run, such
//! as instructions of a single thread, are compared exactly instead.

use std::io::{self, Write as _};
use std::thread;
use std::time::Duration;

/// Start of the line of a warning, before the name of the test.
pub const WARNING: &str = "warning: ";

/// Text between the measured value and the limit.
pub const EXPECTED: &str = ", expected at most ";

/// Checks a number of bytes of memory: warns above `expected`. `what`: whose memory it is, such as
/// `memory of the server`.
///
/// # Panics
///
/// If it is more than twice `expected`.
#[track_caller]
pub fn memory_at_most(what: &str, len: u64, expected: u64) {
    report(judge(
        &format!("{} of {what}", size(len)),
        &size(expected),
        len <= expected,
        len <= expected.saturating_mul(2),
    ));
}

/// Checks a duration: warns above `expected`. `what`: what took the time, such as
/// `for the 99th percentile`.
///
/// # Panics
///
/// If it is more than twice `expected`.
#[track_caller]
pub fn time_at_most(what: &str, time: Duration, expected: Duration) {
    report(judge(
        &format!("{time:.1?} {what}"),
        &format!("{expected:.1?}"),
        time <= expected,
        time <= expected.saturating_mul(2),
    ));
}

/// Checks a number: warns above `expected`. `what`: the things that were counted, such as
/// `wake-ups`.
///
/// # Panics
///
/// If it is more than twice `expected`.
#[track_caller]
pub fn count_at_most(what: &str, count: u64, expected: u64) {
    report(judge(
        &format!("{count} {what}"),
        &expected.to_string(),
        count <= expected,
        count <= expected.saturating_mul(2),
    ));
}

/// Returns the text of a warning; `None` within the limit.
#[track_caller]
fn judge(found: &str, expected: &str, is_within: bool, is_within_twice: bool) -> Option<String> {
    let text = format!("{found}{EXPECTED}{expected}");
    assert!(is_within_twice, "{text}, and this is more than twice that");
    (!is_within).then_some(text)
}

/// Prints a warning with the name of the test. The test harness names the thread of a test by it.
fn report(warning: Option<String>) {
    let Some(text) = warning else { return };
    let test = thread::current();
    let test = test.name().unwrap_or("a thread without a name");
    // The harness drops what the macros print in a test that passes. The first line feed ends the
    // line that the harness may have begun.
    let line = format!("\n{WARNING}{test}: {text}\n");
    io::stderr().write_all(line.as_bytes()).ok();
}

/// Returns a number of bytes with a unit.
fn size(len: u64) -> String {
    let tenths = |unit: u64| {
        let tenths = len.saturating_mul(10) / unit;
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    match len {
        0..10_240 => format!("{len} bytes"),
        10_240..10_485_760 => format!("{} KiB", tenths(1 << 10)),
        _ => format!("{} MiB", tenths(1 << 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(len: u64) -> Option<String> {
        judge(&size(len), &size(100), len <= 100, len <= 200)
    }

    #[test]
    fn a_value_above_its_limit_is_a_warning() {
        assert_eq!(memory(100), None);
        for len in [101, 200] {
            let warning = format!("{len} bytes, expected at most 100 bytes");
            assert_eq!(memory(len), Some(warning));
        }
        memory_at_most("memory of a test", 100, 100);
        time_at_most("for a step", Duration::from_secs(1), Duration::from_secs(1));
    }

    #[test]
    #[should_panic(expected = "201 wake-ups, expected at most 100")]
    fn a_value_above_twice_its_limit_fails() {
        count_at_most("wake-ups", 201, 100);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size(10_239), "10239 bytes");
        assert_eq!(size(24 << 10), "24.0 KiB");
        assert_eq!(size((130 << 20) + (1 << 19)), "130.5 MiB");
    }
}
