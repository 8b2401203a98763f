//! [`Walk`]: traverses the files of a tree in NAR order.
//!
//! # Theory of operation
//!
//! The stack has one level per directory: its sorted entries, and the index of the next entry. The
//! [`Descent`] holds the descriptors of the directories.

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawMode, Stat};
use rustix::path::Arg;

use super::TreeError;
use super::descent::{Descent, open_directory};
use super::directory::{Dents, Entries};

/// Maximum length of a symbolic link's target on Linux.
const TARGET_LEN_MAX: usize = 4096;

/// The mode bit that a NAR preserves.
pub(super) const OWNER_EXECUTE: RawMode = 0o100;

/// Treatment of regular files by a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    Open,
    /// Read their sizes only.
    SizesOnly,
}

/// A step of a walk. A directory yields `BeginDirectory`; for each child `Entry`, the child's steps
/// and `EndEntry`; and `EndDirectory`.
#[derive(Debug)]
pub(crate) enum Step<'walk> {
    File {
        /// Whether the owner may execute the file.
        executable: bool,
        size: u64,
        /// The file, open at its beginning; `None` with [`Contents::SizesOnly`].
        file: Option<OwnedFd>,
    },
    Symlink {
        /// Target of the link; never empty.
        target: &'walk [u8],
    },
    BeginDirectory,
    Entry {
        name: &'walk [u8],
    },
    EndEntry,
    EndDirectory,
}

/// A walk through a tree.
#[derive(Debug)]
pub(super) struct Walk {
    root: PathBuf,
    state: State,
    /// The directories from the root of the tree to the current one, one level each.
    levels: Vec<Level>,
    descent: Descent,
    /// Buffers of a directory that the walk has left, for reuse; at most one.
    spare: Vec<Entries>,
    dents: Dents,
    target: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Root,
    Directory,
    Child,
    AfterChild,
    Done,
}

#[derive(Debug)]
struct Level {
    entries: Entries,
    next: usize,
}

/// A file of the tree.
pub(super) enum Node {
    File {
        executable: bool,
        size: u64,
        file: Option<OwnedFd>,
    },
    Symlink,
    Directory,
}

