//! The narinfos of a store: found, rendered, signed, and kept while they are true.

use std::sync::Arc;

use samovar_nix::{HashPart, PathInfo, StorePath};
use samovar_store::{Member, Snapshot, StoreError};

use crate::known::shared_store::SharedStore;
use crate::narinfo::prefetch_queue::Wishes;
use crate::narinfo::rendered::{Rendered, RenderedCache, SHARD_COUNT, Stamp};
use crate::narinfo::signing::{Signer, Signing};
use crate::reader::policy::{FOREVER, PolicyConfig};
use crate::reader::{Permit, Reader};
use crate::refusal::Refusal;

/// The narinfo of one path.
pub(crate) type Answer = Result<Rendered, Refusal>;

/// All that answers for the narinfos of one cache, on whatever thread.
#[derive(Debug)]
pub(crate) struct Narinfos {
    pub(crate) reader: Reader,
    signer: Signer,
    rendered: Arc<RenderedCache>,
    pub(crate) wishes: Wishes,
}

impl Narinfos {
    pub(crate) fn new(
        shared: &Arc<SharedStore>,
        signing: Signing,
        policy: PolicyConfig,
        memory_len: usize,
    ) -> Self {
        Self {
            reader: Reader::new(shared, policy),
            signer: Signer::new(signing),
            rendered: Arc::new(RenderedCache::new(SHARD_COUNT, memory_len)),
            wishes: Wishes::default(),
        }
    }

    /// Whether others made of this would say the same.
    pub(crate) fn are_made_of(
        &self,
        signing: &Signing,
        policy: &PolicyConfig,
        memory_len: usize,
    ) -> bool {
        self.signer.is_made_of(signing)
            && self.reader.policy.is_made_of(policy)
            && self.rendered.has_memory_len(memory_len)
    }

    /// Nobody asks any more. What is in memory goes: threads that have nothing to do hold on to
    /// the rest.
    pub(crate) fn retire(&self) {
        self.rendered.clear();
    }

    /// The rendered narinfos.
    pub(crate) fn rendered(&self) -> &Arc<RenderedCache> {
        &self.rendered
    }

    pub(crate) fn signer(&self) -> &Signer {
        &self.signer
    }

    /// A narinfo that is known to be true while `snapshot` is, of a path that may be read. Never
    /// blocks.
    pub(crate) fn find(&self, snapshot: &Snapshot, hash_part: &HashPart) -> Option<Rendered> {
        let now = self.stamp(snapshot);
        let rendered = self.rendered.find(hash_part)?;
        if rendered.is_prefetched {
            self.rendered
                .update(hash_part, |rendered| rendered.is_prefetched = false);
            self.wishes.note_useful();
        }
        let is_true = rendered.stamp == Some(now)
            && (rendered.until == FOREVER || self.reader.policy.now() < rendered.until);
        is_true.then_some(rendered)
    }

    /// What is said of one path, which is held from now on if that can be.
    pub(crate) fn one(&self, hash_part: HashPart) -> Answer {
        let snapshot = self.reader.shared.refresh();
        let rendered = self.find_one(snapshot.as_deref(), hash_part)?;
        let is_done = match self.reader.shared.holds.generation() {
            0 => !self.reader.shared.holds.is_on(),
            generation => rendered.leased == generation,
        };
        if is_done {
            return Ok(rendered);
        }
        let path = &rendered.narinfo.path;
        let asked = self
            .reader
            .shared
            .holds
            .announce(std::slice::from_ref(path));
        self.note_leased(&hash_part, asked.generation);
        if asked.has_waited && !self.is_current(snapshot.as_deref()) {
            return self.find_one(self.reader.shared.refresh().as_deref(), hash_part);
        }
        Ok(rendered)
    }

