//! A disk that hangs: calls that are answered only when it is resumed.

use std::ffi::OsString;

use fuser::{FileHandle, FopenFlags, Generation, INodeNo, ReplyCreate, ReplyEmpty};

use super::{State, TTL, VolatileDisk, reply_empty};

/// A file that is to be created.
pub(super) struct NewFile {
    pub(super) parent: INodeNo,
    pub(super) name: OsString,
    pub(super) mode: u32,
    pub(super) reply: ReplyCreate,
}

impl VolatileDisk {
    /// Lets each `fsync` wait until the disk is resumed.
    pub(crate) fn hang(&self) {
        self.state().held = Some(Vec::new());
    }

    /// Lets each `fsync`, and each call that creates a file, wait until the disk is resumed.
    pub(crate) fn freeze(&self) {
        self.hang();
        self.state().held_files = Some(Vec::new());
    }

    /// Whether a call waits until the disk is resumed.
    pub(crate) fn is_waited_for(&self) -> bool {
        let state = self.state();
        let waits_for_file = state
            .held_files
            .as_ref()
            .is_some_and(|held| !held.is_empty());
        waits_for_file || state.held.as_ref().is_some_and(|held| !held.is_empty())
    }

    /// Answers each call that waits, and the later ones.
    pub(crate) fn resume(&self) {
        let mut state = self.state();
        let held = state.held.take();
        held.into_iter().flatten().for_each(ReplyEmpty::ok);
        let held_files = state.held_files.take();
        for file in held_files.into_iter().flatten() {
            state.create_file(file);
        }
    }
}

impl State {
    pub(super) fn answer_sync(&mut self, inode: INodeNo, reply: ReplyEmpty) {
        match &mut self.held {
            Some(held) => held.push(reply),
            None => reply_empty(self.sync(inode), reply),
        }
    }

    pub(super) fn create_file(&mut self, new: NewFile) {
        if let Some(held) = &mut self.held_files {
            return held.push(new);
        }
        match self.create(new.parent, &new.name, new.mode, false) {
            Ok(attributes) => {
                let flags = FopenFlags::empty();
                new.reply
                    .created(&TTL, &attributes, Generation(0), FileHandle(0), flags);
            }
            Err(error) => new.reply.error(error),
        }
    }
}