impl Walk {
    /// Creates a walk through the file, link or directory at `root`. Opens nothing yet.
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            state: State::Root,
            levels: Vec::new(),
            descent: Descent::default(),
            spare: Vec::new(),
            dents: Dents::default(),
            target: Vec::new(),
        }
    }

    /// Takes the next step; `None` at the end. After an error the walk has ended.
    pub(super) fn next(&mut self, contents: Contents) -> Result<Option<Step<'_>>, TreeError> {
        match self.state {
            State::Root => {
                // Set the state first, so that after an error the walk has ended.
                self.state = State::Done;
                let node = self.root_node(contents)?;
                self.step(node, State::Done)
            }
            State::Child => {
                self.state = State::Done;
                let node = self.child_node(contents)?;
                self.step(node, State::AfterChild)
            }
            State::Directory => self.entry_or_end(),
            State::AfterChild => {
                if let Some(level) = self.levels.last_mut() {
                    level.next += 1;
                }
                self.state = State::Directory;
                Ok(Some(Step::EndEntry))
            }
            State::Done => Ok(None),
        }
    }

    /// Opens the file of the last step, after a step with [`Contents::SizesOnly`].
    ///
    /// # Errors
    ///
    /// Any [`TreeError`]; [`TreeError::Changed`] also if the size has changed.
    pub(super) fn open_last(&self, size: u64) -> Result<OwnedFd, TreeError> {
        let node = match self.levels.last() {
            Some(level) => open_file(self.descent.innermost()?, level.entries.c_name(level.next)?)?,
            None => open_file(CWD, self.root.as_path())?,
        };
        match node {
            Node::File {
                size: now,
                file: Some(file),
                ..
            } if now == size => Ok(file),
            _ => Err(TreeError::Changed),
        }
    }

    fn entry_or_end(&mut self) -> Result<Option<Step<'_>>, TreeError> {
        if let Some(level) = self.levels.last_mut()
            && level.next == level.entries.count()
            && level.entries.has_more()
        {
            // Set the state first, so that after an error the walk has ended.
            self.state = State::Done;
            let directory = self.descent.innermost()?;
            level.entries.read_on(directory, &mut self.dents)?;
            level.next = 0;
        }
        let ended = self
            .levels
            .last()
            .is_none_or(|level| level.next == level.entries.count());
        if ended {
            self.leave()?;
            self.state = if self.levels.is_empty() {
                State::Done
            } else {
                State::AfterChild
            };
            return Ok(Some(Step::EndDirectory));
        }
        self.state = State::Child;
        Ok(self.levels.last().map(|level| Step::Entry {
            name: level.entries.name(level.next),
        }))
    }

    fn step(&mut self, node: Node, after: State) -> Result<Option<Step<'_>>, TreeError> {
        self.state = after;
        Ok(Some(match node {
            Node::File {
                executable,
                size,
                file,
            } => Step::File {
                executable,
                size,
                file,
            },
            Node::Symlink => Step::Symlink {
                target: &self.target,
            },
            Node::Directory => {
                self.state = State::Directory;
                Step::BeginDirectory
            }
        }))
    }

    fn root_node(&mut self, contents: Contents) -> Result<Node, TreeError> {
        let root = std::mem::take(&mut self.root);
        let file_type = file_type(CWD, root.as_path())?;
        let node = match file_type {
            FileType::Directory => {
                let directory = open_directory(CWD, root.as_path())?;
                self.enter(directory)?;
                Ok(Node::Directory)
            }
            _ => leaf(CWD, root.as_path(), file_type, contents, &mut self.target),
        };
        self.root = root;
        node
    }

    fn child_node(&mut self, contents: Contents) -> Result<Node, TreeError> {
        let level = self.levels.last().ok_or(TreeError::Changed)?;
        let parent = self.descent.innermost()?;
        let name = level.entries.c_name(level.next)?;
        let file_type = match level.entries.file_type(level.next) {
            FileType::Unknown => file_type(parent, name)?,
            known => known,
        };
        if file_type == FileType::Directory {
            let directory = open_directory(parent, name)?;
            self.enter(directory)?;
            return Ok(Node::Directory);
        }
        leaf(parent, name, file_type, contents, &mut self.target)
    }

    fn enter(&mut self, directory: OwnedFd) -> Result<(), TreeError> {
        let mut entries = self.spare.pop().unwrap_or_default();
        entries.read(directory.as_fd(), &mut self.dents)?;
        self.descent.enter(directory)?;
        self.levels.push(Level { entries, next: 0 });
        Ok(())
    }

    fn leave(&mut self) -> Result<(), TreeError> {
        let Some(left) = self.levels.pop() else {
            return Ok(());
        };
        self.descent.leave()?;
        // One spare is enough: levels are entered and left in turn.
        if self.spare.is_empty() && left.entries.is_small() {
            self.spare.push(left.entries);
        }
        Ok(())
    }
}

fn leaf(
    parent: BorrowedFd<'_>,
    name: impl Arg + Copy,
    file_type: FileType,
    contents: Contents,
    target: &mut Vec<u8>,
) -> Result<Node, TreeError> {
    match (file_type, contents) {
        (FileType::RegularFile, Contents::Open) => open_file(parent, name),
        (FileType::RegularFile, Contents::SizesOnly) => regular(
            &rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?,
            None,
        ),
        (FileType::Symlink, _) => {
            read_link(parent, name, target)?;
            Ok(Node::Symlink)
        }
        _ => Err(TreeError::UnsupportedType),
    }
}

/// Opens a regular file; fails on a symbolic link.
pub(super) fn open_file(parent: BorrowedFd<'_>, name: impl Arg) -> Result<Node, TreeError> {
    // Without NONBLOCK, opening a FIFO would block forever.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    regular(&stat, Some(file))
}

fn regular(stat: &Stat, file: Option<OwnedFd>) -> Result<Node, TreeError> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Node::File {
            executable: stat.st_mode & OWNER_EXECUTE != 0,
            size: u64::try_from(stat.st_size).map_err(|_error| TreeError::Changed)?,
            file,
        }),
        FileType::Directory | FileType::Symlink => Err(TreeError::Changed),
        _ => Err(TreeError::UnsupportedType),
    }
}

pub(super) fn file_type(parent: BorrowedFd<'_>, name: impl Arg) -> Result<FileType, TreeError> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

pub(super) fn read_link(
    parent: BorrowedFd<'_>,
    name: impl Arg,
    target: &mut Vec<u8>,
) -> Result<(), TreeError> {
    let mut buffer = [MaybeUninit::uninit(); TARGET_LEN_MAX];
    let (read, _rest) = rustix::fs::readlinkat_raw(parent, name, &mut buffer)?;
    target.clear();
    target.extend_from_slice(read);
    Ok(())
}
