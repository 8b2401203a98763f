//! Assembles a NAR from a recipe and a base NAR.
//!
//! The file of the new NAR is made while it is written to an object, and is verified like an
//! upload: one pass decompresses the file, and checks and hashes its NAR. Frames that are copied
//! from the base are decompressed only in this pass.
//!
//! Assemblies take turns with uploads. Everything that is hashed or decompressed counts as content:
//! the file of the base, its frames, the recipe, and the new NAR.

mod assembler;
mod base;
mod work;

use std::io::{self, Read, Write};

use samovar_nix::NarHash;
use samovar_nix::narinfo::Compression;
use samovar_protocol::names::FileName;
use samovar_protocol::recipe::{RecipeError, WINDOW_LOG_MAX};

use super::{Push, PushError, holds_known, usable_nar};
use crate::metadata::{NewNar, nars};
use crate::receive::PutError;
use crate::storage::counters::{Kind, Reason, Received};
use crate::storage::nar::{self, NewFile};
use crate::verify::{self, Limits, Memory, Refusal, VerifyError, decompressed, verify_unnamed};

use self::assembler::Assembler;
use self::base::Source;
use self::work::{AddWork, Granted, Work};

/// Minimum content length of a frame, in bytes, except for the last one of a file.
const FRAME_LEN_MIN: usize = 256 << 10;

/// Maximum memory of all windows, in bytes: as much as a single NAR with the largest window needs.
const WINDOWS_LEN_MAX: u64 = 136 << 20;

/// Memory for verifying the new file, in bytes: the maximum window of its frames.
const VERIFY_MEMORY: u64 = 8 << 20;

/// Memory of the assembler for buffers and the compressor, in bytes.
const BUFFER_MEMORY: u64 = 16 << 20;

/// Maximum length of all copies, and of what is decompressed for them, as a multiple of the base's
/// length.
const WORK_FACTOR: u64 = 4;

/// Number of bytes by which copies may exceed this multiple.
const WORK_FREE_LEN: u64 = 64 << 20;

/// Reason why a NAR cannot be assembled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssembleError {
    /// The base is not stored, or the client may not use it.
    #[error("there is no base NAR with the hash {0} that this token may use: upload the whole NAR")]
    NoBase(NarHash),
    /// The file of the base has another hash, or cannot be decompressed.
    #[error("the file of the base NAR is damaged: upload the whole NAR")]
    Damaged,
    /// The base can only be read from start to end.
    #[error(
        "the recipe copies from byte {offset} of the base NAR after byte {position}, but the \
         server can read this base only from its start to its end: upload the whole NAR"
    )]
    Backward {
        /// Offset of the piece to copy, in bytes.
        offset: u64,
        /// Offset up to which the base has been read, in bytes.
        position: u64,
    },
    /// The recipe costs too much.
    #[error(
        "the copies of the recipe, or the frames that they need, are longer than {WORK_FACTOR} \
         times the base NAR: upload the whole NAR"
    )]
    Work,
    /// The windows of the recipe and of the base together are too large.
    #[error(
        "the windows of the recipe and of the base NAR need more than {} MiB: upload the whole NAR",
        WINDOWS_LEN_MAX >> 20
    )]
    Windows,
    /// A NAR is being assembled from the same base in the same push.
    #[error("this push assembles another NAR from this base: repeat the request later")]
    InProgress,
    /// The recipe is invalid.
    #[error(transparent)]
    Recipe(RecipeError),
    /// The recipe cannot be decompressed.
    #[error("the recipe cannot be decompressed: {0}")]
    Compression(String),
    /// A copy is not within the base.
    #[error(
        "operation {number} copies beyond the end of the base NAR, which has {base_size} bytes"
    )]
    PastEnd {
        /// Number of the operation, from 1.
        number: usize,
        /// Length of the base NAR, in bytes.
        base_size: u64,
    },
}

