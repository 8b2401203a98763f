//! Workspaces whose unchanged files stay in the snapshot: an overlay of the kernel, with a FUSE
//! view of the snapshot below, and a local directory with the changes above. No program of ours is
//! in the write path.

mod guard;
mod join;
mod mounted;
mod origin;
mod run;

pub(super) use guard::{command as guard_command, run as run_guard};
pub(super) use mounted::{check_machine, close, create, find_removed, is_mounted, mount, remove};
pub(super) use mounted::{remove_begun, restore_removed, scan};
pub(super) use run::{command, run};
