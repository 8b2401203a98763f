//! [`random`]: random bytes, which SQL cannot make in the same way on all engines.

use std::fs::File;
use std::io::Read as _;

use crate::error::StorageError;

const SOURCE: &str = "/dev/urandom";

/// Returns 128 random bits that nobody can guess.
pub(crate) fn random() -> Result<[u8; 16], StorageError> {
    let mut bytes = [0; 16];
    File::open(SOURCE)
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|error| StorageError::file("cannot read", SOURCE, error))?;
    Ok(bytes)
}
