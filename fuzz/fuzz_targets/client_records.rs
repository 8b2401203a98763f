//! Client's parser of responses to bulk queries: a valid response equals the one encoding of
//! its records.
#![no_main]

use std::io::Write;

use samovar::{Record, Records};

fn read(mut bytes: &[u8]) -> Option<Vec<Record>> {
    let mut records = Records::begin(&mut bytes).ok()?;
    let mut all = Vec::new();
    while let Some(record) = records.read().ok()? {
        all.push(record);
    }
    Some(all)
}

fn write(records: &[Record]) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut said = [0; 3];
    writeln!(text, "narinfos 1 {}", records.len())?;
    for record in records {
        match record {
            Record::Path(hash_part, narinfo) => {
                said[0] += 1;
                writeln!(text, "path {hash_part} {}", narinfo.len())?;
                text.extend_from_slice(narinfo);
            }
            Record::Absent(hash_part) => {
                said[1] += 1;
                writeln!(text, "absent {hash_part}")?;
            }
            Record::Failed(hash_part) => {
                said[2] += 1;
                writeln!(text, "failed {hash_part}")?;
            }
        }
    }
    writeln!(text, "end {} {} {}", said[0], said[1], said[2])?;
    Ok(text)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(records) = read(bytes) {
        assert_eq!(write(&records).ok().as_deref(), Some(bytes));
    }
});