    fn find_one(&self, snapshot: Option<&Snapshot>, hash_part: HashPart) -> Answer {
        if let Some(snapshot) = snapshot {
            // Under a policy the database is asked either way: it takes as long.
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
                self.rendered.remove(&hash_part);
            }
        })?;
        let rendered = self.admit(&info, snapshot)?;
        self.wishes.note_cold();
        // Whoever copies a path asks for these next.
        self.wishes.add(references(&info), WISH_DEPTH);
        Ok(rendered)
    }

    /// Renders the narinfo of a path with this row, unless the path is not to be served.
    fn admit(&self, info: &PathInfo, snapshot: Option<&Snapshot>) -> Answer {
        let permit = self.reader.permit(info)?;
        let epoch = snapshot.map(|snapshot| snapshot.epoch);
        self.reader.shared.health.admit(info, epoch)?;
        let rendered = self.render(info, snapshot, permit);
        let hash_part = info.path.hash_part();
        self.rendered.insert(hash_part, rendered.clone());
        self.keep_out(&hash_part);
        Ok(rendered)
    }

    /// Drops what was rendered of a path just now, if the path was found damaged meanwhile.
    fn keep_out(&self, hash_part: &HashPart) {
        if self.reader.shared.health.is_marked(hash_part) {
            self.rendered.remove(hash_part);
        }
    }

    /// The narinfos of many paths, in the order asked: what [`one`](Self::one) would say of each
    /// at this moment. `holds`: whether they are held from now on.
    pub(crate) fn many(
        &self,
        hash_parts: &[HashPart],
        holds: bool,
    ) -> Result<Vec<Answer>, StoreError> {
        let snapshot = self.reader.shared.refresh();
        let answers = self.find_many(snapshot.as_deref(), hash_parts)?;
        if !holds || !self.reader.shared.holds.is_on() {
            return Ok(answers);
        }
        let found = answers.iter().flatten();
        let paths: Vec<StorePath> = found.map(|found| found.narinfo.path.clone()).collect();
        let asked = self.reader.shared.holds.announce(&paths);
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
                    self.rendered.remove(hash_part);
                    Err(Refusal::Absent)
                }
            });
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// The path with this hash part, if its narinfo is in memory.
    pub(crate) fn name_of(&self, hash_part: &HashPart) -> Option<StorePath> {
        Some(self.rendered.peek(hash_part)?.narinfo.path.clone())
    }

    /// Whether nothing has to be done to hold the path of this narinfo. Never blocks.
    pub(crate) fn is_held(&self, rendered: &Rendered) -> bool {
        let generation = self.reader.shared.holds.generation();
        generation == 0 || rendered.leased == generation
    }

    fn note_leased(&self, hash_part: &HashPart, generation: u32) {
        self.rendered
            .update(hash_part, |rendered| rendered.leased = generation);
    }

    /// Whether the store is still in this state.
    fn is_current(&self, snapshot: Option<&Snapshot>) -> bool {
        let now = self.reader.shared.fresh();
        now.is_some_and(|now| snapshot.is_some_and(|snapshot| snapshot.epoch == now.epoch))
    }

    /// Makes true again, or for the first time, what `wishes` names, and wishes for what those
    /// refer to. Does nothing while nobody knows the state of the store.
    pub(crate) fn prepare(&self, wishes: &[(HashPart, u8)]) -> Result<(), StoreError> {
        let Some(snapshot) = self.reader.shared.fresh() else {
            return Ok(());
        };
        let wanted: Vec<(HashPart, u8)> = wishes
            .iter()
            .filter(|(hash_part, _)| self.known(Some(&snapshot), hash_part).is_none())
            .copied()
            .collect();
        let hash_parts: Vec<HashPart> = wanted.iter().map(|(hash_part, _)| *hash_part).collect();
        let looked = self.reader.shared.store.lookup_many(&hash_parts)?;
        self.wishes.pay(hash_parts.len());
        for ((hash_part, depth), looked) in wanted.into_iter().zip(looked) {
            // A row that makes no sense is reported to who asks for it.
            if let Ok(Some(info)) = looked
                && !self.reader.shared.health.is_marked(&hash_part)
                && let Ok(permit) = self.reader.permit(&info)
            {
                let mut rendered = self.render(&info, Some(&snapshot), permit);
                rendered.is_prefetched = true;
                self.rendered.insert(hash_part, rendered);
                self.keep_out(&hash_part);
                self.wishes.add(references(&info), depth.saturating_sub(1));
            }
        }
        Ok(())
    }

    /// Renders narinfos that nobody asked for, and keeps them where that costs no other its place.
    /// `infos` are newer than `snapshot` or as new. Returns for how many there was room.
    pub(crate) fn offer(&self, infos: &[PathInfo], snapshot: &Snapshot) -> usize {
        infos
            .iter()
            .filter(|info| {
                let hash_part = info.path.hash_part();
                let is_kept = !self.reader.shared.health.is_marked(&hash_part)
                    && self.rendered.has_capacity(&hash_part)
                    && match self.reader.permit(info) {
                        Ok(permit) => {
                            let rendered = self.render(info, Some(snapshot), permit);
                            self.rendered.offer(hash_part, rendered)
                        }
                        // It takes no room.
                        Err(_) => true,
                    };
                self.keep_out(&hash_part);
                is_kept
            })
            .count()
    }

    /// Whether all these may be read; a path whose row cannot be read may not.
    pub(crate) fn are_readable(&self, members: &[Member]) -> Result<bool, StoreError> {
        for some in members.chunks(STEP_COUNT) {
            let hash_parts: Vec<HashPart> = some.iter().map(|member| member.hash_part).collect();
            if !self.many(&hash_parts, false)?.iter().all(Result::is_ok) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What is known without asking the store.
    fn known(&self, snapshot: Option<&Snapshot>, hash_part: &HashPart) -> Option<Answer> {
        let snapshot = snapshot?;
        if !snapshot.may_contain(hash_part) || self.reader.policy.rules_out(hash_part) {
            return Some(Err(Refusal::Absent));
        }
        self.find(snapshot, hash_part).map(Ok)
    }

    fn render(&self, info: &PathInfo, snapshot: Option<&Snapshot>, permit: Permit) -> Rendered {
        let before = self.rendered.peek(&info.path.hash_part());
        let stamp = snapshot.map(|snapshot| Stamp {
            epoch: snapshot.epoch,
            generation: permit.generation,
        });
        let dir = self.reader.shared.store.store_dir();
        let narinfo = before.as_ref().map(|before| &before.narinfo);
        Rendered {
            stamp,
            until: permit.until,
            // A path is leased by its name, whichever registration it has.
            leased: before.as_ref().map_or(0, |before| before.leased),
            is_prefetched: false,
            narinfo: self.signer.render(info, dir, narinfo),
        }
    }

    fn stamp(&self, snapshot: &Snapshot) -> Stamp {
        Stamp {
            epoch: snapshot.epoch,
            generation: self.reader.policy.generation(),
        }
    }
}

/// Members of a closure that are decided about together.
const STEP_COUNT: usize = 256;

/// How far from a path that was asked for others are made ready: its references and theirs. All
/// of a closure would be work for nothing where a client has most of it; a client that goes further
/// wishes for more on its way.
const WISH_DEPTH: u8 = 2;

fn references(info: &PathInfo) -> impl Iterator<Item = HashPart> + '_ {
    info.references
        .iter()
        .map(StorePath::hash_part)
        .filter(|hash_part| *hash_part != info.path.hash_part())
}
