//! Receives bulk uploads by version 1 of the push protocol (`docs/push-protocol.md`).
//!
//! # Theory of operation
//!
//! A client opens a push ([`open`]) with the list of its paths, and learns which of them it must
//! send. It sends small NARs in packs ([`put_pack`]), and large ones in parts ([`put_part`],
//! [`join`]). As with the upload of a stock client, the server verifies each NAR and records it for
//! the client's token, and no other token may use it yet. Then the client publishes paths
//! ([`publish`](publish())), in one transaction for each request.
//!
//! The state of a push consists of a row in the database and of files for parts in `.samovar/tmp/`.
//! The name of such a file contains all that the server knows about the part ([`PartKey`]), so a
//! push survives a restart. A push expires a day after its last request. Then
//! [`gc::sweep_pushes`](crate::gc::sweep_pushes) removes it and its parts.
//!
//! A pushed file is named after the file hash that the server computes. Its NAR hash would not
//! identify the file, because two clients may compress the same NAR differently.

mod assemble;
mod pack;
mod parts;
mod publish;

use std::slice;

use samovar_nix::{NarHash, StorePath};
use samovar_protocol::names::PushId;
use samovar_protocol::push::{Missing, OpenAnswer, OpenLine};

use crate::error::StorageError;
use crate::metadata::{DAY, Need, PushLimits, StoredNar, pushes};
use crate::receive::PutError;
use crate::receive::publish::{Refusal, check_name};
use crate::storage::StoredCache;
use crate::token::Token;

pub use assemble::{AssembleError, assemble};
pub use pack::put_pack;
pub use parts::{PartError, PartKey, join, parts, put_part};
pub use publish::publish;

use parts::part_directory;

/// Limits of the pushes that belong to one token.
const LIMITS: PushLimits = PushLimits {
    count_max: 1024,
    lifetime: DAY,
    tolerance: 600,
};

/// Number of paths that one transaction looks up. Recording their uses takes about 0.1 s, for which
/// other uploads wait.
const OPEN_BATCH_LEN: usize = 4096;

/// Reason why a request of the push protocol has failed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The push does not exist.
    #[error(
        "there is no such push: it has expired or was deleted, or it belongs to another token or \
         cache; open a new one"
    )]
    NoPush,
    /// The token has too many pushes.
    #[error(
        "the token has {} pushes that have not expired, the limit; delete pushes that are \
         complete, or repeat the request later", LIMITS.count_max
    )]
    TooManyPushes,
    /// A request about parts is refused.
    #[error(transparent)]
    Part(#[from] PartError),
    /// A NAR cannot be assembled.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// A narinfo is refused.
    #[error("{}: {refusal}", of_record(*number, path.as_ref()))]
    Narinfo {
        /// Number of the narinfo's record in the body, from 1.
        number: usize,
        /// The store path, unless it could not be parsed.
        path: Option<StorePath>,
        /// The reason why the narinfo is refused.
        refusal: Box<Refusal>,
    },
    /// These references or NARs are missing. The list is not empty.
    #[error("references or NARs are missing")]
    Missing(Vec<Missing>),
    /// Receiving, verifying or storing the body failed.
    #[error(transparent)]
    Put(#[from] PutError),
}

fn of_record(number: usize, path: Option<&StorePath>) -> String {
    match path {
        Some(path) => format!("the narinfo of {path}"),
        None => format!("narinfo {number} of the request"),
    }
}

impl From<StorageError> for PushError {
    fn from(error: StorageError) -> Self {
        Self::Put(error.into())
    }
}

/// What a client must send to push a path, or why the path would be refused.
pub type Answer = OpenAnswer<Box<Refusal>>;

/// An open push, which belongs to a cache and a token.
#[derive(Debug)]
pub struct Push<'a> {
    stored: &'a StoredCache,
    token: &'a Token,
    id: PushId,
}

/// Opens a push. Returns its identifier, and what the client must send of each path.
///
/// # Errors
///
/// [`PushError::TooManyPushes`] if the token has too many pushes. Other errors.
pub fn open(
    stored: &StoredCache,
    token: &Token,
    lines: &[OpenLine],
) -> Result<(PushId, Vec<Answer>), PushError> {
    let metadata = &stored.storage.metadata;
    let id = pushes::open(metadata, stored.id, token.id, &LIMITS)?;
    let id = id.ok_or(PushError::TooManyPushes)?;
    let id = PushId::parse(&id).ok_or_else(|| StorageError::Damaged(format!("push {id:?}")))?;
    let mut answers = Vec::with_capacity(lines.len());
    for lines in lines.chunks(OPEN_BATCH_LEN) {
        let start = answers.len();
        let mut links = (Vec::new(), Vec::new());
        for (line, need) in lines.iter().zip(needs(stored, token, lines)?) {
            if let Some(refusal) = refusal(token, line, &need) {
                answers.push(Answer::Refused(Box::new(refusal)));
                continue;
            }
            answers.push(match need {
                Need::Nothing(_) => Answer::Have,
                Need::Narinfo(nar) => {
                    links.0.push(answers.len());
                    links.1.push(nar.id);
                    Answer::Link
                }
                Need::All | Need::OtherPath(_) => Answer::Need,
            });
        }
        debug_assert_eq!(answers.len(), start + lines.len());
        if links.0.is_empty() {
            continue;
        }
        let held = pushes::hold_nars(metadata, token.id, &links.1)?;
        for (at, _) in links.0.into_iter().zip(held).filter(|(_, held)| !held) {
            answers[at] = Answer::Need;
        }
    }
    Ok((id, answers))
}