/// Receives a recipe compressed with zstd, assembles its NAR, and verifies it. When this
/// returns, the NAR is stored durably. Returns the hash of the NAR, and its length in bytes.
/// `window_log`: maximum window of the recipe, as a power of two, at most
/// [`WINDOW_LOG_MAX`].
///
/// # Errors
///
/// [`PushError::Assemble`]. Other errors.
pub fn assemble(
    push: &Push<'_>,
    base: &NarHash,
    window_log: u32,
    source: &mut dyn Read,
    memory: &mut dyn Memory,
) -> Result<(NarHash, u64), PushError> {
    let storage = &*push.stored.storage;
    let running = storage.joins.start((push.id.to_string(), *base));
    let _running = running.ok_or(AssembleError::InProgress)?;
    let found = usable_nar(push.stored, push.token, base)?;
    let nar = found.ok_or(AssembleError::NoBase(*base))?;
    let file = storage.open_whole(&nar)?;
    let file = file.ok_or(AssembleError::NoBase(*base))?;
    let index = nars::frames(&storage.metadata, nar.id)?;
    let base_size = nar.nar_size;
    let base = Source::new(nar, file, index.as_deref());
    let window_log = window_log.min(WINDOW_LOG_MAX);
    let windows_len = base.window_len(&storage.limits)? + (1 << window_log);
    if windows_len > WINDOWS_LEN_MAX {
        return Err(AssembleError::Windows.into());
    }
    let needed = windows_len + VERIFY_MEMORY + BUFFER_MEMORY;
    let reserved = memory.reserve(needed).map_err(PutError::from);
    let outcome = match reserved {
        Ok(()) => {
            let work = Work::new(memory);
            let received = receive_recipe(push, base, base_size, window_log, source, &work);
            work.finish(received)
        }
        Err(error) => Err(error.into()),
    };
    match &outcome {
        Ok(_) => storage.counters.accept(Kind::Nar, 1),
        Err(PushError::Put(error)) => storage.counters.reject(Kind::Nar, Reason::of(error)),
        Err(_) => storage.counters.reject(Kind::Nar, Some(Reason::Nar)),
    }
    let (new, file) = outcome?;
    let (nar_hash, nar_size) = (new.nar.nar_hash, new.nar.nar_size);
    if holds_known(push.stored, push.token, &nar_hash)? {
        return Ok((nar_hash, nar_size));
    }
    nar::store(storage, new, file)?;
    Ok((nar_hash, nar_size))
}

/// Receives a recipe, and writes the file of its NAR to a new object.
fn receive_recipe(
    push: &Push<'_>,
    base: Source,
    base_size: u64,
    window_log: u32,
    source: &mut dyn Read,
    work: &Work<'_>,
) -> Result<(NewNar, NewFile), PushError> {
    let add = |len: u64| work.add(len);
    base.verify(&add)?;
    let storage = &*push.stored.storage;
    let work_max = base_size
        .saturating_mul(WORK_FACTOR)
        .saturating_add(WORK_FREE_LEN);
    let used = push.stored.used_of_quota()?;
    let check_len = |len: u64| push.stored.check_quota(used, len);
    let recipe_limits = Limits {
        zstd_window_log_max: window_log,
        ..Limits::default()
    };
    let convert = |failure| match failure {
        VerifyError::Source(error) => error,
        failure => io::Error::other(of_compression(failure)),
    };
    let mut source = Received {
        source,
        counters: &storage.counters,
    };
    let received = decompressed(
        &mut source,
        Compression::Zstd,
        &recipe_limits,
        &mut Granted::of_client(1 << window_log, &add, &|| work.rest()),
        &convert,
        |recipe| {
            base.open(&storage.limits, work_max, &add, |base| {
                let mut file = Assembler::new(recipe, base, base_size, work_max, &check_len)?;
                let received = receive_assembled(push, &mut file, used, &add);
                match file.take_failure() {
                    Some(failure) => Err(failure),
                    None => received,
                }
            })
        },
    );
    received.unwrap_or_else(|failure| Err(of_compression(failure).into()))
}

/// Verifies the file of an assembled NAR, and writes it to a new object.
fn receive_assembled(
    push: &Push<'_>,
    file: &mut Assembler<'_, '_>,
    mut used: u64,
    work: AddWork<'_>,
) -> Result<(NewNar, NewFile), PushError> {
    let limits = &push.stored.storage.limits;
    let verify = |object: &mut dyn Write| {
        let memory = &mut Granted::new(VERIFY_MEMORY, work);
        verify_unnamed(file, Compression::Zstd, object, limits, memory)
            .map_err(|error| PutError::of_nar(error, "an assembled NAR"))
    };
    let name =
        |verified: &verify::Verified| Ok(FileName::new(verified.file_hash, verified.compression));
    let received = nar::receive(push.stored, push.token, &mut used, verify, name);
    received.map_err(|error| match error {
        // The server has made the file, so frames of the base are damaged.
        PutError::File(refusal) if is_of_file(&refusal) => AssembleError::Damaged.into(),
        error => error.into(),
    })
}

/// Returns whether the fault is one of the compressed file, not of the NAR in it.
fn is_of_file(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::Truncated { .. }
            | Refusal::Corrupt { .. }
            | Refusal::BytesAfterStream { .. }
            | Refusal::Window { .. }
            | Refusal::Oversized { .. }
    )
}

/// Converts the error of decompressing a recipe, because the texts of [`Refusal`] describe NARs.
fn of_compression(failure: VerifyError) -> AssembleError {
    AssembleError::Compression(match failure {
        VerifyError::Refused(Refusal::Truncated { .. }) => {
            "its zstd stream is cut short".to_owned()
        }
        VerifyError::Refused(Refusal::Corrupt { reason, .. }) => {
            format!("it is not a valid zstd stream: {reason}")
        }
        VerifyError::Refused(Refusal::BytesAfterStream { .. }) => {
            "bytes follow its zstd stream".to_owned()
        }
        VerifyError::Refused(Refusal::Window { limit, .. }) => {
            format!("its zstd stream needs a window of more than {limit} bytes")
        }
        VerifyError::Refused(Refusal::Oversized { .. }) => {
            "it is much longer than its content".to_owned()
        }
        other => other.to_string(),
    })
}
