//! Reading a store under the policy of one cache.
//!
//! Everything that is shared by the caches of a store is behind a [`Reader`]: nothing is answered
//! about a path before the reader has permitted it. A path that the policy excludes is refused as
//! an absent one is, after the same look-ups.

pub(crate) mod policy;

use std::sync::Arc;

use samovar_nix::{HashPart, PathInfo, StorePath};
use samovar_store::{Store, StoreError};

use crate::known::registration::Registration;
use crate::known::shared_store::SharedStore;
use crate::reader::policy::{Decision, Policy, PolicyConfig};
use crate::refusal::Refusal;

/// A store, and the policy for reading it.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) shared: Arc<SharedStore>,
    pub(crate) policy: Policy,
}

/// Permission to read a path, with its limits in time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Permit {
    /// The generation of the policy that gave it.
    pub(crate) generation: u64,
    /// It holds before this second since 1970.
    pub(crate) until: i64,
}

impl Reader {
    pub(crate) fn new(shared: &Arc<SharedStore>, policy: PolicyConfig) -> Self {
        Self {
            shared: Arc::clone(shared),
            policy: Policy::new(policy),
        }
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.shared.store
    }

    /// The decision of the policy about a path that has this row.
    pub(crate) fn decide(&self, info: &PathInfo) -> Decision {
        let dir = self.store().store_dir();
        self.policy.decide(info, dir, self.policy.now())
    }

    /// Permits reading a path that has this row.
    pub(crate) fn permit(&self, info: &PathInfo) -> Result<Permit, Refusal> {
        // Read first: a change while the policy decides must void this permit.
        let generation = self.policy.generation();
        match self.decide(info) {
            Decision::Allowed { until } => Ok(Permit { generation, until }),
            Decision::NotAllowed | Decision::Denied => Err(Refusal::NotReadable),
            Decision::Unknown => Err(Refusal::Undecided),
        }
    }

    /// The row of a path. The policy has not decided about it yet.
    pub(crate) fn lookup(&self, hash_part: HashPart) -> Result<PathInfo, Refusal> {
        let looked = self.shared.lookup(hash_part);
        looked
            .map_err(|error| self.hide(&hash_part, error))?
            .ok_or(Refusal::Absent)
    }

    /// The refusal for a row that cannot be read. Under a policy the path may be one to hide, so
    /// the error is reported to the operator alone.
    pub(crate) fn hide(&self, hash_part: &HashPart, error: StoreError) -> Refusal {
        if !error.is_about_one_path() || self.policy.is_open() {
            return Refusal::Store(error);
        }
        self.shared.report(hash_part, Refusal::Store(error));
        Refusal::NotReadable
    }

    /// The registration of a path that may be read.
    pub(crate) fn readable(&self, hash_part: HashPart) -> Result<Registration, Refusal> {
        self.policy.admit(&hash_part)?;
        let registration = self.shared.registration(hash_part);
        let registration = registration
            .map_err(|error| self.hide(&hash_part, error))?
            .ok_or(Refusal::Absent)?;
        self.permit(&registration.info)?;
        if self.shared.observer.names_paths() {
            self.shared.names.note(&registration.info.path);
        }
        Ok(registration)
    }

    /// The registration of a path that may be read and whose files are not known to be wrong.
    pub(crate) fn servable(&self, hash_part: HashPart) -> Result<Registration, Refusal> {
        let registration = self.readable(hash_part)?;
        registration.admit()?;
        Ok(registration)
    }

    /// Whether exactly this path may be read. A refusal means that it cannot be decided now.
    pub(crate) fn may_read(&self, path: &StorePath) -> Result<bool, Refusal> {
        match self.readable(path.hash_part()) {
            Ok(registration) => Ok(registration.info.path == *path),
            Err(refusal) if refusal.is_absence() => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }
}
