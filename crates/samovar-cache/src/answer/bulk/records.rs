//! The response to a bulk query: many narinfos ([`samovar_protocol::bulk`]).

use std::io;
use std::sync::Arc;
use std::time::Instant;

use samovar_http::http::Status;
use samovar_http::{Batch, Body, Progress, Response, Source};
use samovar_nix::HashPart;
use samovar_protocol::bulk::{CONTENT_TYPE, Writer};
use samovar_store::Member;

use crate::answer::bulk::OtherPaths;
use crate::known::bulk_budget::{Evicted, Share};
use crate::narinfo::narinfos::{Answer, Narinfos};
use crate::narinfo::rendered::Narinfo;

/// Number of records that are rendered together. They stay in memory until the client has read
/// them.
const STEP_COUNT: usize = 32;

/// Makes the response with the narinfos of the paths in `wanted`.
pub(super) fn respond(
    narinfos: &Arc<Narinfos>,
    wanted: Share,
    is_closure: bool,
    others: Option<Box<dyn OtherPaths>>,
) -> Response {
    let records = Records {
        narinfos: Arc::clone(narinfos),
        text: Writer::first_line(wanted.count()),
        text_at: 0,
        narinfo: None,
        next: 0,
        made: Vec::new().into_iter(),
        writer: Writer::default(),
        is_ended: false,
        is_closure,
        others,
        wanted,
    };
    Response::new(Status::OK, Body::Source(Box::new(records))).header("Content-Type", CONTENT_TYPE)
}

/// The body of a bulk response.
struct Records {
    narinfos: Arc<Narinfos>,
    wanted: Share,
    /// Whether the records are a closure, which is sent completely or aborted.
    is_closure: bool,
    /// Paths that are not in the store; `None` if the response has none.
    others: Option<Box<dyn OtherPaths>>,
    /// Index of the first record that is not rendered yet.
    next: usize,
    made: std::vec::IntoIter<(HashPart, Answer)>,
    /// The header line of the current record. Its first `text_at` bytes were sent. The narinfo
    /// follows the line.
    text: String,
    text_at: usize,
    narinfo: Option<(Arc<Narinfo>, usize)>,
    writer: Writer,
    is_ended: bool,
}

impl Records {
    /// Copies the line and its narinfo into the batch. Returns `false` if the batch is full.
    fn put(&mut self, batch: &mut Batch) -> bool {
        self.text_at += batch.put(self.text.as_bytes().get(self.text_at..).unwrap_or_default());
        if self.text_at < self.text.len() {
            return false;
        }
        if let Some((narinfo, at)) = &mut self.narinfo {
            let text = narinfo.text();
            *at += batch.put(text.get(*at..).unwrap_or_default());
            if *at < text.len() {
                return false;
            }
            self.narinfo = None;
        }
        true
    }

    /// Moves to the next record and writes its header line to `text`. Returns `false` after the
    /// last line.
    fn advance(&mut self) -> io::Result<bool> {
        self.text.clear();
        self.text_at = 0;
        if self.made.as_slice().is_empty() {
            self.make()?;
        }
        let Some((hash_part, answer)) = self.made.next() else {
            if self.is_ended {
                return Ok(false);
            }
            self.is_ended = true;
            self.text = self.writer.last_line();
            return Ok(true);
        };
        self.text = match answer {
            Ok(rendered) => {
                let narinfo = rendered.narinfo;
                let line = self.writer.path(hash_part, narinfo.text().len());
                self.narinfo = Some((narinfo, 0));
                line
            }
            Err(refusal) if refusal.is_absence() => self.writer.absent(hash_part),
            Err(_) => self.writer.failed(hash_part),
        };
        Ok(true)
    }

    /// Renders the narinfos of the next [`STEP_COUNT`] records.
    fn make(&mut self) -> io::Result<()> {
        let members = self.wanted.some(self.next, STEP_COUNT, Instant::now());
        let members = members.map_err(|Evicted| {
            // The eviction was reported when it happened; the client sees a reset connection.
            io::Error::from(io::ErrorKind::ConnectionAborted)
        })?;
        if members.is_empty() {
            return Ok(());
        }
        let hash_parts: Vec<HashPart> = members.iter().map(|member| member.hash_part).collect();
        // In a closure of store paths, the lease of the requested path protects all others.
        let leases = !self.is_closure || self.others.is_some();
        let mut answers = self
            .narinfos
            .many(&hash_parts, leases)
            .inspect_err(|error| self.narinfos.reader.shared.note(*error))
            .map_err(io::Error::other)?;
        if let Some(others) = &self.others {
            others.complete(&hash_parts, &mut answers)?;
        }
        if self.is_closure
            && !members
                .iter()
                .zip(&answers)
                .all(|(member, answer)| is_of(answer, member))
        {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "a path of the closure was collected, registered again or found damaged during the \
                 response",
            ));
        }
        self.next += members.len();
        let made: Vec<_> = hash_parts.into_iter().zip(answers).collect();
        self.made = made.into_iter();
        Ok(())
    }
}

/// Whether a closure may contain `answer` for `member`: a narinfo of the same registration, or an
/// error other than absence, which leaves open whether that registration still exists.
fn is_of(answer: &Answer, member: &Member) -> bool {
    match answer {
        Ok(rendered) => rendered.narinfo.row.registration == member.registration,
        Err(refusal) => !refusal.is_absence(),
    }
}

impl Source for Records {
    fn len(&self) -> Option<u64> {
        None
    }

    fn may_wait(&self) -> bool {
        self.others.as_ref().is_some_and(|others| others.may_wait())
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        loop {
            if !self.put(batch) {
                return Ok(Progress::More);
            }
            if !self.advance()? {
                return Ok(Progress::End);
            }
        }
    }
}
