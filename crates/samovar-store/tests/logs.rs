//! The store finds build logs in all locations and formats that Nix uses.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use bzip2::Compression;
use bzip2::write::BzEncoder;
use rusqlite::params;
use samovar_nix::StorePath;
use samovar_store::{LocalStore, Log, Store, StoreError};
use support::rows::{self, Journal, Rows};

const DRV: &str = "0123456789abcdfghijklmnpqrsvwxyz-app-1.0.drv";
const NESTED: &str = "drvs/01/23456789abcdfghijklmnpqrsvwxyz-app-1.0.drv";
const FLAT: &str = "drvs/0123456789abcdfghijklmnpqrsvwxyz-app-1.0.drv";

fn place() -> (Rows, LocalStore) {
    let place = Rows::new(Journal::Wal);
    let store = place.open();
    (place, store)
}

fn put(place: &Rows, name: &str, content: &[u8]) {
    let path = place.dir().join("log").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn compressed(text: &[u8]) -> Vec<u8> {
    let mut encoder = BzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn log(store: &LocalStore, base_name: &str) -> Option<Log> {
    store
        .log(&StorePath::from_base_name(base_name).unwrap())
        .unwrap()
}

fn text(mut log: Log) -> Vec<u8> {
    let mut text = Vec::new();
    log.read_to_end(&mut text).unwrap();
    text
}

#[test]
fn nested_before_flat_and_plain_before_compressed() {
    let (place, store) = place();
    assert!(log(&store, DRV).is_none());
    let expect = |expected: &[u8]| assert_eq!(text(log(&store, DRV).unwrap()), expected);
    put(
        &place,
        &format!("{FLAT}.bz2"),
        &compressed(b"flat, compressed"),
    );
    expect(b"flat, compressed");
    put(&place, FLAT, b"flat");
    expect(b"flat");
    put(
        &place,
        &format!("{NESTED}.bz2"),
        &compressed(b"compressed \x1b[31m\xff"),
    );
    expect(b"compressed \x1b[31m\xff");
    put(&place, NESTED, b"plain");
    expect(b"plain");
}

#[test]
fn the_compressed_file_itself() {
    let (place, store) = place();
    let file = compressed(&[b'x'; 10_000]);
    put(&place, &format!("{NESTED}.bz2"), &file);
    let found = log(&store, DRV).unwrap();
    assert!(found.is_bzip2());
    let (mut raw, len) = found.into_bzip2().unwrap();
    assert_eq!(len, file.len() as u64);
    let mut content = Vec::new();
    raw.read_to_end(&mut content).unwrap();
    assert_eq!(content, file);

    let mut begun = log(&store, DRV).unwrap();
    begun.read_exact(&mut [0; 10]).unwrap();
    let begun = begun.into_bzip2().unwrap_err();
    assert_eq!(text(begun).len(), 9_990);

    put(&place, NESTED, b"plain");
    assert!(log(&store, DRV).unwrap().into_bzip2().is_err());
}

#[test]
fn a_growing_compressed_log_ends_with_its_last_block() {
    let (place, store) = place();
    // Use random text, so that the compressed log is hardly shorter than its blocks of 100 kB.
    let mut state = 1_u32;
    let whole: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    })
    .take(500_000)
    .collect();
    let file = compressed(&whole);
    let mut len_before = 0;
    for len in [0, 1, 10, 1000, file.len() / 2, file.len() - 5, file.len()] {
        put(&place, &format!("{NESTED}.bz2"), &file[..len]);
        let decoded = text(log(&store, DRV).unwrap());
        assert!(whole.starts_with(&decoded), "after {len} bytes");
        assert!(decoded.len() >= len_before);
        len_before = decoded.len();
    }
    assert_eq!(len_before, whole.len());
    put(&place, &format!("{NESTED}.bz2"), &file[..file.len() / 2]);
    assert!(text(log(&store, DRV).unwrap()).len() > 100_000);
}

#[test]
fn a_growing_plain_log_keeps_its_length_at_open() {
    let (place, store) = place();
    put(&place, NESTED, b"first\n");
    let found = log(&store, DRV).unwrap();
    put(&place, NESTED, b"first\nsecond\n");
    assert_eq!(text(found), b"first\n");
}

#[test]
fn a_damaged_log_is_an_error() {
    let (place, store) = place();
    put(&place, &format!("{NESTED}.bz2"), b"this is no bzip2");
    let mut content = Vec::new();
    assert!(log(&store, DRV).unwrap().read_to_end(&mut content).is_err());
}

#[test]
fn an_output_has_the_log_of_its_deriver() {
    let (place, store) = place();
    put(&place, &format!("{NESTED}.bz2"), &compressed(b"built"));
    let writer = place.writer();
    rows::register(&writer, 1, 1);
    rows::register(&writer, 2, 2);
    writer
        .execute(
            "update ValidPaths set deriver = ? where path = ?",
            params![format!("/nix/store/{DRV}"), rows::full(1)],
        )
        .unwrap();
    assert_eq!(text(store.log(&rows::path(1)).unwrap().unwrap()), b"built");
    assert!(store.log(&rows::path(2)).unwrap().is_none());
    assert!(store.log(&rows::path(3)).unwrap().is_none());
}

#[test]
fn other_file_types_are_ignored() {
    let (place, store) = place();
    fs::create_dir_all(place.dir().join("log").join(NESTED)).unwrap();
    assert!(log(&store, DRV).is_none());
    fs::remove_dir(place.dir().join("log").join(NESTED)).unwrap();
    let status = std::process::Command::new("mkfifo")
        .arg(place.dir().join("log").join(NESTED))
        .status();
    assert!(status.unwrap().success());
    assert!(log(&store, DRV).is_none());
    fs::remove_file(place.dir().join("log").join(NESTED)).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(place.dir().join("log").join(NESTED));
    assert!(log(&store, DRV).is_none());
}

#[test]
fn symbolic_links_are_ignored_and_loops_are_errors() {
    use std::os::unix::fs::symlink;
    let (place, store) = place();
    put(&place, "elsewhere", b"secret");
    let log_dir = place.dir().join("log");
    let nested = log_dir.join(NESTED);
    fs::create_dir_all(nested.parent().unwrap()).unwrap();
    for target in [log_dir.join("elsewhere"), nested.clone(), "/nowhere".into()] {
        symlink(target, &nested).unwrap();
        assert!(log(&store, DRV).is_none());
        fs::remove_file(&nested).unwrap();
    }
    let above = nested.parent().unwrap();
    fs::remove_dir(above).unwrap();
    symlink(above, above).unwrap();
    let drv = StorePath::from_base_name(DRV).unwrap();
    assert!(matches!(store.log(&drv), Err(StoreError::Io { .. })));
}

#[test]
fn a_missing_log_directory() {
    let (place, store) = place();
    fs::write(place.dir().join("log"), "").unwrap();
    assert!(log(&store, DRV).is_none());
    let mut location = place.location();
    location.log_dir = Path::new("/proc/self/mem").to_owned();
    let elsewhere = LocalStore::new(location).unwrap();
    let drv = StorePath::from_base_name(DRV).unwrap();
    assert!(matches!(
        elsewhere.log(&drv),
        Ok(None) | Err(StoreError::Io { .. })
    ));
}
