//! Collects compressed NARs in packs and parts, for the push protocol.

use std::sync::mpsc::{Receiver, Sender, SyncSender};

use anyhow::ensure;
use samovar_nix::narinfo::Compression;
use samovar_protocol::push::{LINE_LEN_MAX, PackLine, write_end, write_record};

use super::compress::{Output, SMALL_LEN_MAX};
use super::publisher::Event;
use super::session::{BUFFER_LEN, Part, Shared, Upload};

/// Maximum number of NARs in a pack. A push is thus split into several packs, which the server
/// verifies at once.
const PACK_COUNT_MAX: usize = 2048;

/// Maximum length of a pack, in bytes, for the same reason.
const PACK_LEN_MAX: usize = 16 << 20;

/// Collects compressed NARs in packs and parts, and hands each full one to the senders.
pub(super) struct Assembler<'a> {
    shared: &'a Shared<'a>,
    uploads: SyncSender<Upload>,
    events: Sender<Event>,
    /// Free buffers, which the senders return.
    buffers: Receiver<Vec<u8>>,
    pack_len_max: usize,
    part_len_max: usize,
    pack: Vec<u8>,
    pack_nars: Vec<usize>,
    part: Vec<u8>,
    /// Number of the next part, from 1.
    part_number: u32,
    /// Bytes of the NAR whose last frame is in the current part.
    part_content_len: u64,
}

impl<'a> Assembler<'a> {
    pub(super) fn new(
        shared: &'a Shared<'a>,
        uploads: SyncSender<Upload>,
        events: Sender<Event>,
        buffers: Receiver<Vec<u8>>,
    ) -> Self {
        let opened = &shared.session.opened;
        Self {
            uploads,
            events,
            buffers,
            pack_len_max: len_max(opened.pack_len_max).min(PACK_LEN_MAX),
            part_len_max: len_max(opened.part_len_max),
            shared,
            pack: Vec::new(),
            pack_nars: Vec::new(),
            part: Vec::new(),
            part_number: 1,
            part_content_len: 0,
        }
    }

    pub(super) fn take(&mut self, output: Output) -> anyhow::Result<()> {
        ensure!(!self.shared.is_failed(), "the push has failed");
        match output {
            Output::Frame {
                nar,
                bytes,
                content_len,
                is_last,
            } => {
                if self.shared.info(nar)?.nar_size <= SMALL_LEN_MAX {
                    return self.take_small(nar, &bytes);
                }
                self.part_content_len += content_len;
                self.take_frame(nar, &bytes, is_last)
            }
            Output::Failed { nar, reason } => {
                self.part.clear();
                self.part_number = 1;
                self.part_content_len = 0;
                let info = self.shared.info(nar)?;
                self.shared.session.unfinished.forget(&info.nar_hash);
                let event = Event::Failed(nar, format!("unreadable: {reason}"));
                Ok(self.events.send(event)?)
            }
        }
    }

    fn take_small(&mut self, nar: usize, bytes: &[u8]) -> anyhow::Result<()> {
        // Besides the NAR, the pack has a line before it and a last line.
        let len = bytes.len() + 2 * LINE_LEN_MAX;
        ensure!(
            len <= self.pack_len_max,
            "the cache takes packs of at most {} bytes: use nix copy",
            self.pack_len_max
        );
        let is_full = self.pack.len() + len > self.pack_len_max;
        if is_full || self.pack_nars.len() >= PACK_COUNT_MAX {
            self.flush_pack()?;
        }
        if self.pack.capacity() == 0 {
            self.pack = self.buffer()?;
        }
        let info = self.shared.info(nar)?;
        let line = PackLine {
            nar_hash: info.nar_hash,
            compression: Compression::Zstd,
            len: bytes.len() as u64,
        };
        write_record(&mut self.pack, &line, bytes);
        self.pack_nars.push(nar);
        Ok(())
    }

    /// Waits until a sender returns a buffer.
    fn buffer(&self) -> anyhow::Result<Vec<u8>> {
        let mut buffer = self.buffers.recv()?;
        buffer.reserve_exact(BUFFER_LEN);
        Ok(buffer)
    }

    /// Sends the pack in progress, if it has a NAR.
    pub(super) fn flush_pack(&mut self) -> anyhow::Result<()> {
        if self.pack_nars.is_empty() {
            return Ok(());
        }
        let nars = std::mem::take(&mut self.pack_nars);
        let mut body = std::mem::take(&mut self.pack);
        write_end(&mut body, nars.len());
        Ok(self.uploads.send(Upload::Pack { body, nars })?)
    }

    /// Appends a frame to the current part, and sends each part that is full.
    fn take_frame(&mut self, nar: usize, bytes: &[u8], is_last: bool) -> anyhow::Result<()> {
        let mut rest = bytes;
        loop {
            if self.part.capacity() == 0 {
                self.part = self.buffer()?;
            }
            let room = self.part_len_max - self.part.len();
            let (taken, left) = rest.split_at(room.min(rest.len()));
            self.part.extend_from_slice(taken);
            rest = left;
            let is_full = self.part.len() == self.part_len_max;
            let is_end = is_last && rest.is_empty();
            if is_full || is_end {
                self.send_part(nar, is_end)?;
            }
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn send_part(&mut self, nar: usize, is_last: bool) -> anyhow::Result<()> {
        let number = self.part_number;
        if is_last {
            self.shared.set_part_count(nar, number)?;
        }
        self.part_number = if is_last { 1 } else { number.saturating_add(1) };
        let part = Part {
            nar,
            number,
            bytes: std::mem::take(&mut self.part),
            content_len: std::mem::take(&mut self.part_content_len),
        };
        Ok(self.uploads.send(Upload::Part(part))?)
    }
}

/// Returns the smaller of `limit`, which the server sets, and the length of a buffer.
fn len_max(limit: u64) -> usize {
    usize::try_from(limit).map_or(BUFFER_LEN, |limit| limit.min(BUFFER_LEN))
}
