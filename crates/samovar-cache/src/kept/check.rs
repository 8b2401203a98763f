//! Comparing copies with the registered hash, before anybody gets them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use samovar_nix::NarHash;
use sha2::{Digest, Sha256};

use super::table::{Kept, Place, Table};
use crate::registration::Registration;

/// Added to the priority's number, where 0 is usual and 19 the lowest priority.
const NICENESS: i32 = 10;

/// Bytes hashed at once.
const PIECE_LEN: usize = 256 * 1024;

/// A whole copy that nobody has compared yet.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) file: File,
    pub(super) place: Place,
    pub(super) registration: Registration,
}

/// The thread that compares. It ends with the last one who could send it something.
#[derive(Debug)]
pub(super) struct Checker {
    sender: Sender<Finished>,
}

impl Checker {
    pub(super) fn start(table: Arc<Table>) -> io::Result<Self> {
        let (sender, receiver) = channel();
        std::thread::Builder::new()
            .name("nars-kept".into())
            .spawn(move || run(&table, &receiver))?;
        Ok(Self { sender })
    }

    pub(super) fn sender(&self) -> Sender<Finished> {
        self.sender.clone()
    }
}

fn run(table: &Table, receiver: &Receiver<Finished>) {
    // Linux counts this for each thread. Where it may not be lowered, that is no harm.
    rustix::process::nice(NICENESS).ok();
    let mut piece = vec![0; PIECE_LEN];
    for finished in receiver {
        let Finished {
            file,
            place,
            registration,
        } = finished;
        match hash(&file, place.len, &mut piece) {
            Ok(found) if found == place.nar_hash => {
                let file = Arc::new(file);
                table.keep(Kept { file, place });
            }
            Ok(_) => {
                table.refuse(place.nar_hash);
                registration.report(&wrong_contents());
            }
            Err(error) => table.note_failure(&error),
        }
    }
}

fn hash(file: &File, len: u64, piece: &mut [u8]) -> io::Result<NarHash> {
    let mut hash = Sha256::new();
    let mut at = 0;
    while at < len {
        let read = file.read_at(piece, at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hash.update(piece.get(..read).unwrap_or_default());
        at += read as u64;
    }
    Ok(NarHash::from_bytes(hash.finalize().into()))
}

/// What is said of files that make another NAR than the registered one.
pub(crate) fn wrong_contents() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "NAR has another hash than the registered one",
    )
}
