//! Who is told what happened.

use std::fmt;
use std::sync::Arc;

use crate::access::Refusal;
use samovar_store::{SchemaRemark, StoreError};

use crate::metrics::{RecentError, Transfers};

/// Told what an operator may want to know. No method may block: some run on I/O threads.
pub trait Observer: samovar_http::Observer + 'static {
    /// The store erred; said once for many requests that meet the same.
    fn store_failed(&self, error: StoreError);

    /// The store answers again.
    fn store_recovered(&self);

    /// The store answers, and there is something about it that the operator should know.
    fn store_remark(&self, remark: SchemaRemark);

    /// One path cannot be served, for a reason that is not the store's as a whole.
    fn path_failed(&self, path: &dyn fmt::Display, error: &dyn fmt::Display);

    /// A path was collected, or registered anew, while an answer about it was on its way: the
    /// answer was cut off.
    fn path_collected(&self, path: &dyn fmt::Display);

    /// The files of a valid path are not what its row says.
    fn path_damaged(&self, path: &dyn fmt::Display, error: &dyn fmt::Display);

    /// The bytes of a path were compared with its registered hash, and are right.
    fn path_verified(&self, path: &dyn fmt::Display);

    /// A path that was damaged is so no more, or may be: its files were changed.
    fn path_mended(&self, path: &dyn fmt::Display);

    /// Something was asked about a damaged path, and was answered with 404.
    fn path_kept_out(&self);

    /// Where the roots of a policy lead is not known, so nothing is served under it: said once
    /// until it is known again.
    fn roots_failed(&self, error: &dyn fmt::Display);

    /// It is known again.
    fn roots_recovered(&self);

    /// Where a round of verifying what nobody asks for stands.
    fn scrubbed(&self, progress: &dyn fmt::Display);

    /// What was found out about paths cannot be read, or not be written down.
    fn not_remembered(&self, error: &dyn fmt::Display);

    /// NARs are not kept, because their copies cannot be written: said once until one is kept. Or
    /// one is not any more, because it cannot be read. They are served all the same.
    fn not_kept(&self, error: &dyn fmt::Display);

    /// An answer of many narinfos was refused, because too many paths are on their way.
    fn lists_full(&self);

    /// Such an answer, whose client reads slowly, gave way to another one.
    fn list_gave_way(&self);

    /// Paths are not held against garbage collection: said once until they are again.
    /// `is_expected`: no daemon has answered yet, and nobody asked for one.
    fn hold_failed(&self, error: &dyn fmt::Display, is_expected: bool);

    /// Paths are held again.
    fn hold_recovered(&self);

    /// As many paths are held as may be; no more are until the next generation.
    fn hold_full(&self);

    /// The daemon holds one path more.
    fn held(&self);

    /// A request was not let in.
    fn access_refused(&self, refusal: Refusal);

    /// A password was verified and right. It is remembered for a while.
    fn password_verified(&self);

    /// Something was answered whose paths could not be held, or not in time.
    fn unheld(&self, what: Unheld);

    /// Where NARs on their way are watched, if anywhere.
    fn transfers(&self) -> Option<&Arc<Transfers>> {
        None
    }

    /// Whether it says of each request which path it was about, so that names are worth keeping.
    fn names_paths(&self) -> bool {
        false
    }

    /// How often what it was told has happened, by name, if it counts.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// What was said of late as an error or a warning, the newest first, if it remembers.
    fn recent_errors(&self) -> Vec<RecentError> {
        Vec::new()
    }
}

/// What was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unheld {
    /// One narinfo, or some in one piece of an answer.
    Narinfo,
    /// A NAR from files.
    Nar,
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl samovar_http::Observer for Silent {}

impl Observer for Silent {
    fn store_failed(&self, _: StoreError) {}

    fn store_recovered(&self) {}

    fn store_remark(&self, _: SchemaRemark) {}

    fn path_failed(&self, _: &dyn fmt::Display, _: &dyn fmt::Display) {}

    fn path_collected(&self, _: &dyn fmt::Display) {}

    fn path_damaged(&self, _: &dyn fmt::Display, _: &dyn fmt::Display) {}

    fn path_verified(&self, _: &dyn fmt::Display) {}

    fn path_mended(&self, _: &dyn fmt::Display) {}

    fn path_kept_out(&self) {}

    fn roots_failed(&self, _: &dyn fmt::Display) {}

    fn roots_recovered(&self) {}

    fn scrubbed(&self, _: &dyn fmt::Display) {}

    fn not_remembered(&self, _: &dyn fmt::Display) {}

    fn not_kept(&self, _: &dyn fmt::Display) {}

    fn hold_failed(&self, _: &dyn fmt::Display, _: bool) {}

    fn hold_recovered(&self) {}

    fn hold_full(&self) {}

    fn held(&self) {}

    fn access_refused(&self, _: Refusal) {}

    fn password_verified(&self) {}

    fn unheld(&self, _: Unheld) {}

    fn lists_full(&self) {}

    fn list_gave_way(&self) {}
}
