//! Routing: from a request to its handler.

mod lookup;
mod next;
mod path;
mod pattern;
#[expect(
    clippy::module_inception,
    reason = "a folder's noun is also that of its main type"
)]
mod route;
mod router;
mod service;
mod trie;
#[cfg(test)]
mod trie_tests;

pub use next::{Next, with};
pub use route::Route;
pub use router::Router;
