//! Makes a plan from the steps of a walk.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use samovar_nix::nar::{Discard, Encoder};

use super::record;
use super::{CHECKPOINT_DISTANCE, Checkpoint, NarPlan, PLANS_LEN_MAX, PlanError};
use crate::tree::identity::Identity;
use crate::tree::reservation::Reservation;
use crate::tree::segments::encode;
use crate::tree::walk::Step;

/// Granularity of memory reservations for a plan, in bytes.
const RESERVED_LEN: usize = 16 * 1024;

/// Memory of all existing plans, in bytes.
static PLANS_LEN: AtomicUsize = AtomicUsize::new(0);

/// A plan under construction.
#[derive(Debug)]
pub(in crate::tree) struct Planner {
    encoder: Encoder,
    records: Vec<u8>,
    checkpoints: Vec<Checkpoint>,
    /// Positions of the records of the open directories, the root's first.
    levels: Vec<usize>,
    /// Name of the next file.
    name: Vec<u8>,
    /// Number of records since the last checkpoint.
    record_count: usize,
    file_count: u64,
    memory_len_max: usize,
    reservation: Reservation,
}

impl Planner {
    /// Starts a plan of at most `memory_len_max` bytes.
    pub(in crate::tree) fn new(memory_len_max: usize) -> Result<Self, PlanError> {
        let mut encoder = Encoder::new();
        encoder.begin(&mut Discard)?;
        Ok(Self {
            encoder,
            records: Vec::new(),
            checkpoints: Vec::new(),
            levels: Vec::new(),
            name: Vec::new(),
            record_count: 0,
            file_count: 0,
            // Positions are stored in 32 bits, so a plan is limited to 1 GiB.
            memory_len_max: memory_len_max.min(1 << 30),
            reservation: Reservation::empty(&PLANS_LEN),
        })
    }

    /// Adds the records for a step of the walk.
    pub(in crate::tree) fn step(&mut self, step: &Step<'_>) -> Result<(), PlanError> {
        if matches!(step, Step::Entry { .. } | Step::EndDirectory) {
            self.note_checkpoint();
        }
        encode(&mut self.encoder, &mut Discard, step)?;
        match *step {
            Step::File {
                executable, size, ..
            } => {
                self.encoder.end_file(&mut Discard)?;
                record::put_file(&mut self.records, &self.name, executable, size);
                self.file_count += 1;
            }
            Step::Symlink { target } => {
                record::put_symlink(&mut self.records, &self.name, target);
            }
            Step::BeginDirectory => {
                let at = self.records.len();
                record::put_directory(&mut self.records, &self.name, self.levels.last().copied());
                self.levels.push(at);
            }
            Step::Entry { name } => {
                self.name.clear();
                self.name.extend_from_slice(name);
                return Ok(());
            }
            Step::EndEntry => return Ok(()),
            Step::EndDirectory => {
                self.levels.pop();
                record::put_end(&mut self.records);
            }
        }
        self.record_count += 1;
        self.check_memory()
    }

    /// Completes the plan.
    pub(in crate::tree) fn finish(mut self, root: Identity) -> Result<NarPlan, PlanError> {
        let memory_len = self.memory_len();
        self.reservation.shrink_to(memory_len);
        Ok(NarPlan {
            nar_size: self.encoder.finish()?,
            records: self.records.into(),
            checkpoints: self.checkpoints.into(),
            file_count: self.file_count,
            root,
            listing_len: OnceLock::new(),
            has_failed: AtomicBool::new(false),
            reservation: self.reservation,
        })
    }

    fn memory_len(&self) -> usize {
        size_of::<NarPlan>() + self.records.len() + size_of_val(&*self.checkpoints)
    }

    fn check_memory(&mut self) -> Result<(), PlanError> {
        let memory_len = self.memory_len();
        if memory_len > self.memory_len_max {
            return Err(PlanError::TooLarge);
        }
        let missing = memory_len.saturating_sub(self.reservation.count());
        if missing > 0
            && !self
                .reservation
                .try_grow(missing.max(RESERVED_LEN), PLANS_LEN_MAX)
        {
            return Err(PlanError::NoRoom);
        }
        Ok(())
    }

    fn note_checkpoint(&mut self) {
        let place = u32::try_from(self.records.len());
        let directory = self.levels.last().copied().map(u32::try_from);
        if let (Ok(at), Some(Ok(directory))) = (place, directory)
            && self.record_count >= CHECKPOINT_DISTANCE
        {
            self.record_count = 0;
            self.checkpoints.push(Checkpoint {
                nar_offset: self.encoder.offset(),
                at,
                directory,
            });
        }
    }
}
