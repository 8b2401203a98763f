//! Messages that the daemon sends before a result: log lines, activities, errors.
//!
//! # Source
//!
//! Nix 2.8.0, `src/libstore/daemon.cc` (`TunnelLogger`) and `src/libstore/worker-protocol.hh`.

use std::io::Read;

use super::wire::Answer;
use crate::error::{Irregularity, StoreError};

const LAST: u64 = 0x616c_7473;
const ERROR: u64 = 0x6378_7470;
const NEXT: u64 = 0x6f6c_6d67;
const START_ACTIVITY: u64 = 0x5354_5254;
const STOP_ACTIVITY: u64 = 0x5354_4f50;
const RESULT: u64 = 0x5253_4c54;

/// Reads messages up to the start of the result.
///
/// # Errors
///
/// [`StoreError::Refused`] if the daemon reports an error: the connection stays usable. After any
/// other error, the connection is unusable.
pub(super) fn read_messages<R: Read>(answer: &mut Answer<R>, minor: u64) -> Result<(), StoreError> {
    loop {
        // The size limit of a response also ends an endless stream of messages.
        match answer.integer()? {
            LAST => return Ok(()),
            ERROR => {
                read_error(answer, minor)?;
                return Err(StoreError::Refused);
            }
            NEXT => drop(answer.bytes()?),
            START_ACTIVITY => {
                for _ in 0..3 {
                    answer.integer()?;
                }
                answer.bytes()?;
                read_fields(answer)?;
                answer.integer()?;
            }
            STOP_ACTIVITY => drop(answer.integer()?),
            RESULT => {
                answer.integer()?;
                answer.integer()?;
                read_fields(answer)?;
            }
            _ => return Err(StoreError::Protocol(Irregularity::Message)),
        }
    }
}

fn read_error<R: Read>(answer: &mut Answer<R>, minor: u64) -> Result<(), StoreError> {
    if minor < 26 {
        answer.bytes()?;
        answer.integer()?;
        return Ok(());
    }
    answer.bytes()?; // "Error"
    answer.integer()?; // level
    answer.bytes()?; // name
    answer.bytes()?; // message
    read_position(answer)?;
    let trace_count = answer.integer()?;
    for _ in 0..trace_count {
        read_position(answer)?;
        answer.bytes()?;
    }
    Ok(())
}

/// Reads a source position. All versions of Nix send zero, which means no position.
fn read_position<R: Read>(answer: &mut Answer<R>) -> Result<(), StoreError> {
    match answer.integer()? {
        0 => Ok(()),
        _ => Err(StoreError::Protocol(Irregularity::Value)),
    }
}

fn read_fields<R: Read>(answer: &mut Answer<R>) -> Result<(), StoreError> {
    let count = answer.integer()?;
    for _ in 0..count {
        match answer.integer()? {
            0 => drop(answer.integer()?),
            1 => drop(answer.bytes()?),
            _ => return Err(StoreError::Protocol(Irregularity::Value)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::wire::Request;
    use super::*;

    #[track_caller]
    fn check(minor: u64, request: Request, expected: Result<(), StoreError>) {
        let mut answer = Answer::new(request.as_bytes());
        assert_eq!(read_messages(&mut answer, minor), expected);
        if expected != Err(StoreError::Protocol(Irregularity::Message)) {
            assert!(answer.integer().is_err(), "unread bytes");
        }
    }

    #[test]
    fn every_kind_of_message() {
        let messages = Request::new()
            .integer(NEXT)
            .string("\x1b[31mlog\x1b[0m")
            .integer(START_ACTIVITY)
            .integer(1)
            .integer(3)
            .integer(105)
            .string("building")
            .integer(2)
            .integer(0)
            .integer(7)
            .integer(1)
            .string("field")
            .integer(0)
            .integer(RESULT)
            .integer(1)
            .integer(101)
            .integer(1)
            .integer(1)
            .string("line")
            .integer(STOP_ACTIVITY)
            .integer(1)
            .integer(LAST);
        check(34, messages, Ok(()));
    }

    #[test]
    fn errors_of_both_generations() {
        let new = Request::new()
            .integer(ERROR)
            .string("Error")
            .integer(0)
            .string("Error")
            .string("no")
            .integer(0)
            .integer(1)
            .integer(0)
            .string("trace");
        check(26, new, Err(StoreError::Refused));
        let old = Request::new().integer(ERROR).string("no").integer(1);
        check(25, old, Err(StoreError::Refused));
    }

    #[test]
    fn an_unknown_message_is_refused() {
        check(
            34,
            Request::new().integer(0x6461_7461),
            Err(StoreError::Protocol(Irregularity::Message)),
        );
    }
}
