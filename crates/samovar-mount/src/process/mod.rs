//! Private namespaces, and the processes in them.

pub mod first;
pub mod namespace;
pub mod signals;
