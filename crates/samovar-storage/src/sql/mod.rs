//! The database of a storage, whichever engine it has: [`Database`], and the connections on which
//! statements run.
//!
//! # One text for all engines
//!
//! A statement is one text that each engine understands, and that has the same result in each:
//!
//! * Parameters are written `?1`, `?2`. The types of columns are 64-bit integers, texts and blobs;
//!   there is no other. A time is in seconds since 1970, and comes from [`Database::now`].
//! * `on conflict (…) do …` instead of `insert or …`, with the table's name before each column of
//!   its old row; `returning id` instead of the number of the last row; `case` instead of `max` and
//!   `min` of two values, and of `iif`; `is distinct from` instead of `is not`; a name for each
//!   subquery.
//! * A sum of integers is converted: `cast(sum(size) as bigint)`. A condition is a condition: it is
//!   counted with `filter`, and a column with a flag is compared with 0.
//! * A parameter that is only compared with null has a type: `cast(?1 as bigint) is null`.
//! * JSON, dates and random bytes are made in Rust.
//!
//! Where engines must differ, a statement is chosen by [`Connection::dialect`].
//!
//! # Concurrency
//!
//! One transaction writes at a time, in all processes. A transaction that has begun sees all that
//! was committed before, and its changes become visible together. Each statement outside of a
//! transaction sees a snapshot of its own: see [`Connection::snapshot`].

mod change;
mod connection;
mod database;
mod engine;
pub(crate) mod lineage;
pub(crate) mod postgres;
mod random;
mod row;
mod sqlite;
mod turns;
mod value;

pub use change::CacheId;
pub(crate) use change::Change;
pub(crate) use connection::{Connection, Dialect, Transaction};
pub use database::Database;
pub use engine::Clock;
pub(crate) use postgres::Session;
pub(crate) use postgres::confirmation::{CHANNEL, insert_generation, mark, observe};
pub(crate) use postgres::exclusive::Exclusive;
pub(crate) use postgres::link::Link;
pub use postgres::{DatabaseStatistics, TransactionStatistics};
pub(crate) use random::random;
pub(crate) use row::Row;
pub(crate) use sqlite::SCHEMA;
pub(crate) use value::{Value, params};
