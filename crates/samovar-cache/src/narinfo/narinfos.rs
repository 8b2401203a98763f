//! Looks up, renders, signs and caches the narinfos of one cache.

use std::sync::Arc;

use samovar_nix::{HashPart, PathInfo, StorePath};
use samovar_store::{Member, Snapshot, StoreError};

use crate::known::registration::Registration;
use crate::known::row::Row;
use crate::known::sharded::PathCache;
use crate::known::shared_store::SharedStore;
use crate::narinfo::packed::PackedCache;
use crate::narinfo::prefetch_queue::PrefetchQueue;
use crate::narinfo::rendered::{Rendered, RenderedCache, SHARD_COUNT, Stamp};
use crate::narinfo::signing::Signing;
use crate::reader::policy::{FOREVER, PolicyConfig};
use crate::reader::{Permit, Reader};
use crate::refusal::Refusal;

/// The result of a request for one narinfo.
pub(crate) type Answer = Result<Rendered, Refusal>;

/// The narinfos of one cache, shared by all threads.
#[derive(Debug)]
pub(crate) struct Narinfos {
    pub(crate) reader: Reader,
    pub(crate) signing: Signing,
    pub(crate) rendered: Arc<RenderedCache>,
    /// `None` if there is no memory for packed narinfos.
    pub(crate) packed: Option<Arc<PackedCache>>,
    memory: NarinfoMemory,
    pub(crate) prefetch_queue: PrefetchQueue,
}

/// The memory for the narinfos of one cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NarinfoMemory {
    /// Memory for rendered narinfos, in bytes.
    rendered_len: usize,
    /// Memory for packed narinfos, in bytes.
    packed_len: usize,
}

impl NarinfoMemory {
    /// Maximum memory for the rendered narinfos of all caches, in bytes. Further memory holds
    /// packed narinfos.
    pub(crate) const RENDERED_LEN_MAX: usize = 32 << 20;

    /// Divides memory among `cache_count` caches.
    pub(crate) fn share(memory_len: usize, cache_count: usize) -> Self {
        let rendered_len = memory_len.min(Self::RENDERED_LEN_MAX);
        Self {
            rendered_len: rendered_len / cache_count.max(1),
            packed_len: (memory_len - rendered_len) / cache_count.max(1),
        }
    }
}

impl Narinfos {
    pub(crate) fn new(
        shared: &Arc<SharedStore>,
        signing: Signing,
        policy: PolicyConfig,
        memory: NarinfoMemory,
    ) -> Self {
        let evictions = Arc::clone(&shared.narinfo_evictions);
        let NarinfoMemory {
            rendered_len,
            packed_len,
        } = memory;
        Self {
            reader: Reader::new(shared, policy),
            signing: signing.checked(),
            rendered: Arc::new(RenderedCache::new(SHARD_COUNT, rendered_len, evictions)),
            packed: (packed_len > 0).then(|| {
                let counts = Arc::clone(&shared.packed_counts);
                Arc::new(PackedCache::new(packed_len, counts))
            }),
            memory,
            prefetch_queue: PrefetchQueue::default(),
        }
    }

    /// Whether a cache with these settings would render the same narinfos.
    pub(crate) fn are_made_of(
        &self,
        signing: &Signing,
        policy: &PolicyConfig,
        memory: NarinfoMemory,
    ) -> bool {
        self.signing.is_made_of(signing)
            && self.reader.policy.config == *policy
            && self.memory == memory
    }

    /// Returns the narinfo of a readable path, if it is in memory and valid for `snapshot` and the
    /// present policy. Never blocks.
    pub(crate) fn find(&self, snapshot: &Snapshot, hash_part: &HashPart) -> Option<Rendered> {
        let now = self.stamp(snapshot);
        let Some(rendered) = self.rendered.find(hash_part) else {
            return self.unpack(hash_part, now);
        };
        if rendered.is_prefetched {
            self.rendered
                .update(hash_part, |rendered| rendered.is_prefetched = false);
            self.prefetch_queue.note_useful();
        }
        let is_true = rendered.stamp == Some(now) && self.permits(rendered.until);
        is_true.then_some(rendered)
    }

    /// Whether a permission that expires at `until` is still valid.
    fn permits(&self, until: i64) -> bool {
        until == FOREVER || self.reader.policy.now() < until
    }

