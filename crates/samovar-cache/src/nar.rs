//! Answering with a NAR, or a range of one.

use std::io;
use std::sync::Arc;

use samovar_http::http::{Method, Status, range};
use samovar_http::{Body, Head, Prepared, Response};
use samovar_nix::{HashPart, NarHash, PathInfo};
use samovar_store::{Identity, NarReader, StoreError, Tree};

use crate::answers::{damaged, no_path, unavailable, wrong_hash};
use crate::cache::Cache;
use crate::health::Standing;
use crate::kept::KeptBody;
use crate::nar_body::{Check, NarBody, wrong_contents};
use crate::observer::Event;
use crate::origin::Origin;
use crate::prepared_body::PreparedBody;
use crate::registration::Registration;
use crate::small_nars::{self, SmallNar};

/// What Nix says when it uploads a NAR. Not `text/plain`, as nix-serve: proxies compress texts on
/// their way, and a compressed download cannot be resumed.
pub(crate) const NAR_TYPE: (&str, &str) = ("Content-Type", "application/x-nix-nar");

pub(crate) const ACCEPT_RANGES: (&str, &str) = ("Accept-Ranges", "bytes");

impl Cache {
    pub(crate) fn nar(
        &self,
        head: Head<'_>,
        hash_part: HashPart,
        nar_hash: Option<NarHash>,
    ) -> Result<Response, StoreError> {
        let registration = match self.readable(hash_part)? {
            Ok(registration) => registration,
            Err(refusal) => return Ok(refusal),
        };
        let info = &registration.info;
        if nar_hash.is_some_and(|nar_hash| nar_hash != info.nar_hash) {
            return Ok(wrong_hash());
        }
        if let Some(refusal) = self.origin.kept_out(&registration) {
            return Ok(refusal);
        }
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
            match self.origin.small_nar(&registration)? {
                Ok(prepared) => small_body(prepared, (start, end)),
                Err(error) => return self.origin.unreadable(&registration, error),
            }
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
            match self.origin.open_nar(&registration, &tree, start) {
                Ok((reader, root)) => {
                    let is_whole = end - start == size && head.method() == Method::Get;
                    let check = match is_whole {
                        true => self.origin.check(info, root),
                        false => None,
                    };
                    let body = NarBody::new(reader, (start, end), size, registration, check);
                    Body::Source(Box::new(body.held(way)))
                }
                Err(error) => return self.origin.unreadable(&registration, error),
            }
        };
        let body = match watch {
            Some((transfers, path)) => transfers.watch(body, path, head.peer()),
            None => body,
        };
        let response = Response::new(status, body)
            .header(NAR_TYPE.0, NAR_TYPE.1)
            .header(ACCEPT_RANGES.0, ACCEPT_RANGES.1);
        Ok(match status {
            Status::PARTIAL_CONTENT => {
                response.header("Content-Range", format!("bytes {start}-{}/{size}", end - 1))
            }
            _ => response,
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

    /// The answer to whatever is asked about a path that is damaged.
    pub(crate) fn kept_out(&self, registration: &Registration) -> Option<Response> {
        match registration.standing() {
            Standing::Good => None,
            Standing::Damaged => {
                self.observer.event(&Event::QuarantinedPathRequested);
                Some(damaged())
            }
            Standing::InQuestion => Some(unavailable()),
        }
    }

    fn kept(&self, info: &PathInfo, range: (u64, u64)) -> Option<KeptBody> {
        let kept_nars = self.kept_nars.as_ref()?;
        kept_nars.body(&info.nar_hash, info.nar_size, range)
    }

    /// A small NAR from memory, where it is from now on.
    fn small_nar(
        &self,
        registration: &Registration,
    ) -> Result<io::Result<Arc<Prepared>>, StoreError> {
        let info = &registration.info;
        let (hash_part, nar_hash) = (info.path.hash_part(), info.nar_hash);
        let epoch = registration
            .snapshot
            .as_ref()
            .map(|snapshot| snapshot.epoch);
        let known = self.small_nars.find(&hash_part);
        let known = known.filter(|known| known.is_of(info));
        let nar = match known {
            Some(known) if known.epoch == epoch => return Ok(Ok(known.prepared)),
            Some(known) => SmallNar { epoch, ..known },
            None => {
                let opened = self.store.tree(&info.path)?.nar();
                let read = opened
                    .map_err(io::Error::from)
                    .and_then(|reader| small_nars::read_whole(reader, info.nar_size));
                let nar = match read {
                    Ok(nar) => nar,
                    Err(error) => return Ok(Err(error)),
                };
                match SmallNar::new(nar_hash, epoch, &nar) {
                    Some(nar) => nar,
                    None => return Ok(Err(wrong_contents())),
                }
            }
        };
        let prepared = Arc::clone(&nar.prepared);
        self.small_nars.insert(hash_part, nar);
        // What is damaged leaves no trace in memory, also if it was found so just now.
        if self.health.is_marked(&hash_part) {
            self.small_nars.remove(&hash_part);
        }
        Ok(Ok(prepared))
    }

    /// The files of a path cannot be read, and nothing was sent yet. If the path is gone or
    /// damaged, that is the answer; if not, something is wrong that may pass.
    pub(crate) fn unreadable(
        &self,
        registration: &Registration,
        error: io::Error,
    ) -> Result<Response, StoreError> {
        let was = &registration.info;
        match self.lookup(was.path.hash_part())? {
            Some(now) if now.nar_hash == was.nar_hash => {
                registration.report(&error);
                let refusal = self.kept_out(registration);
                Ok(refusal.unwrap_or_else(unavailable))
            }
            Some(_) => Ok(wrong_hash()),
            None => Ok(no_path()),
        }
    }
}

fn small_body(prepared: Arc<Prepared>, (start, end): (u64, u64)) -> Body {
    let within = |offset| usize::try_from(offset).unwrap_or(usize::MAX);
    PreparedBody::range(prepared, (within(start), within(end)))
}
