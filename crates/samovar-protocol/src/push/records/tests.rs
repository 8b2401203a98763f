use std::io::BufReader;

use proptest::collection::vec;
use proptest::prelude::*;
use samovar_nix::NarHash;
use samovar_nix::narinfo::Compression;

use super::super::{NARINFO_LEN_MAX, NarinfoLine, PUBLISH_COUNT_MAX, PackLine};
use super::*;

const HASH_PART: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";
const NAR_HASH: &str = "1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z";

/// Reads the records of a body that arrives in pieces of `step` bytes.
fn scan<L: RecordLine>(body: &[u8], step: usize) -> Result<Vec<(L, Vec<u8>)>, WireError> {
    let source = BufReader::with_capacity(step.max(1), body);
    let mut records = Records::<_, L>::new(source);
    let mut found = Vec::new();
    let of = |error: io::Error| WireError::of(&error).unwrap();
    while let Some(line) = records.next_record().map_err(of)? {
        let mut bytes = Vec::new();
        records.read_to_end(&mut bytes).map_err(of)?;
        assert_eq!(records.number(), found.len() + 1);
        found.push((line, bytes));
    }
    assert!(records.next_record().unwrap().is_none());
    Ok(found)
}

fn pack(records: &[Vec<u8>]) -> Vec<u8> {
    let mut body = Vec::new();
    for record in records {
        let line = PackLine {
            nar_hash: NarHash::parse_nixbase32(NAR_HASH.as_bytes()).unwrap(),
            compression: Compression::Zstd,
            len: record.len() as u64,
        };
        write_record(&mut body, &line, record);
    }
    write_end(&mut body, records.len());
    body
}

#[test]
fn records_that_break_the_grammar_are_refused() {
    let first = format!("nar {NAR_HASH} zstd 2\nab");
    for wrong in [
        "\n".to_owned(),
        "end\n".to_owned(),
        "end 0\n".to_owned(),
        "end 2\n".to_owned(),
        "end 01\n".to_owned(),
        "end 1 \n".to_owned(),
        format!("nar {NAR_HASH} zstd\n"),
        format!("nar {NAR_HASH} zstd 02\nab"),
        format!("nar {NAR_HASH} Zstd 2\nab"),
        format!("nar {NAR_HASH} tar 2\nab"),
        format!("nar {HASH_PART} zstd 2\nab"),
        format!("narinfo {NAR_HASH} zstd 2\nab"),
        "x".repeat(LINE_LEN_MAX + 1),
    ] {
        let found = scan::<PackLine>(format!("{first}{wrong}").as_bytes(), 7);
        assert!(
            matches!(found, Err(WireError::Record { number: 2, .. })),
            "{wrong:?} {found:?}"
        );
    }
    for (rest, expected) in [
        ("", WireError::Truncated),
        ("end 1", WireError::Truncated),
        ("end 1\n\n", WireError::BytesAfterEnd),
    ] {
        let found = scan::<PackLine>(format!("{first}{rest}").as_bytes(), 7);
        assert_eq!(found.unwrap_err(), expected);
    }
    let short = format!("nar {NAR_HASH} zstd 9\nend 1\n");
    assert_eq!(
        scan::<PackLine>(short.as_bytes(), 7),
        Err(WireError::Truncated)
    );
}

#[test]
fn records_are_limited_in_number_and_length() {
    let publish = |count: usize, len: usize| {
        let record = format!("narinfo {len}\n{}", "x".repeat(len));
        scan::<NarinfoLine>(
            format!("{}end {count}\n", record.repeat(count)).as_bytes(),
            1 << 16,
        )
    };
    let count =
        |records: Result<Vec<_>, _>| records.map(|records: Vec<(NarinfoLine, _)>| records.len());
    assert_eq!(count(publish(PUBLISH_COUNT_MAX, 0)), Ok(PUBLISH_COUNT_MAX));
    let error = publish(PUBLISH_COUNT_MAX + 1, 0).unwrap_err();
    assert_eq!(error, WireError::TooMany(PUBLISH_COUNT_MAX));
    assert!(error.is_too_large());
    assert_eq!(count(publish(1, NARINFO_LEN_MAX)), Ok(1));
    let error = publish(1, NARINFO_LEN_MAX + 1).unwrap_err();
    assert!(error.is_too_large(), "{error:?}");
}

proptest! {
    #[test]
    fn records_are_found_wherever_the_body_is_split(
        records in vec(vec(any::<u8>(), 0..40), 0..6),
        step in 1_usize..60,
    ) {
        let body = pack(&records);
        let found = scan::<PackLine>(&body, step).unwrap();
        prop_assert_eq!(found.len(), records.len());
        for ((line, found), record) in found.iter().zip(&records) {
            prop_assert_eq!(found, record);
            prop_assert_eq!(line.len, record.len() as u64);
        }
    }

    #[test]
    fn records_that_are_not_read_are_skipped(
        records in vec(vec(any::<u8>(), 0..40), 0..6),
        read_len in 0_usize..50,
    ) {
        let body = pack(&records);
        let mut reader = Records::<_, PackLine>::new(&body[..]);
        for record in &records {
            prop_assert_eq!(reader.next_record().unwrap().unwrap().len, record.len() as u64);
            let mut start = vec![0; read_len.min(record.len())];
            reader.read_exact(&mut start).unwrap();
            prop_assert_eq!(&start, &record[..start.len()]);
        }
        prop_assert!(reader.next_record().unwrap().is_none());
    }

    #[test]
    fn a_prefix_is_never_a_body(
        records in vec(vec(any::<u8>(), 0..40), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let body = pack(&records);
        let prefix = &body[..cut.index(body.len())];
        prop_assert_eq!(scan::<PackLine>(prefix, 16), Err(WireError::Truncated));
    }

    #[test]
    fn arbitrary_bytes_are_handled_the_same_wherever_they_are_split(
        body in vec(any::<u8>(), 0..200),
        step in 1_usize..60,
    ) {
        prop_assert_eq!(scan::<PackLine>(&body, step), scan::<PackLine>(&body, 1));
        prop_assert_eq!(scan::<NarinfoLine>(&body, step), scan::<NarinfoLine>(&body, 1));
    }
}
