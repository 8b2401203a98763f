//! [`Machine`]: the machine that has used a workspace last.
//!
//! A machine that was cloned has the same directories as the other one, down to their inode
//! numbers, times of birth and marks. If both have their home directory on one network file system,
//! they also have one state. After one of them has pulled, its state does not fit the older files
//! of the other, which would count as changes: the next push would revert what was pulled. So
//! commands refuse a state on a network file system that another machine has used last, if the
//! files are on a local disk. A machine that was only restarted has the same host name, and one
//! that was only renamed is in the same boot.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use samovar_workspace::boot_id;

use super::registry::encoded;
use crate::disk::{Use, unsuitable};
use crate::outcome::Failed;
use crate::push::host;

/// A machine from one start to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Machine {
    boot: String,
    /// The ID of the machine.
    id: String,
    /// The host name.
    host: String,
}

impl Machine {
    /// Returns this machine.
    pub(super) fn here() -> Self {
        Self {
            boot: boot(),
            id: id(),
            host: encoded(Path::new(&host())),
        }
    }

    /// Returns one line of text, without its end.
    pub(super) fn text(&self) -> String {
        format!("{} {} {}", self.boot, self.id, self.host)
    }

    /// Parses a line that [`text`](Self::text) returned.
    pub(super) fn parse(line: &str) -> anyhow::Result<Self> {
        let mut words = line.splitn(3, ' ').map(str::to_owned);
        let mut word = || words.next().context("the line of the machine is malformed");
        Ok(Self {
            boot: word()?,
            id: word()?,
            host: word()?,
        })
    }

    /// Returns whether this is certainly or probably the same machine as another one.
    fn may_be(&self, other: &Self) -> bool {
        self.boot == other.boot || (self.id == other.id && self.host == other.host)
    }

    /// Checks that the state `dir` of the workspace `root`, which this machine has used last, fits
    /// the files.
    ///
    /// # Errors
    ///
    /// Another machine has used the state, and not the files.
    pub(super) fn check(&self, root: &Path, dir: &Path) -> anyhow::Result<()> {
        // A file system that cannot be examined counts as local.
        let is_shared = |path| matches!(unsuitable(path, Use::Workspace), Ok(Some(_)));
        let is_foreign = !self.may_be(&Self::here()) && is_shared(dir) && !is_shared(root);
        ensure!(
            !is_foreign,
            Failed::Refused.because(anyhow!(
                "the state of {root:?}, in {dir:?} on a network file system, was used by another \
                 machine last ({}): its pushes and pulls have not changed the files here. If this \
                 machine was cloned from that one, set XDG_STATE_HOME to a local disk, and run \
                 samovar workspace open --adopt REF {}. If it is the same machine, with another \
                 name, or has got its disk, run samovar workspace repair",
                self.host,
                root.display()
            ))
        );
        Ok(())
    }
}

/// Returns the ID of the boot of the kernel.
pub(super) fn boot() -> String {
    String::from_utf8_lossy(&boot_id())
        .trim_end_matches('\0')
        .to_owned()
}

/// Returns what identifies this machine among those that share the home directory.
pub(super) fn id() -> String {
    let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    match id.trim() {
        "" => encoded(Path::new(&host())),
        id => encoded(Path::new(id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarted_and_renamed_machines_are_the_same() {
        let machine = |boot: &str, id: &str, host: &str| {
            let line = format!("{boot} {id} {host}");
            let machine = Machine::parse(&line).unwrap();
            assert_eq!(machine.text(), line);
            machine
        };
        let one = machine("b1", "m1", "h1");
        for (other, expected) in [
            (machine("b1", "m1", "h2"), true),
            (machine("b2", "m1", "h1"), true),
            // Cloned, with the same ID or a new one.
            (machine("b2", "m1", "h2"), false),
            (machine("b2", "m2", "h1"), false),
        ] {
            assert_eq!(one.may_be(&other), expected, "{other:?}");
        }
        assert!(Machine::parse("b1 m1").is_err());
    }
}
