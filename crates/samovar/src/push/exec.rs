//! `samovar push --exec`: runs a command, then pushes the paths that were built while it ran.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::Context as _;
use samovar_client::push::registered::{newest, registered_after, wanted};
use samovar_client::push::{Pusher, Report};

use crate::credential::without_token;

/// Runs a command, then pushes the new paths. Returns the command's exit code, or `None` if the
/// command succeeded, and the report of the push.
///
/// # Errors
///
/// The cache refuses the login, the command cannot be started, or the store or the cache is
/// unavailable.
pub(super) fn run(
    pusher: &mut Pusher,
    words: &[String],
    with_substituted: bool,
) -> anyhow::Result<(Option<ExitCode>, Report)> {
    let (program, arguments) = words.split_first().context("a command is missing")?;
    let before = newest(pusher.store())?;
    pusher.check_login()?;
    let status = without_token(Command::new(program).args(arguments))
        .status()
        .with_context(|| format!("cannot run {program:?}"))?;
    let infos = registered_after(pusher.store(), before)?;
    let roots = wanted(&infos, with_substituted);
    // Ignore absent paths: they were deleted after their registration.
    let paths = pusher.find(&roots)?;
    let report = pusher.push(&paths)?;
    Ok((failure(status), report))
}

/// Returns the exit code of a command that failed, or `None` if it succeeded. The code of a command
/// that a signal killed is 128 plus the signal's number, as in shells.
fn failure(status: ExitStatus) -> Option<ExitCode> {
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signal).unwrap_or(1);
    let code = u8::try_from(code).unwrap_or(1);
    (code != 0).then(|| ExitCode::from(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_of_commands() {
        for (raw, expected) in [(0, None), (7 << 8, Some(7)), (9, Some(128 + 9))] {
            let code = failure(ExitStatus::from_raw(raw));
            let expected = expected.map(ExitCode::from);
            assert_eq!(format!("{code:?}"), format!("{expected:?}"));
        }
    }
}
