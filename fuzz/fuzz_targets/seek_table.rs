//! Parser of seek tables: frames follow each other, have limited lengths, and cover the content.
//! The first bytes are the length of the content, and that of the file before its tail.
#![no_main]

use samovar_nix::seek_table::Frames;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((head, tail)) = data.split_first_chunk::<8>() else {
        return;
    };
    let number = |at: usize| u64::from(u32::from_le_bytes(head[at..at + 4].try_into().unwrap()));
    let (content_len, file_len) = (number(0), number(4).saturating_add(tail.len() as u64));
    let Some(frames) = Frames::parse(tail, file_len, content_len) else {
        return;
    };
    let table_len = Frames::table_len(tail).unwrap();
    let (mut file, mut content) = (0, 0);
    for frame in frames.covering(&(0..content_len)) {
        assert!(frame.file.start >= file && !frame.file.is_empty());
        assert_eq!(frame.content.start, content);
        assert!((1..=32 << 20).contains(&(frame.content.end - content)));
        (file, content) = (frame.file.end, frame.content.end);
    }
    assert!(file + table_len <= file_len);
    assert_eq!(content, content_len);
});
