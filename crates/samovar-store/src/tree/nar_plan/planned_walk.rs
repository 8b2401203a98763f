//! Walks the files of a planned tree.

use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType};

use super::record::Record;
use super::replay::{Move, Replay};
use crate::tree::TreeError;
use crate::tree::descent::{Descent, open_directory};
use crate::tree::identity::Identity;
use crate::tree::walk::{Contents, Node, Step, open_file};

/// A walk that takes its steps from a plan, and opens directories only to open files in them.
#[derive(Debug)]
pub(in crate::tree) struct PlannedWalk {
    replay: Replay,
    root: PathBuf,
    /// The open directories from the root towards the current one, as far as needed. Empty if the
    /// root is not a directory.
    descent: Descent,
    /// Record of the most recent step that was a regular file: the file that
    /// [`open_last`](Self::open_last) opens.
    last: Option<Record>,
}

impl PlannedWalk {
    /// Combines `replay` with the files at `root`. Opens the root if it is a directory.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`]; [`TreeError::Changed`] if the root differs from the plan.
    pub(in crate::tree) fn new(replay: Replay, root: &Path) -> Result<Self, TreeError> {
        let mut walk = Self {
            replay,
            root: root.to_owned(),
            descent: Descent::default(),
            last: None,
        };
        let opened = walk.open_root();
        walk.note(opened)?;
        Ok(walk)
    }

    /// Takes the next step, `None` at the end: see [`Walk::next`](crate::tree::Walk::next).
    pub(in crate::tree) fn next(
        &mut self,
        contents: Contents,
    ) -> Result<Option<Step<'_>>, TreeError> {
        let Some(taken) = self.replay.advance()? else {
            return Ok(None);
        };
        let mut file = None;
        match &taken {
            Move::Record(record @ Record::File { .. }) => {
                self.last = Some(record.clone());
                if contents == Contents::Open {
                    file = Some(self.open_last()?);
                }
            }
            Move::Record(Record::End) if self.descent.depth() > self.replay.depth() => {
                let left = self.descent.leave();
                self.note(left)?;
            }
            _ => {}
        }
        Ok(Some(self.replay.step(taken, file)))
    }

    /// Opens the file of the last step.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`]; [`TreeError::Changed`] if its size or mode differs from the plan.
    pub(in crate::tree) fn open_last(&mut self) -> Result<OwnedFd, TreeError> {
        let opened = self.descend().and_then(|()| self.open_planned());
        self.note(opened)
    }

    fn open_root(&mut self) -> Result<(), TreeError> {
        let planned = self.replay.plan().root();
        let mut stat = rustix::fs::statat(CWD, &self.root, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let root = open_directory(CWD, &self.root)?;
            stat = rustix::fs::fstat(&root)?;
            self.descent.enter(root)?;
        }
        if planned == Identity::of(&stat) {
            Ok(())
        } else {
            Err(TreeError::Changed)
        }
    }

    /// Opens the directories down to the current one.
    fn descend(&mut self) -> Result<(), TreeError> {
        while self.descent.depth() < self.replay.depth() {
            let name = self.replay.level_name(self.descent.depth());
            let directory = open_directory(self.descent.innermost()?, name)?;
            self.descent.enter(directory)?;
        }
        Ok(())
    }

    fn open_planned(&self) -> Result<OwnedFd, TreeError> {
        let Some(Record::File {
            name,
            executable: planned_executable,
            size: planned_size,
        }) = &self.last
        else {
            return Err(TreeError::Changed);
        };
        let node = match self.replay.depth() {
            0 => open_file(CWD, &self.root)?,
            _ => open_file(self.descent.innermost()?, self.replay.bytes(name.clone()))?,
        };
        match node {
            Node::File {
                executable,
                size,
                file: Some(file),
            } if executable == *planned_executable && size == *planned_size => Ok(file),
            _ => Err(TreeError::Changed),
        }
    }

    /// Marks the plan as failed if `result` is an error.
    fn note<T>(&self, result: Result<T, TreeError>) -> Result<T, TreeError> {
        result.inspect_err(|_error| self.replay.plan().note_failure())
    }
}
