//! [`Tree`]: the entries and contents of a mounted tree.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{Errno, ReplyData};
use samovar_client::notice::notice;

use super::fetch::{Arrived, Fetcher};
use super::local::{Local, Read};
use super::view::View;

/// A tree with the contents of its files.
pub(super) struct Tree {
    local: Arc<Local>,
    /// `None`: the whole tree is on this machine, verified.
    fetcher: Option<Fetcher>,
    /// Number of references that the kernel has to the entries. It forgets them later.
    references: AtomicU64,
    /// Entries whose errors were logged.
    logged: Mutex<HashSet<usize>>,
}

impl Tree {
    /// `fetcher`: `None` if the whole tree is on this machine, verified.
    pub(super) fn new(local: Arc<Local>, fetcher: Option<Fetcher>) -> Self {
        Self {
            local,
            fetcher,
            references: AtomicU64::new(0),
            logged: Mutex::default(),
        }
    }

    /// Returns the entries.
    pub(super) fn view(&self) -> &View {
        self.local.view()
    }

    /// Notes that the kernel gets a reference to an entry.
    pub(super) fn refer(&self) {
        self.references.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the kernel forgets references. Returns whether it has none.
    pub(super) fn forget(&self, count: u64) -> bool {
        let before = self.references.fetch_sub(count, Ordering::AcqRel);
        before == count
    }

    /// Returns whether the kernel has references to entries.
    pub(super) fn is_in_use(&self) -> bool {
        self.references.load(Ordering::Acquire) > 0
    }

    /// Returns the length of the NAR, in bytes.
    pub(super) fn nar_size(&self) -> u64 {
        self.local.nar_size()
    }

    /// Answers a read. If blocks are missing, the answer comes later from another thread.
    pub(super) fn read(self: &Arc<Self>, entry: usize, at: u64, len: usize, reply: ReplyData) {
        match self.local.read(entry, at, len) {
            Ok(Read::Data(data)) => reply.data(&data),
            Ok(Read::Missing(blocks)) => {
                let tree = Arc::clone(self);
                let answer = move |arrived| match arrived {
                    Arrived::Here => tree.read_again(entry, at, len, reply),
                    Arrived::Damaged => tree.fail(entry, reply, "is damaged on the server"),
                    // The outage itself was logged.
                    Arrived::Unreachable => reply.error(Errno::EIO),
                };
                match &self.fetcher {
                    Some(fetcher) => fetcher.wait(blocks, Box::new(answer)),
                    None => answer(Arrived::Damaged),
                }
            }
            Ok(Read::Damaged) => self.repair(entry, at, len, reply),
            Err(error) => self.fail(entry, reply, &error.to_string()),
        }
    }

    /// Answers a read whose blocks have arrived.
    fn read_again(self: &Arc<Self>, entry: usize, at: u64, len: usize, reply: ReplyData) {
        match self.local.read(entry, at, len) {
            Ok(Read::Data(data)) => reply.data(&data),
            Ok(Read::Damaged) => self.repair(entry, at, len, reply),
            Ok(Read::Missing(_)) => self.fail(entry, reply, "is incomplete"),
            Err(error) => self.fail(entry, reply, &error.to_string()),
        }
    }

    /// Answers a read from a file whose contents on this machine are damaged.
    fn repair(self: &Arc<Self>, entry: usize, at: u64, len: usize, reply: ReplyData) {
        let tree = Arc::clone(self);
        let answer = move |arrived| match (arrived, tree.local.read(entry, at, len)) {
            (Arrived::Here, Ok(Read::Data(data))) => reply.data(&data),
            _ => tree.fail(entry, reply, "does not match its digest in the manifest"),
        };
        match &self.fetcher {
            Some(fetcher) => fetcher.repair(entry, Box::new(answer)),
            None => answer(Arrived::Damaged),
        }
    }

    /// Answers a read with an error, and logs the first one of each file.
    fn fail(&self, entry: usize, reply: ReplyData, reason: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.insert(entry) {
            let path = self.local.view().entries().path(entry);
            let path = String::from_utf8_lossy(&path);
            notice(&format!("{path:?} {reason}: reading it gives an I/O error"));
        }
        reply.error(Errno::EIO);
    }
}
