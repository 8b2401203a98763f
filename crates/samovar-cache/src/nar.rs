//! Answering with a NAR, or a range of one.

use std::io;
use std::sync::Arc;

use samovar_http::http::{Method, Status, range};
use samovar_http::{Body, Head, Prepared, Response};
use samovar_nix::{HashPart, NarHash, PathInfo};
use samovar_store::{Identity, NarReader, Tree};

use crate::cache::Cache;
use crate::kept::KeptBody;
use crate::nar_body::{Check, NarBody, wrong_contents};
use crate::origin::Origin;
use crate::prepared::{AnswerHead, PreparedBody};
use crate::refusal::Refusal;
use crate::registration::Registration;
use crate::small_nars::{self, SmallNar};

impl Cache {
    pub(crate) fn nar(
        &self,
        head: Head<'_>,
        hash_part: HashPart,
        nar_hash: Option<NarHash>,
    ) -> Result<Response, Refusal> {
        let registration = self.readable(hash_part)?;
        let info = &registration.info;
        if nar_hash.is_some_and(|nar_hash| nar_hash != info.nar_hash) {
            return Err(Refusal::WrongHash);
        }
        registration.admit()?;
        let size = info.nar_size;
        let outcome = match head.header("Range") {
            // Ranges are defined for GET alone (RFC 9110, 14.2). An `If-Range` cannot match: there
            // are no validators here to compare with (13.1.5).
            Some(value) if head.method() == Method::Get && head.header("If-Range").is_none() => {
                range::resolve(value, size)
            }
            _ => range::RangeOutcome::Whole,
        };
        let (status, start, end) = match outcome {
            range::RangeOutcome::Whole => (Status::OK, 0, size),
            range::RangeOutcome::Part { start, end } => (Status::PARTIAL_CONTENT, start, end),
            range::RangeOutcome::Unsatisfiable => {
                let response = Response::text(Status::RANGE_NOT_SATISFIABLE, "Beyond the end.\n");
                return Ok(response.header("Content-Range", format!("bytes */{size}")));
            }
        };
        let transfers = self.origin.observer.transfers();
        let transfers = transfers.filter(|_| size > small_nars::LEN_MAX);
        let watch = transfers.map(|all| {
            (
                all,
                info.path.display(self.origin.store.store_dir()).to_string(),
            )
        });
        let body = if size <= small_nars::LEN_MAX && head.method() == Method::Get {
            let prepared = self.origin.small_nar(&registration)?;
            small_body(prepared, (start, end))
        } else if let Some(kept) = self.origin.kept(info, (start, end)) {
            Body::Source(Box::new(kept))
        } else {
            let is_sent = head.method() == Method::Get;
            let way = is_sent.then(|| self.origin.holds.send(&info.path));
            if way.as_ref().is_some_and(|way| way.has_waited) && registration.holds() == Ok(false) {
                // Collected, or registered anew, before it was held. It is held now.
                return self.nar(head, hash_part, nar_hash);
            }
            let tree = self.origin.store.tree(&info.path)?;
            let (reader, root) = self
                .origin
                .open_nar(&registration, &tree, start)
                .map_err(|error| self.origin.unreadable(&registration, &error))?;
            let is_whole = end - start == size && is_sent;
            let check = match is_whole {
                true => self.origin.check(info, root),
                false => None,
            };
            let body = NarBody::new(reader, (start, end), size, registration, check);
            Body::Source(Box::new(body.held(way)))
        };
        let body = match watch {
            Some((transfers, path)) => transfers.watch(body, path, head.peer()),
            None => body,
        };
        let head = AnswerHead {
            status,
            ..small_nars::HEAD
        };
        let response = head.response(body);
        Ok(if status == Status::PARTIAL_CONTENT {
            response.header("Content-Range", format!("bytes {start}-{}/{size}", end - 1))
        } else {
            response
        })
    }
}

impl Origin {
    /// The NAR from `start` on, and the root that stood there before it was opened.
    fn open_nar(
        &self,
        registration: &Registration,
        tree: &Tree,
        start: u64,
    ) -> io::Result<(NarReader, Option<Identity>)> {
        let root = tree.identity()?;
        Ok((self.nar_from(registration, tree, start)?, root))
    }

    /// What is done with the bytes of a whole NAR on their way, if anything.
    fn check(&self, info: &PathInfo, root: Option<Identity>) -> Option<Check> {
        // A daemon's are hashed already.
        let is_first = root.is_some_and(|root| self.health.is_to_hash(info, &root));
        let kept_nars = self.kept_nars.as_ref();
        let recording = kept_nars.and_then(|kept| kept.record(&info.nar_hash, info.nar_size));
        (is_first || recording.is_some()).then(|| Check::new(root, is_first, recording))
    }

    fn kept(&self, info: &PathInfo, range: (u64, u64)) -> Option<KeptBody> {
        let kept_nars = self.kept_nars.as_ref()?;
        kept_nars.body(&info.nar_hash, info.nar_size, range)
    }

    /// A small NAR from memory, where it is from now on.
    fn small_nar(&self, registration: &Registration) -> Result<Arc<Prepared>, Refusal> {
        let info = &registration.info;
        let (hash_part, nar_hash) = (info.path.hash_part(), info.nar_hash);
        let epoch = registration
            .snapshot
            .as_ref()
            .map(|snapshot| snapshot.epoch);
        let known = self.small_nars.find(&hash_part);
        let known = known.filter(|known| known.is_of(info));
        let nar = match known {
            Some(known) if known.epoch == epoch => return Ok(known.prepared),
            Some(known) => SmallNar { epoch, ..known },
            None => {
                let opened = self.store.tree(&info.path)?.nar();
                opened
                    .map_err(io::Error::from)
                    .and_then(|reader| small_nars::read_whole(reader, info.nar_size))
                    .and_then(|nar| SmallNar::new(nar_hash, epoch, &nar).ok_or_else(wrong_contents))
                    .map_err(|error| self.unreadable(registration, &error))?
            }
        };
        let prepared = Arc::clone(&nar.prepared);
        self.small_nars.insert(hash_part, nar);
        // What is damaged leaves no trace in memory, also if it was found so just now.
        if self.health.is_marked(&hash_part) {
            self.small_nars.remove(&hash_part);
        }
        Ok(prepared)
    }

    /// The refusal where the files of a path cannot be read and nothing was sent yet. If the path
    /// is gone or damaged, that is the answer; otherwise the failure may be temporary.
    pub(crate) fn unreadable(&self, registration: &Registration, error: &io::Error) -> Refusal {
        let was = &registration.info;
        match self.lookup(was.path.hash_part()) {
            Ok(Some(now)) if now.nar_hash == was.nar_hash => {
                registration.report(error);
                registration.admit().err().unwrap_or(Refusal::Unreadable)
            }
            Ok(Some(_)) => Refusal::WrongHash,
            Ok(None) => Refusal::Absent,
            Err(error) => Refusal::Store(error),
        }
    }
}

fn small_body(prepared: Arc<Prepared>, (start, end): (u64, u64)) -> Body {
    let within = |offset| usize::try_from(offset).unwrap_or(usize::MAX);
    PreparedBody::range(prepared, (within(start), within(end)))
}