    /// Whether a request for this hash part needs no look-up in the store. Unpacks nothing.
    fn has(&self, snapshot: &Snapshot, hash_part: &HashPart) -> bool {
        let now = self.stamp(snapshot);
        let is_valid = |stamp, until| stamp == now && self.permits(until);
        let is_packed = |packed: &Arc<PackedCache>| packed.has(hash_part, is_valid);
        self.is_absent(snapshot, hash_part)
            || self.packed.as_ref().is_some_and(is_packed)
            || self.rendered.peek(hash_part).is_some_and(|rendered| {
                rendered
                    .stamp
                    .is_some_and(|stamp| is_valid(stamp, rendered.until))
            })
    }

    /// Adds the packed narinfo of a path to the rendered ones, and returns it; `None` if none is
    /// valid now.
    fn unpack(&self, hash_part: &HashPart, now: Stamp) -> Option<Rendered> {
        let packed = self.packed.as_ref()?;
        let is_valid = |stamp, until| stamp == now && self.permits(until);
        let rendered = packed.find(hash_part, is_valid)?;
        self.rendered.insert(*hash_part, rendered.clone());
        self.drop_if_marked(hash_part);
        Some(rendered)
    }

    /// Returns the narinfo of one path, after leasing the path if possible.
    pub(crate) fn one(&self, hash_part: HashPart) -> Answer {
        let (snapshot, leases) = (self.reader.shared.refresh(), &self.reader.shared.leases);
        let rendered = self.find_one(snapshot.as_deref(), hash_part)?;
        let is_done = match leases.generation() {
            0 => !leases.is_on(),
            generation => rendered.leased == generation,
        };
        if is_done {
            return Ok(rendered);
        }
        let asked = leases.announce(std::slice::from_ref(&rendered.narinfo.row.path));
        self.note_leased(&hash_part, asked.generation);
        if asked.has_waited && !self.is_current(snapshot.as_deref()) {
            return self.find_one(self.reader.shared.refresh().as_deref(), hash_part);
        }
        Ok(rendered)
    }

    /// Returns the registration of a readable path: from its narinfo, if that is in memory and
    /// valid, and otherwise from the store. During an outage the store is asked, so that its end is
    /// noticed.
    pub(crate) fn registration(&self, hash_part: HashPart) -> Result<Registration, Refusal> {
        if let Some(snapshot) = self.reader.shared.fresh_at_once()
            && let Some(rendered) = self.find(&snapshot, &hash_part)
        {
            let row = rendered.narinfo.row.clone();
            self.reader.note_name(&row.path);
            return Ok(self.reader.shared.registration(row, Some(snapshot)));
        }
        self.reader.registration(hash_part)
    }

    fn find_one(&self, snapshot: Option<&Snapshot>, hash_part: HashPart) -> Answer {
        if let Some(snapshot) = snapshot {
            // Under a policy the database is read in either case, so that response times do not
            // reveal which paths exist.
            if self.reader.policy.is_open() && !snapshot.may_contain(&hash_part) {
                self.reader.shared.recovered();
                return Err(Refusal::Absent);
            }
            if let Some(rendered) = self.find(snapshot, &hash_part) {
                return Ok(rendered);
            }
        }
        self.reader.policy.admit(&hash_part)?;
        let info = self.reader.lookup(hash_part).inspect_err(|refusal| {
            if refusal.is_absence() {
                self.remove(&hash_part);
            }
        })?;
        let rendered = self.admit(&info, snapshot)?;
        self.prefetch_queue.note_cold();
        // A client that copies the path will request these next. Without a snapshot they could not
        // be kept.
        if snapshot.is_some() {
            self.prefetch_queue.add(references(&info), PREFETCH_DEPTH);
        }
        Ok(rendered)
    }

    /// Renders the narinfo for this row, unless the path must not be served.
    fn admit(&self, info: &PathInfo, snapshot: Option<&Snapshot>) -> Answer {
        let permit = self.reader.permit(info)?;
        let epoch = snapshot.map(|snapshot| snapshot.epoch);
        self.reader.shared.health.admit(&Row::from(info), epoch)?;
        let rendered = self.render(info, snapshot, permit);
        let hash_part = info.path.hash_part();
        self.insert(hash_part, rendered.clone());
        Ok(rendered)
    }

    /// Adds a narinfo that was just rendered.
    fn insert(&self, hash_part: HashPart, rendered: Rendered) {
        if let Some(packed) = &self.packed {
            packed.insert(hash_part, &rendered);
        }
        self.rendered.insert(hash_part, rendered);
        self.drop_if_marked(&hash_part);
    }

    /// Drops a narinfo that was just added, if its path was marked as suspect or quarantined
    /// meanwhile.
    fn drop_if_marked(&self, hash_part: &HashPart) {
        if self.reader.shared.health.is_marked(hash_part) {
            self.remove(hash_part);
        }
    }

