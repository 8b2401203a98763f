//! Reads a store under the policy of one cache.
//!
//! Only through a [`Reader`] do requests reach the state that the caches of a store share. The
//! reader must permit a path before any response about this path is made. A path that the policy
//! excludes is refused like an absent path, after the same look-ups.

pub(crate) mod policy;

use std::sync::Arc;

use samovar_http::Response;
use samovar_http::http::Status;
use samovar_nix::{HashPart, NarHash, PathInfo, StorePath};
use samovar_storage::metadata::StoredPath;
use samovar_store::{Snapshot, Store, StoreError};

use crate::known::registration::Registration;
use crate::known::row::Row;
use crate::known::shared_store::SharedStore;
use crate::reader::policy::{Decision, Policy, PolicyConfig};
use crate::refusal::{Fixed, Refusal};

/// A store, and the read policy of one cache.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) shared: Arc<SharedStore>,
    pub(crate) policy: Policy,
}

/// The permission to read a path. It is valid for one policy generation and a limited time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Permit {
    /// The policy generation in which the permission was granted.
    pub(crate) generation: u64,
    /// The Unix time in seconds at which the permission expires.
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

    /// Returns the policy's decision about the path of this row.
    pub(crate) fn decide(&self, info: &PathInfo) -> Decision {
        let dir = self.store().store_dir();
        self.policy.decide(info, dir, self.policy.now())
    }

    /// Returns the policy's decision about a path of which nothing but the name is known.
    pub(crate) fn decide_by_name(&self, path: &StorePath) -> Decision {
        self.decide(&PathInfo {
            path: path.clone(),
            nar_hash: NarHash::from_bytes([0; 32]),
            nar_size: 0,
            references: Vec::new(),
            deriver: None,
            signatures: Vec::new(),
            content_address: None,
            registration_time: self.policy.now(),
            ultimate: false,
            registration: None,
        })
    }

    /// Returns a permit for the path of this row, or the refusal.
    pub(crate) fn permit(&self, info: &PathInfo) -> Result<Permit, Refusal> {
        // Read the generation first: a change while the policy decides must invalidate this permit.
        let generation = self.policy.generation();
        match self.decide(info) {
            Decision::Allowed { until } => Ok(Permit { generation, until }),
            Decision::NotAllowed | Decision::Denied => Err(Refusal::NotReadable),
            Decision::Unknown => Err(Refusal::Undecided),
        }
    }

    /// Looks up the row of a path, before the policy is applied.
    pub(crate) fn lookup(&self, hash_part: HashPart) -> Result<PathInfo, Refusal> {
        let looked = self.shared.lookup(hash_part);
        looked
            .map_err(|error| self.hide(&hash_part, error))?
            .ok_or(Refusal::Absent)
    }

    /// Makes the refusal for a row that cannot be read, and reports the error to the operator. The
    /// client must not see it, because the policy may exclude the path.
    pub(crate) fn hide(&self, hash_part: &HashPart, error: StoreError) -> Refusal {
        if !error.is_about_one_path() || self.policy.is_open() {
            return Refusal::Store(error);
        }
        self.shared.report(hash_part, Refusal::Store(error));
        Refusal::NotReadable
    }

    /// Returns the row of a path that the policy allows.
    pub(crate) fn readable(&self, hash_part: HashPart) -> Result<PathInfo, Refusal> {
        Ok(self.read(hash_part)?.0)
    }

    /// Returns the registration of a path that the policy allows.
    pub(crate) fn registration(&self, hash_part: HashPart) -> Result<Registration, Refusal> {
        let (info, snapshot) = self.read(hash_part)?;
        Ok(self.shared.registration(Row::from(&info), snapshot))
    }

    /// Returns the row of a path that the policy allows and that is neither quarantined nor
    /// suspect.
    pub(crate) fn servable(&self, hash_part: HashPart) -> Result<PathInfo, Refusal> {
        let (info, snapshot) = self.read(hash_part)?;
        let epoch = snapshot.map(|snapshot| snapshot.epoch);
        self.shared.health.admit(&Row::from(&info), epoch)?;
        Ok(info)
    }

    /// Reads the row of a path that the policy allows. Also returns the catalog's snapshot from
    /// before that; `None` if the store has no catalog.
    fn read(&self, hash_part: HashPart) -> Result<(PathInfo, Option<Arc<Snapshot>>), Refusal> {
        self.policy.admit(&hash_part)?;
        // The store may be readable while the catalog is being loaded. The check at the end of the
        // response covers this case.
        let snapshot = self.store().catalog().map(|catalog| {
            let refreshed = catalog.refresh().ok().flatten();
            refreshed.unwrap_or_else(|| catalog.current())
        });
        let info = self.lookup(hash_part)?;
        self.permit(&info)?;
        self.note_name(&info.path);
        Ok((info, snapshot))
    }

    /// Records the name of a requested path, if a log needs it.
    pub(crate) fn note_name(&self, path: &StorePath) {
        let (names, hash_part) = (&self.shared.names, path.hash_part());
        if self.shared.observer.names_paths() && names.find(&hash_part).is_none() {
            names.insert(hash_part, path.clone());
        }
    }

    /// Returns an error if a deny rule of the policy matches an uploaded path, or if that is
    /// unknown. Allow rules apply only to paths of the Nix store; a client with a token has chosen
    /// to upload the others.
    pub(crate) fn admit_uploaded(&self, path: &StoredPath) -> Result<(), Refusal> {
        if self.policy.is_open() {
            return Ok(());
        }
        self.admit_foreign(&uploaded_info(path))
    }

    /// Returns an error if a deny rule of the policy matches a path that is not in the store, or if
    /// that is unknown.
    pub(crate) fn admit_foreign(&self, info: &PathInfo) -> Result<(), Refusal> {
        match self.decide(info) {
            Decision::Allowed { .. } | Decision::NotAllowed => Ok(()),
            Decision::Denied => Err(Refusal::NotReadable),
            Decision::Unknown => Err(Refusal::Undecided),
        }
    }

    /// Returns the response about uploaded paths, or 503 while it is unknown which paths the policy
    /// hides. Checked before and after the response is made, so that a hidden path is never
    /// answered as an absent one.
    pub(crate) fn decided(&self, response: impl FnOnce() -> Response) -> Response {
        if self.policy.is_unknown() {
            return Fixed::Unavailable.response();
        }
        let response = response();
        match response.status() == Status::NOT_FOUND && self.policy.is_unknown() {
            true => Fixed::Unavailable.response(),
            false => response,
        }
    }

    /// Whether exactly this path may be read. The error is returned if that cannot be decided now.
    pub(crate) fn may_read(&self, path: &StorePath) -> Result<bool, Refusal> {
        match self.readable(path.hash_part()) {
            Ok(info) => Ok(info.path == *path),
            Err(refusal) if refusal.is_absence() => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }
}

/// Converts an uploaded path into a row as in the Nix store.
pub(crate) fn uploaded_info(path: &StoredPath) -> PathInfo {
    PathInfo {
        path: path.path.clone(),
        nar_hash: path.nar.nar_hash,
        nar_size: path.nar.nar_size,
        references: path.references.clone(),
        deriver: path.deriver.clone(),
        signatures: path.signatures.clone(),
        content_address: path.content_address,
        registration_time: path.registered_at,
        ultimate: false,
        registration: None,
    }
}
