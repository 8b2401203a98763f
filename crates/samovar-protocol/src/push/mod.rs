//! Version 1 of the push protocol: many paths in a few requests (`docs/push-protocol.md`).
//!
//! | request | module | of the request | of the answer |
//! | --- | --- | --- | --- |
//! | `open` | `open.rs` | [`OpenLine`] | [`Opened`] |
//! | `pack` | `pack.rs` | [`PackLine`] in [`Records`] | [`PackOutcome`] |
//! | `part` | `part.rs` | – | [`PartLine`] |
//! | `assemble` | `assembled.rs` | a [recipe](crate::recipe) | [`Assembled`] |
//! | `publish` | `publish.rs` | [`NarinfoLine`] in [`Records`] | [`Missing`], [`published`] |
//! | all | `target.rs` | the URL: [`Target`] and its parameters | – |
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | paths in `open` | 100,000 | a server holds their lines in memory |
//! | length of a pack, and of a part | 32 MiB | proxies limit the length of a body |
//! | NARs in a pack | 16,384 | a server keeps an outcome for each |
//! | length of the body of `publish` | 8 MiB | a server holds the narinfos in memory |
//! | narinfos in `publish` | 4096 | they are published in one transaction |
//! | length of a narinfo | 1 MiB | ten thousand references |
//! | a line before a record | 128 bytes | the longest has a hash and a number |

mod assembled;
mod open;
mod pack;
mod part;
mod publish;
mod records;
mod target;

pub use assembled::Assembled;
pub use open::{OPEN_COUNT_MAX, OPEN_LEN_MAX, OpenAnswer, OpenLine, Opened, Saved, read_open};
pub use pack::{PACK_COUNT_MAX, PackLine, PackOutcome};
pub use part::PartLine;
pub use publish::{
    Missing, NARINFO_LEN_MAX, NarinfoLine, PUBLISH_COUNT_MAX, PUBLISH_LEN_MAX, is_published,
    published,
};
pub use records::{LINE_LEN_MAX, RecordLine, Records, WireError, write_end, write_record};
pub use target::{AssembleQuery, JoinQuery, PREFIX, PartQuery, QueryError, Target, VERSION};

/// Maximum length of a pack and of a part of a NAR, in bytes.
pub const BODY_LEN_MAX: u64 = 32 << 20;
