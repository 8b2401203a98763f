//! The state of workspaces: local directories with the files of a ref.
//!
//! | module | contents |
//! | --- | --- |
//! | [`Workspace`], [`State`] | a directory, its ref and its base |
//! | [`registry`] | the state directories of a user, and to which directories they belong |
//! | [`mode`], [`layers`] | where the files are |
//! | [`begun`] | merges that were begun |
//! | [`place`] | where a merge changes files |
//! | [`old`] | states of earlier versions |

mod based;
pub mod begun;
mod directory;
mod file;
pub mod layers;
pub mod mode;
pub mod old;
pub mod place;
pub mod registry;
mod state;

pub use directory::{Lock, Workspace, is_workspace};
pub use state::{Base, STATE, State};
