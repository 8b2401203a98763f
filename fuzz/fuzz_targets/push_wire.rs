//! Parsers of the push protocol's bodies: the result does not depend on where a body is split, and
//! an accepted body is the only one with its records.
#![no_main]

use std::io::{self, BufReader, Read as _};

use samovar_protocol::push::{
    NarinfoLine, OpenLine, PackLine, RecordLine, Records, WireError, read_open, write_end,
    write_record,
};

/// Reads a body in pieces of `step` bytes.
fn scan<L: RecordLine>(body: &[u8], step: usize) -> Result<Vec<(L, Vec<u8>)>, WireError> {
    let mut records = Records::<_, L>::new(BufReader::with_capacity(step, body));
    let of = |error: io::Error| WireError::of(&error).unwrap();
    let mut found = Vec::new();
    while let Some(line) = records.next_record().map_err(of)? {
        let mut bytes = Vec::new();
        records.read_to_end(&mut bytes).map_err(of)?;
        found.push((line, bytes));
    }
    Ok(found)
}

/// Reads a body and writes it again.
fn check<L: RecordLine>(body: &[u8], step: usize) {
    let write = |records: &Vec<(L, Vec<u8>)>| {
        let mut written = Vec::new();
        for (line, bytes) in records {
            assert_eq!(line.record_len(), bytes.len() as u64);
            write_record(&mut written, line, bytes);
        }
        write_end(&mut written, records.len());
        written
    };
    let found = scan::<L>(body, body.len().max(1)).map(|records| write(&records));
    let split = scan::<L>(body, step).map(|records| write(&records));
    assert_eq!(found, split);
    if let Ok(written) = found {
        assert_eq!(written, body);
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&step, body)) = data.split_first() else {
        return;
    };
    let step = usize::from(step) + 1;
    check::<PackLine>(body, step);
    check::<NarinfoLine>(body, step);
    if let Ok(lines) = read_open(BufReader::with_capacity(step, body), 1000) {
        let written: String = lines.iter().map(OpenLine::text).collect();
        assert_eq!(written.as_bytes(), body);
    }
});
