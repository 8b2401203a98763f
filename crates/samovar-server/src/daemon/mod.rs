//! Background process, PID file, switch of the user.
//!
//! The order matters: [`Role::of_process`] and [`launch`] first; then logs, keys, sockets; then
//! [`PidFile::write`], [`Identity::assume`], and at last [`Background::ready`].

mod background;
mod identity;
mod pid_file;

pub use background::{Background, DaemonError, Role, launch};
pub use identity::{Identity, IdentityError};
pub use pid_file::{PidFile, PidFileError, Prepared};
