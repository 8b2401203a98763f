//! Pins, to which clients also refer as refs (`docs/pins.md`).
//!
//! | request | module | of the request | of the answer |
//! | --- | --- | --- | --- |
//! | `GET pin/` | `list.rs` | – | [`Newest`] |
//! | `GET pin/<name>` | `generations.rs` | – | [`Generations`], [`LINEAGES`] |
//! | `PUT pin/<name>` | `put.rs` | [`Put`] | [`Pinned`] |
//! | `DELETE pin/<name>` | `removed.rs` | – | [`removed`] |
//! | all, in header fields | `version.rs` | [`Condition`] | [`Version`], [`Tags`] |
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | name of a pin | 255 bytes | the length of a name of a file |
//! | host, message | 1024 bytes each | lists of generations have 10,000 of them |

mod generations;
mod list;
mod put;
mod removed;
mod version;

pub use generations::{Generation, Generations, fingerprint, signature_line};
pub use list::Newest;
pub use put::{PUT_LEN_MAX, Pinned, Put, PutError};
pub use removed::{parse_removed, removed};
pub use version::{Condition, Tags, Version, Weak};

/// Header field of an answer with generations: the entity tag of the oldest one of each lineage.
pub const LINEAGES: &str = "Samovar-Lineages";

/// Parses a time, in seconds since 1970. Clocks may be wrong, so it may be negative.
fn time(text: &str) -> Option<i64> {
    let time: i64 = text.parse().ok()?;
    (time.to_string() == text).then_some(time)
}
