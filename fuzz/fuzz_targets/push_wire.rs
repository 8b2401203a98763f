//! Parsers of the push protocol's bodies: the result does not depend on where a body is split, and
//! an accepted body is the only one with its records.
#![no_main]

use std::io::{self, BufReader, Read as _};

use samovar_storage::push::wire::{
    NarinfoLine, PackLine, RecordLine, Records, WireError, read_open,
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

/// Reads a body and writes it again, with a line made by `line` before each record.
fn check<L: RecordLine>(body: &[u8], step: usize, line: impl Fn(&L) -> String) {
    let write = |records: &Vec<(L, Vec<u8>)>| {
        let mut written = Vec::new();
        for (header, bytes) in records {
            assert_eq!(header.record_len(), bytes.len() as u64);
            written.extend(line(header).bytes());
            written.extend(bytes);
        }
        written.extend(format!("end {}\n", records.len()).bytes());
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
    check::<PackLine>(body, step, |line| {
        let hash = String::from_utf8(line.nar_hash.nixbase32().to_vec()).unwrap();
        format!("nar {hash} {} {}\n", line.compression.name(), line.len)
    });
    check::<NarinfoLine>(body, step, |line| format!("narinfo {}\n", line.len));
    if let Ok(lines) = read_open(BufReader::with_capacity(step, body), 1000) {
        let mut written = String::new();
        for line in lines {
            let hash = String::from_utf8(line.nar_hash.nixbase32().to_vec()).unwrap();
            written += &format!("{} {hash} {}", line.hash_part, line.nar_size);
            if let Some(path) = &line.path {
                written += &format!(" {}", path.name());
            }
            written.push('\n');
        }
        assert_eq!(written.as_bytes(), body);
    }
});