    /// Drops the narinfo of a path from memory.
    fn remove(&self, hash_part: &HashPart) {
        self.rendered.remove(hash_part);
        if let Some(packed) = &self.packed {
            packed.drop_path(hash_part);
        }
    }

    /// Drops all narinfos from memory.
    pub(crate) fn clear(&self) {
        self.rendered.clear();
        if let Some(packed) = &self.packed {
            packed.clear();
        }
    }

    /// Returns the narinfos of many paths in the requested order, each as [`one`](Self::one) would.
    /// `leases`: whether to lease the paths.
    pub(crate) fn many(
        &self,
        hash_parts: &[HashPart],
        leases: bool,
    ) -> Result<Vec<Answer>, StoreError> {
        let snapshot = self.reader.shared.refresh();
        let answers = self.find_many(snapshot.as_deref(), hash_parts)?;
        if !leases || !self.reader.shared.leases.is_on() {
            return Ok(answers);
        }
        let found = answers.iter().flatten();
        let paths: Vec<StorePath> = found.map(|found| found.narinfo.row.path.clone()).collect();
        let asked = self.reader.shared.leases.announce(&paths);
        for path in &paths {
            self.note_leased(&path.hash_part(), asked.generation);
        }
        if asked.has_waited && !self.is_current(snapshot.as_deref()) {
            return self.find_many(self.reader.shared.refresh().as_deref(), hash_parts);
        }
        Ok(answers)
    }

