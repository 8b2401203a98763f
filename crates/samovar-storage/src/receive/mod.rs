//! Decisions about an upload: when it gets a slot and memory, whether its metadata is valid, and
//! with which other uploads it is committed.

mod admission;
mod commit_queue;
pub(crate) mod joins;
pub(crate) mod publish;
mod put_error;

pub use admission::{Admitted, Wait};
pub use publish::{REALISATION_LEN_MAX, Refusal};
pub use put_error::PutError;

pub(crate) use admission::Admission;
pub(crate) use commit_queue::CommitQueue;
