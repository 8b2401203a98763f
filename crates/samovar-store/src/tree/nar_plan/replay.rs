//! [`Replay`]: the steps of a plan, from the start or from any offset.

use std::ops::Range;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use samovar_nix::nar::Encoder;

use super::NarPlan;
use super::record::{self, Record};
use crate::tree::TreeError;
use crate::tree::walk::Step;

/// Iterates over the steps of a plan without reading files.
#[derive(Debug)]
pub(in crate::tree) struct Replay {
    plan: Arc<NarPlan>,
    /// Position of the next record.
    at: usize,
    state: State,
    /// Positions of the records of the open directories, the root's first.
    levels: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Node,
    Directory,
    AfterChild,
    Done,
}

/// A [`Step`] that borrows nothing: names and targets are ranges of the plan.
#[derive(Debug, Clone)]
pub(super) enum Move {
    /// A file, a link, or the start or end of a directory.
    Record(Record),
    Entry(Range<usize>),
    EndEntry,
}

impl Replay {
    /// Creates an iterator over all steps.
    pub(in crate::tree) fn new(plan: &Arc<NarPlan>) -> Self {
        Self {
            plan: Arc::clone(plan),
            at: 0,
            state: State::Node,
            levels: Vec::new(),
        }
    }

    /// Creates an iterator whose first step is at an offset of the NAR or shortly before it.
    /// Returns it with the encoder that continues from that step; the encoder is `None` if the
    /// iterator starts with the first step of the plan.
    pub(in crate::tree) fn seek(
        plan: &Arc<NarPlan>,
        nar_offset: u64,
    ) -> Result<(Self, Option<Encoder>), TreeError> {
        let mut replay = Self::new(plan);
        let Some(checkpoint) = plan.checkpoint(nar_offset) else {
            return Ok((replay, None));
        };
        let place = |place: u32| usize::try_from(place).map_err(|_error| TreeError::Changed);
        replay.at = place(checkpoint.at)?;
        replay.state = State::Directory;
        replay.levels = replay.levels_of(place(checkpoint.directory)?)?;
        let names = replay
            .levels
            .iter()
            .skip(1)
            .map(|level| replay.name(*level));
        let encoder = Encoder::resume(checkpoint.nar_offset, names)?;
        Ok((replay, Some(encoder)))
    }

    pub(super) fn plan(&self) -> &NarPlan {
        &self.plan
    }

    /// Takes the next step; `None` at the end.
    pub(in crate::tree) fn next(&mut self) -> Result<Option<Step<'_>>, TreeError> {
        let next = self.advance()?;
        Ok(next.map(|next| self.step(next, None)))
    }

    /// Takes the next step as a [`Move`]; `None` at the end.
    pub(super) fn advance(&mut self) -> Result<Option<Move>, TreeError> {
        Ok(Some(match self.state {
            State::Node => self.node()?,
            State::Directory => self.entry_or_end()?,
            State::AfterChild => {
                self.state = State::Directory;
                Move::EndEntry
            }
            State::Done => return Ok(None),
        }))
    }

    /// Converts a step into a [`Step`], with its file if that was opened.
    pub(super) fn step(&self, taken: Move, file: Option<OwnedFd>) -> Step<'_> {
        match taken {
            Move::Record(Record::File {
                executable, size, ..
            }) => Step::File {
                executable,
                size,
                file,
            },
            Move::Record(Record::Symlink { target, .. }) => Step::Symlink {
                target: self.bytes(target),
            },
            Move::Record(Record::Directory { .. }) => Step::BeginDirectory,
            Move::Record(Record::End) => Step::EndDirectory,
            Move::Entry(name) => Step::Entry {
                name: self.bytes(name),
            },
            Move::EndEntry => Step::EndEntry,
        }
    }

    /// Returns the number of open directories.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Returns the name of an open directory, by depth; the root's is empty.
    pub(super) fn level_name(&self, index: usize) -> &[u8] {
        self.name(self.levels[index])
    }

    /// Returns a name or target of the plan.
    pub(super) fn bytes(&self, place: Range<usize>) -> &[u8] {
        &self.plan.records[place]
    }

    fn node(&mut self) -> Result<Move, TreeError> {
        let (record, next) = self.record(self.at)?;
        match record {
            Record::File { .. } | Record::Symlink { .. } => self.end_node(),
            Record::Directory { .. } => {
                self.levels.push(self.at);
                self.state = State::Directory;
            }
            Record::End => return Err(TreeError::Changed),
        }
        self.at = next;
        Ok(Move::Record(record))
    }

    fn entry_or_end(&mut self) -> Result<Move, TreeError> {
        let (record, next) = self.record(self.at)?;
        match record {
            Record::File { name, .. }
            | Record::Symlink { name, .. }
            | Record::Directory { name, .. } => {
                self.state = State::Node;
                Ok(Move::Entry(name))
            }
            Record::End => {
                self.at = next;
                self.levels.pop();
                self.end_node();
                Ok(Move::Record(record))
            }
        }
    }

    fn end_node(&mut self) {
        self.state = if self.levels.is_empty() {
            State::Done
        } else {
            State::AfterChild
        };
    }

    /// Returns the positions of the records of a directory and its parents, the root's first.
    fn levels_of(&self, mut directory: usize) -> Result<Vec<usize>, TreeError> {
        let mut levels = vec![directory];
        while let (Record::Directory { parent, .. }, _next) = self.record(directory)?
            && parent != directory
        {
            directory = parent;
            levels.push(directory);
        }
        levels.reverse();
        Ok(levels)
    }

    fn name(&self, directory: usize) -> &[u8] {
        match self.record(directory) {
            Ok((Record::Directory { name, .. }, _next)) => self.bytes(name),
            _ => &[],
        }
    }

    fn record(&self, at: usize) -> Result<(Record, usize), TreeError> {
        record::read(&self.plan.records, at).ok_or(TreeError::Changed)
    }
}
