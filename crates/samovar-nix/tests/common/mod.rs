//! Trees as values, which tests can compare, encode and decode.

#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this, so no expectation fits all of them"
)]

use samovar_nix::nar::{DecodeError, Decoder, EncodeError, Encoder, Event, Listing, Sink};

/// An [`Event`] that owns its bytes. Consecutive contents are joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owned {
    DirectoryBegin,
    Entry(Vec<u8>),
    EntryEnd,
    DirectoryEnd,
    File {
        executable: bool,
        offset: u64,
        contents: Vec<u8>,
    },
    Symlink(Vec<u8>),
}

/// Decodes a NAR from these pieces. Returns its events and its length.
pub(crate) fn decode<'a>(
    mut decoder: Decoder,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(Vec<Owned>, u64), DecodeError> {
    let mut events = Vec::new();
    for mut piece in pieces {
        while let Some(event) = decoder.decode(&mut piece)? {
            take(&mut events, event);
        }
    }
    Ok((events, decoder.finish()?))
}

fn take(events: &mut Vec<Owned>, event: Event<'_>) {
    events.push(match event {
        Event::DirectoryBegin => Owned::DirectoryBegin,
        Event::Entry { name } => Owned::Entry(name.to_vec()),
        Event::EntryEnd => Owned::EntryEnd,
        Event::DirectoryEnd => Owned::DirectoryEnd,
        Event::File {
            executable, offset, ..
        } => Owned::File {
            executable,
            offset,
            contents: Vec::new(),
        },
        Event::Symlink { target } => Owned::Symlink(target.to_vec()),
        Event::FileEnd => return,
        Event::Contents(data) => {
            let Some(Owned::File { contents, .. }) = events.last_mut() else {
                panic!("contents outside a file");
            };
            contents.extend_from_slice(data);
            return;
        }
    });
}

/// Writes the framing of the events, and passes their contents to `contents_to`.
pub(crate) fn encode<S: Sink>(
    events: &[Owned],
    out: &mut S,
    mut contents_to: impl FnMut(&mut S, &[u8]),
) -> Result<u64, EncodeError> {
    let mut nar = Encoder::new();
    nar.begin(out)?;
    for event in events {
        match event {
            Owned::DirectoryBegin => nar.begin_directory(out)?,
            Owned::Entry(name) => nar.entry(out, name)?,
            Owned::EntryEnd => nar.end_entry(out)?,
            Owned::DirectoryEnd => nar.end_directory(out)?,
            Owned::Symlink(target) => nar.symlink(out, target)?,
            Owned::File {
                executable,
                offset,
                contents,
            } => {
                assert_eq!(nar.file(out, *executable, contents.len() as u64)?, *offset);
                contents_to(out, contents);
                nar.end_file(out)?;
            }
        }
    }
    nar.finish()
}

/// Encodes the events as a NAR.
pub(crate) fn encode_all(events: &[Owned]) -> Vec<u8> {
    let mut nar = Vec::new();
    let len = encode(events, &mut nar, |out, contents| {
        out.extend_from_slice(contents)
    })
    .unwrap();
    assert_eq!(nar.len() as u64, len);
    nar
}

/// Encodes the events as a listing.
pub(crate) fn listing(events: &[Owned]) -> String {
    let mut listing = Listing::new();
    for event in events {
        match event {
            Owned::DirectoryBegin => listing.begin_directory(),
            Owned::Entry(name) => listing.entry(name),
            Owned::EntryEnd => listing.end_entry(),
            Owned::DirectoryEnd => listing.end_directory(),
            Owned::Symlink(target) => listing.symlink(target),
            Owned::File {
                executable,
                contents,
                ..
            } => listing.file(*executable, contents.len() as u64),
        }
        .unwrap();
    }
    listing.finish().unwrap()
}