    fn find_many(
        &self,
        snapshot: Option<&Snapshot>,
        hash_parts: &[HashPart],
    ) -> Result<Vec<Answer>, StoreError> {
        if self.reader.policy.is_unknown() {
            return Ok(vec![Err(Refusal::Undecided); hash_parts.len()]);
        }
        let mut answers: Vec<_> = hash_parts
            .iter()
            .map(|hash_part| self.known(snapshot, hash_part))
            .collect();
        let unknown: Vec<HashPart> = hash_parts
            .iter()
            .zip(&answers)
            .filter_map(|(hash_part, answer)| answer.is_none().then_some(*hash_part))
            .collect();
        let mut looked = if unknown.is_empty() {
            Vec::new().into_iter()
        } else {
            self.reader.shared.store.lookup_many(&unknown)?.into_iter()
        };
        self.reader.shared.recovered();
        for (hash_part, answer) in hash_parts.iter().zip(&mut answers) {
            if answer.is_some() {
                continue;
            }
            *answer = Some(match looked.next() {
                Some(Ok(Some(info))) => self.admit(&info, snapshot),
                Some(Err(error)) => {
                    let refusal = self.reader.hide(hash_part, error);
                    self.reader.shared.report(hash_part, refusal);
                    Err(refusal)
                }
                Some(Ok(None)) | None => {
                    self.remove(hash_part);
                    Err(Refusal::Absent)
                }
            });
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Returns the tables of narinfos in memory.
    pub(crate) fn path_caches(&self) -> impl Iterator<Item = Arc<dyn PathCache>> {
        let rendered: Arc<dyn PathCache> = Arc::<RenderedCache>::clone(&self.rendered);
        let packed = self
            .packed
            .clone()
            .map(|packed| packed as Arc<dyn PathCache>);
        std::iter::once(rendered).chain(packed)
    }

    /// Returns the store path with this hash part, if its rendered narinfo is in memory.
    pub(crate) fn name_of(&self, hash_part: &HashPart) -> Option<StorePath> {
        Some(self.rendered.peek(hash_part)?.narinfo.row.path.clone())
    }

    /// Whether the path of this narinfo can be sent without requesting a lease. Never blocks.
    pub(crate) fn is_leased(&self, rendered: &Rendered) -> bool {
        let generation = self.reader.shared.leases.generation();
        generation == 0 || rendered.leased == generation
    }

    fn note_leased(&self, hash_part: &HashPart, generation: u32) {
        self.rendered
            .update(hash_part, |rendered| rendered.leased = generation);
        if let Some(packed) = &self.packed {
            packed.note_leased(hash_part, generation);
        }
    }

    /// Whether the store is still in the epoch of `snapshot`.
    fn is_current(&self, snapshot: Option<&Snapshot>) -> bool {
        let now = self.reader.shared.fresh();
        now.is_some_and(|now| snapshot.is_some_and(|snapshot| snapshot.epoch == now.epoch))
    }

    /// Renders those narinfos in `queued` that are not up to date, and queues their references.
    /// Does nothing while the catalog is out of date.
    pub(crate) fn prepare(&self, queued: &[(HashPart, u8)]) -> Result<(), StoreError> {
        let Some(snapshot) = self.reader.shared.fresh() else {
            return Ok(());
        };
        let wanted: Vec<(HashPart, u8)> = queued
            .iter()
            .filter(|(hash_part, _)| !self.has(&snapshot, hash_part))
            .copied()
            .collect();
        let hash_parts: Vec<HashPart> = wanted.iter().map(|(hash_part, _)| *hash_part).collect();
        let looked = self.reader.shared.store.lookup_many(&hash_parts)?;
        self.prefetch_queue.pay(hash_parts.len());
        for ((hash_part, depth), looked) in wanted.into_iter().zip(looked) {
            // A row that cannot be read is reported when it is requested.
            if let Ok(Some(info)) = looked
                && !self.reader.shared.health.is_marked(&hash_part)
                && let Ok(permit) = self.reader.permit(&info)
            {
                let mut rendered = self.render(&info, Some(&snapshot), permit);
                rendered.is_prefetched = true;
                self.insert(hash_part, rendered);
                self.prefetch_queue
                    .add(references(&info), depth.saturating_sub(1));
            }
        }
        Ok(())
    }

    /// Renders narinfos before they are requested. Caches each only if this evicts no other one.
    /// `infos` must not be older than `snapshot`.
    pub(crate) fn offer(&self, infos: &[PathInfo], snapshot: &Snapshot) {
        for info in infos {
            let hash_part = info.path.hash_part();
            if !self.reader.shared.health.is_marked(&hash_part)
                && self.rendered.has_capacity(&hash_part)
                && let Ok(permit) = self.reader.permit(info)
            {
                let rendered = self.render(info, Some(snapshot), permit);
                self.rendered.offer(hash_part, rendered);
            }
            self.drop_if_marked(&hash_part);
        }
    }

    /// Whether all these paths may be read. A path with a corrupt row may not.
    pub(crate) fn are_readable(&self, members: &[Member]) -> Result<bool, StoreError> {
        for some in members.chunks(STEP_COUNT) {
            let hash_parts: Vec<HashPart> = some.iter().map(|member| member.hash_part).collect();
            if !self.many(&hash_parts, false)?.iter().all(Result::is_ok) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the narinfo or the refusal for a hash part, if that needs no look-up in the store;
    /// otherwise `None`.
    fn known(&self, snapshot: Option<&Snapshot>, hash_part: &HashPart) -> Option<Answer> {
        let snapshot = snapshot?;
        if self.is_absent(snapshot, hash_part) {
            return Some(Err(Refusal::Absent));
        }
        self.find(snapshot, hash_part).map(Ok)
    }

    /// Whether this cache has no path with this hash part, without a look-up in the store.
    fn is_absent(&self, snapshot: &Snapshot, hash_part: &HashPart) -> bool {
        !snapshot.may_contain(hash_part) || self.reader.policy.rules_out(hash_part)
    }

    fn render(&self, info: &PathInfo, snapshot: Option<&Snapshot>, permit: Permit) -> Rendered {
        let hash_part = info.path.hash_part();
        let before = self.rendered.peek(&hash_part);
        let before = before.or_else(|| self.packed.as_ref()?.peek(&hash_part));
        let stamp = snapshot.map(|snapshot| Stamp {
            epoch: snapshot.epoch,
            generation: permit.generation,
        });
        let dir = self.reader.shared.store.store_dir();
        let narinfo = before.as_ref().map(|before| &before.narinfo);
        Rendered {
            stamp,
            until: permit.until,
            // The daemon leases a path by its name, so the lease holds for any registration of the
            // path.
            leased: before.as_ref().map_or(0, |before| before.leased),
            is_prefetched: false,
            narinfo: self.signing.render(info, dir, narinfo),
        }
    }

    fn stamp(&self, snapshot: &Snapshot) -> Stamp {
        Stamp {
            epoch: snapshot.epoch,
            generation: self.reader.policy.generation(),
        }
    }
}

/// Number of members of a closure that are looked up at once.
const STEP_COUNT: usize = 256;

/// Depth to which the references of a requested path are prefetched. Prefetching the whole closure
/// would be wasted on a client that has most of it; a client that needs more queues the rest by its
/// own requests.
const PREFETCH_DEPTH: u8 = 2;

fn references(info: &PathInfo) -> impl Iterator<Item = HashPart> + '_ {
    info.references
        .iter()
        .map(StorePath::hash_part)
        .filter(|hash_part| *hash_part != info.path.hash_part())
}
