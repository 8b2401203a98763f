//! Background process, PID file, and switch of the user.
//!
//! Call them in this order: first [`Role::of_process`] and [`launch`]; after logs, keys and sockets
//! are open, [`PidFile::write`] and [`Identity::assume`]; last [`Background::ready`].

mod background;
mod identity;
mod pid_file;

pub use background::{Background, Role, launch};
pub use identity::Identity;
pub use pid_file::PidFile;
