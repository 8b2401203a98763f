//! Parsers of the push protocol's bodies: the result does not depend on where a body is split, the
//! records of an accepted body do not overlap, and accepted lines are in the only form.
#![no_main]

use samovar_storage::push::wire::{
    NarinfoLine, PackLine, Record, RecordLine, Scanner, WireError, parse_open,
};

fn scan<L: RecordLine>(body: &[u8], step: usize) -> Result<Vec<Record<L>>, WireError> {
    let mut scanner = Scanner::default();
    for piece in body.chunks(step) {
        scanner.push(piece)?;
    }
    scanner.finish()
}

/// Scans a body and writes it again, with a line made by `line` before each record.
fn check<L: RecordLine>(body: &[u8], step: usize, line: impl Fn(&L) -> String) {
    let found = scan::<L>(body, body.len().max(1));
    let split = scan::<L>(body, step);
    let lens = |records: &Vec<Record<L>>| -> Vec<_> {
        let of = |record: &Record<L>| (record.offset, record.line.record_len());
        records.iter().map(of).collect()
    };
    assert_eq!(found.as_ref().map(lens), split.as_ref().map(lens));
    let Ok(records) = found else { return };
    let mut written = Vec::new();
    for record in &records {
        let start = usize::try_from(record.offset).unwrap();
        let end = start + usize::try_from(record.line.record_len()).unwrap();
        written.extend(line(&record.line).bytes());
        assert_eq!(written.len(), start);
        written.extend(&body[start..end]);
    }
    written.extend(format!("end {}\n", records.len()).bytes());
    assert_eq!(written, body);
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&step, body)) = data.split_first() else {
        return;
    };
    let step = usize::from(step) + 1;
    check::<PackLine>(body, step, |line| {
        let hash = String::from_utf8(line.nar_hash.nixbase32().to_vec()).unwrap();
        format!("nar {hash} {} {}\n", line.compression.name(), line.len)
    });
    check::<NarinfoLine>(body, step, |line| format!("narinfo {}\n", line.len));
    if let Ok(lines) = parse_open(body, 1000) {
        let mut written = String::new();
        for line in lines {
            let hash = String::from_utf8(line.nar_hash.nixbase32().to_vec()).unwrap();
            written += &format!("{} {hash} {}\n", line.hash_part, line.nar_size);
        }
        assert_eq!(written.as_bytes(), body);
    }
});
