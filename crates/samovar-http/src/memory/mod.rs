//! Memory for requests and responses, and its limits.

mod blocks;
mod budget;
mod pool;

pub(crate) use blocks::{Block, Blocks};
pub(crate) use budget::{Budget, Held};
pub(crate) use pool::{Buffer, BufferPool};
