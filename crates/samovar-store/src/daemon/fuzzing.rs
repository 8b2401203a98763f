//! Private parsers, exposed for the targets in `fuzz/`.
#![allow(
    missing_docs,
    clippy::allow_attributes,
    reason = "no part of the interface"
)]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use samovar_nix::{PathInfo, StoreDir, StorePath};

use super::connection::{Connection, TempRoots};
use crate::error::StoreError;
use crate::realisation::RealisationId;

/// Runs client operations in turn on `bytes`, the daemon's side of a connection. Returns `None` if
/// they exceed the socket's buffer.
pub fn daemon(bytes: &[u8], path: &StorePath, id: &RealisationId) -> Option<Asked> {
    let (ours, mut theirs) = UnixStream::pair().ok()?;
    // Write everything in advance: one thread plays both sides.
    theirs.set_nonblocking(true).ok()?;
    theirs.write_all(bytes).ok()?;
    theirs.shutdown(Shutdown::Write).ok()?;
    let dir = StoreDir::default();
    let mut asked = Asked::default();
    let mut connection = Connection::handshake(ours).ok()?;
    while connection.is_in_step() && asked.count < 100 {
        asked.count += 1;
        match asked.count % 5 {
            1 => asked.info = connection.path_info(&dir, path.clone()),
            2 => drop(connection.path_from_hash_part(&dir, path.hash_part())),
            3 => drop(connection.realisation(&dir, id)),
            4 => {
                let mut roots = TempRoots {
                    connection,
                    store_dir: dir.clone(),
                };
                roots.ask(std::iter::once(path)).ok();
                roots.answer().ok();
                connection = roots.connection;
            }
            _ => drop(connection.is_valid(&dir, path)),
        }
    }
    Some(asked)
}

#[derive(Debug)]
pub struct Asked {
    pub count: u32,
    pub info: Result<Option<PathInfo>, StoreError>,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            count: 0,
            info: Ok(None),
        }
    }
}
