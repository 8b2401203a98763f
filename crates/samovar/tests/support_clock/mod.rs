//! Processes with a wrong clock, by libfaketime.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it has not tested"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Changes the clocks of processes. The times of files, and clocks without a date, are right.
pub(crate) struct FakeClock {
    library: String,
}

impl FakeClock {
    /// Returns `None`, after printing the reason, if libfaketime is not installed. In CI it must
    /// be.
    pub(crate) fn find() -> Option<Self> {
        let mut probe = Command::new("faketime");
        let probed = probe
            .args(["-m", "-f", "+1d", "printenv", "LD_PRELOAD"])
            .output();
        match probed {
            Ok(probed) if probed.status.success() => {
                let library = String::from_utf8(probed.stdout).unwrap();
                let library = library.trim().to_owned();
                Some(Self { library })
            }
            _ => {
                assert!(std::env::var_os("CI").is_none(), "no faketime");
                println!("not tested: faketime is not installed");
                None
            }
        }
    }

    /// Moves the clock of a process by this difference, as in `+1d`.
    pub(crate) fn set(&self, command: &mut Command, difference: &str) {
        command.env("LD_PRELOAD", &self.library);
        command.env("FAKETIME", difference);
        command.env("NO_FAKE_STAT", "1");
        command.env("DONT_FAKE_MONOTONIC", "1");
    }

    /// Moves the clock of a process by the difference in this file, also when the file changes.
    pub(crate) fn follow(&self, command: &mut Command, file: &Path) {
        self.set(command, "");
        command.env_remove("FAKETIME");
        command.env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_TIMESTAMP_FILE", file);
    }
}

/// Replaces a difference that processes follow. They never read a part of it.
pub(crate) fn jump(file: &Path, difference: &str) {
    let new = file.with_extension("new");
    fs::write(&new, difference).unwrap();
    fs::rename(new, file).unwrap();
}
