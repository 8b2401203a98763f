//! The numbers that describe a tree: sizes, directories, duplicates, and how well it compresses.

mod contents;
mod facts;
mod sizes;
mod walk;

pub use contents::ContentNumbers;
pub use facts::{Facts, Ranked};
pub use sizes::{Bin, Frames, Histogram, RPC_HEADER_LEN, Sizes};
pub use walk::{WalkOptions, Walked, walk};
