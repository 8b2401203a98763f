//! NAR decoder, on input in two pieces: encoding the decoded events gives the input again. The
//! first byte selects the split.
#![no_main]

use samovar_nix::nar::{Decoder, Encoder, Event, Listing};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&cut, nar)) = data.split_first() else {
        return;
    };
    let (first, second) = nar.split_at(usize::from(cut).min(nar.len()));
    let (mut decoder, mut encoder) = (Decoder::new(), Encoder::new());
    let (mut listing, mut written) = (Listing::new(), Vec::new());
    encoder.begin(&mut written).unwrap();
    for mut piece in [first, second] {
        while let Ok(Some(event)) = decoder.decode(&mut piece) {
            listing.event(&event).unwrap();
            match event {
                Event::DirectoryBegin => encoder.begin_directory(&mut written).unwrap(),
                Event::Entry { name } => encoder.entry(&mut written, name).unwrap(),
                Event::EntryEnd => encoder.end_entry(&mut written).unwrap(),
                Event::DirectoryEnd => encoder.end_directory(&mut written).unwrap(),
                Event::File {
                    executable,
                    size,
                    offset,
                } => {
                    assert_eq!(encoder.file(&mut written, executable, size), Ok(offset));
                }
                Event::Contents(contents) => written.extend_from_slice(contents),
                Event::FileEnd => encoder.end_file(&mut written).unwrap(),
                Event::Symlink { target } => encoder.symlink(&mut written, target).unwrap(),
            }
        }
    }
    if let Ok(len) = decoder.finish() {
        assert_eq!(encoder.finish(), Ok(len));
        assert_eq!(written, nar[..written.len()]);
        assert!(listing.finish().is_ok());
    }
});