/// Returns what a client must send to push these paths. The files of all NARs that it need not send
/// are there.
fn needs(
    stored: &StoredCache,
    token: &Token,
    lines: &[OpenLine],
) -> Result<Vec<Need>, StorageError> {
    let storage = &*stored.storage;
    let mut needs = pushes::needs(&storage.metadata, stored.id, token.into(), lines)?;
    for (need, line) in needs.iter_mut().zip(lines) {
        while let Need::Nothing(nar) | Need::Narinfo(nar) = need
            && !storage.is_there(nar)?
        {
            // The NAR is recorded as lost now, but it may have another file.
            let again = pushes::needs(
                &storage.metadata,
                stored.id,
                token.into(),
                slice::from_ref(line),
            )?
            .pop();
            *need = again.unwrap_or(Need::All);
        }
        // Clients may not know of hidden paths, nor of NARs that only these use.
        let is_shown = match need {
            Need::Nothing(_) | Need::OtherPath(_) => !stored.hides(line.hash_part)?,
            Need::Narinfo(nar) => stored.shows_nar(Some(token.id), nar.id)?,
            Need::All => true,
        };
        if is_shown {
            continue;
        }
        let nar = match need {
            Need::Narinfo(_) => usable_nar(stored, token, &line.nar_hash)?,
            _ => None,
        };
        *need = nar.map_or(Need::All, Need::Narinfo);
    }
    Ok(needs)
}

/// Returns the open push with this identifier, and defers its expiry.
///
/// # Errors
///
/// [`PushError::NoPush`] if no open push with this identifier was opened for this cache with this
/// token; or the error of the database.
pub fn find<'a>(
    stored: &'a StoredCache,
    token: &'a Token,
    id: PushId,
) -> Result<Push<'a>, PushError> {
    let metadata = &stored.storage.metadata;
    match pushes::touch(metadata, &id.to_string(), stored.id, token.id, &LIMITS)? {
        true => Ok(Push { stored, token, id }),
        false => Err(PushError::NoPush),
    }
}

/// Ends a push and removes its parts. Does nothing if the push does not exist.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn close(stored: &StoredCache, token: &Token, id: PushId) -> Result<(), StorageError> {
    let storage = &*stored.storage;
    if pushes::close(&storage.metadata, &id.to_string(), stored.id, token.id)? {
        storage
            .objects
            .remove_directory(&part_directory(&id.to_string()))?;
    }
    Ok(())
}

/// Returns the NAR with this hash if the client may use it and its file is complete, else
/// `None`.
fn usable_nar(
    stored: &StoredCache,
    token: &Token,
    nar_hash: &NarHash,
) -> Result<Option<StoredNar>, StorageError> {
    let storage = &*stored.storage;
    // Each file that is missing is recorded as lost. A policy may hide the paths of some files.
    for nar in pushes::usable_nars(&storage.metadata, stored.id, token.into(), nar_hash)? {
        if stored.shows_nar(Some(token.id), nar.id)? && storage.is_there(&nar)? {
            return Ok(Some(nar));
        }
    }
    Ok(None)
}

/// Keeps a stored NAR with this hash for the client, if it may use one: then the NAR need not be
/// stored again. Returns whether that is so.
fn holds_known(
    stored: &StoredCache,
    token: &Token,
    nar_hash: &NarHash,
) -> Result<bool, StorageError> {
    let Some(known) = usable_nar(stored, token, nar_hash)? else {
        return Ok(false);
    };
    Ok(pushes::hold_nars(&stored.storage.metadata, token.id, &[known.id])? == [true])
}

/// Returns the reason why a path whose name the client states would be refused. Returns `None` if
/// the cache has the path.
fn refusal(token: &Token, line: &OpenLine, need: &Need) -> Option<Refusal> {
    let path = line.path.as_ref()?;
    match need {
        Need::Nothing(_) => None,
        Need::OtherPath(found) => Some(Refusal::OtherPathExists {
            path: path.clone(),
            found: Some(found.clone()),
        }),
        Need::Narinfo(_) | Need::All => check_name(token, path.name()).err(),
    }
}
