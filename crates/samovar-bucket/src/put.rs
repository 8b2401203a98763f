//! Objects that are written by one PUT.

use std::fs::File;
use std::io::{self, Read};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusty_s3::Method;
use sha2::{Digest as _, Sha256};

use crate::error::{BucketError, Fault};
use crate::stat::head;
use crate::wire::{Body, Request, Wire};

/// How an object is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Content-Type with which it is answered. `None`: what the engine uses.
    pub content_type: Option<String>,
    /// Refuse to replace another object (`If-None-Match: *`). Not all engines look at it, so
    /// nothing may depend on it. An object with the same content is no error.
    pub if_absent: bool,
    /// SHA-256 of the bytes, if it is known. Otherwise they are read once more to compute it.
    pub sha256: Option<[u8; 32]>,
}

pub(crate) fn bytes(
    wire: &Wire,
    key: &str,
    bytes: &[u8],
    options: &PutOptions,
) -> Result<(), BucketError> {
    let sha256 = options
        .sha256
        .unwrap_or_else(|| Sha256::digest(bytes).into());
    put(wire, key, Body::Bytes(bytes), sha256, options)
}

pub(crate) fn file(
    wire: &Wire,
    key: &str,
    file: &File,
    len: u64,
    options: &PutOptions,
) -> Result<(), BucketError> {
    let body = Body::Piece {
        file,
        offset: 0,
        len,
    };
    let failed = |error| wire.error(format!("PUT {key}"), Fault::File(error));
    let sha256 = match options.sha256 {
        Some(sha256) => sha256,
        None => digest_of_piece(file, 0, len).map_err(failed)?,
    };
    put(wire, key, body, sha256, options)
}

fn put(
    wire: &Wire,
    key: &str,
    body: Body<'_>,
    sha256: [u8; 32],
    options: &PutOptions,
) -> Result<(), BucketError> {
    let key = wire.whole(key)?;
    let request = Request::object(Method::Put, &key).body(body);
    let request = request.signed("x-amz-checksum-sha256", STANDARD.encode(sha256));
    let request = with_options(request, options);
    match wire.send(&request) {
        Ok(answer) => {
            answer.finish();
            Ok(())
        }
        // It may be ours: the answer to an earlier attempt was lost.
        Err(error) if error.is_taken() => {
            if is_there(wire, &key, body.len(), sha256)? {
                return Ok(());
            }
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// Adds the headers that a PUT and the start of a multipart upload have in common.
pub(crate) fn with_options<'r>(mut request: Request<'r>, options: &PutOptions) -> Request<'r> {
    if let Some(content_type) = &options.content_type {
        request = request.header("content-type", content_type);
    }
    if options.if_absent && request.method == Method::Put {
        request = request.header("if-none-match", "*");
    }
    request
}

/// Returns whether the object is the one that was sent.
///
/// If the engine keeps no SHA-256, the length decides: keys are named by contents.
fn is_there(wire: &Wire, key: &str, len: u64, sha256: [u8; 32]) -> Result<bool, BucketError> {
    let stat = head(wire, key)?;
    Ok(stat.is_some_and(|stat| stat.len == len && stat.sha256.is_none_or(|its| its == sha256)))
}

/// Returns the SHA-256 of a piece of a file.
pub(crate) fn digest_of_piece(file: &File, offset: u64, len: u64) -> io::Result<[u8; 32]> {
    let mut piece = crate::wire::Piece::new(file, offset, len);
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match piece.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finalize().into()),
            Ok(read) => hasher.update(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(piece.failure(error)),
        }
    }
}
