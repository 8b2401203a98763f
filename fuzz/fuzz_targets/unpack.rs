//! Unpacking: an archive is accepted exactly if it is a NAR and agrees with the manifest. Nothing
//! remains of a refused archive, and nothing appears beside the destination. The first byte selects
//! how the archive is split, and whether there is a manifest.
#![no_main]

use std::io::{self, Read};
use std::path::Path;

use samovar_nix::nar::{Decoder, Event};
use samovar_nix::{NarHash, StorePath};
use samovar_workspace::entries::{Builder, Entries, Mtime};
use samovar_workspace::unpack::{Options, unpack};
use samovar_workspace::{Manifest, Root};
use sha2::{Digest, Sha256};

/// A reader that returns at most this number of bytes per call.
struct Short<'a>(&'a [u8], usize);

impl Read for Short<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.1);
        self.0.read(&mut out[..len])
    }
}

/// Returns the entries of a NAR of a directory, with the modes that Nix gives.
fn entries(mut nar: &[u8]) -> Option<Entries> {
    let mut decoder = Decoder::new();
    let mut builder: Option<Builder> = None;
    let (mut name, mut file) = (Vec::new(), (0, 0, Sha256::new()));
    let mtime = Mtime::default();
    while let Some(event) = decoder.decode(&mut nar).ok()? {
        match (event, &mut builder) {
            (Event::DirectoryBegin, None) => builder = Some(Builder::new(0o755, mtime)),
            (Event::DirectoryBegin, Some(builder)) => builder.enter(&name, 0o755, mtime).ok()?,
            (Event::DirectoryEnd, Some(builder)) => {
                builder.leave().ok()?;
            }
            (Event::Entry { name: next }, _) => name = next.to_vec(),
            (
                Event::File {
                    executable, size, ..
                },
                _,
            ) => {
                file = (if executable { 0o755 } else { 0o644 }, size, Sha256::new());
            }
            (Event::Contents(contents), _) => file.2.update(contents),
            (Event::FileEnd, Some(builder)) => {
                let digest = std::mem::take(&mut file.2).finalize().into();
                builder
                    .file(&name, file.0, mtime, file.1, Some(digest))
                    .ok()?;
            }
            (Event::Symlink { target }, Some(builder)) => {
                builder.symlink(&name, mtime, target).ok()?;
            }
            (Event::EntryEnd, _) => {}
            (_, None) => return None,
        }
    }
    builder?.finish().ok()
}

fn is_nar(mut nar: &[u8]) -> bool {
    let mut decoder = Decoder::new();
    while let Ok(Some(_)) = decoder.decode(&mut nar) {}
    nar.is_empty() && decoder.is_done()
}

fn run(nar: &[u8], step: usize, manifest: Option<&Manifest>) -> bool {
    let memory = Path::new("/dev/shm");
    let dir = tempfile::tempdir_in(memory)
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let options = Options {
        sync: false,
        nar_size_max: 1 << 20,
        ..Options::default()
    };
    let unpacked = unpack(
        &mut Short(nar, step),
        manifest,
        &dir.path().join("t"),
        &options,
    );
    let names: Vec<_> = dir
        .path()
        .read_dir()
        .unwrap()
        .map(|name| name.unwrap())
        .collect();
    assert_eq!(names.len(), usize::from(unpacked.is_ok()), "{names:?}");
    if let Ok(unpacked) = &unpacked {
        assert_eq!(names[0].file_name(), "t");
        assert_eq!(unpacked.nar_size, nar.len() as u64);
        assert_eq!(unpacked.nar_hash.as_bytes()[..], Sha256::digest(nar)[..]);
        // Paths may be too long for the standard library.
        Root::open(dir.path()).unwrap().remove_all(b"t").unwrap();
    }
    unpacked.is_ok()
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&first, nar)) = data.split_first() else {
        return;
    };
    let step = if first & 1 == 0 {
        usize::MAX
    } else {
        usize::from(first)
    };
    if first & 2 == 0 {
        assert_eq!(run(nar, step, None), is_nar(nar));
        return;
    }
    // The manifest is that of the first half if both halves are archives of the same length.
    let (stated, nar) = nar.split_at(nar.len() / 2);
    let nar = if nar.is_empty() { stated } else { nar };
    let Some(entries) = entries(stated) else {
        return;
    };
    let manifest = Manifest {
        tree: StorePath::from_base_name("zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app").unwrap(),
        nar_hash: NarHash::from_bytes(Sha256::digest(nar).into()),
        entries,
    };
    let is_reserved = manifest
        .entries
        .children(0)
        .any(|index| &*manifest.entries.list()[index].name == b".samovar");
    assert_eq!(
        run(nar, step, Some(&manifest)),
        stated == nar && !is_reserved
    );
});
