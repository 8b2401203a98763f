//! Client's parser of answers to bulk queries: a valid answer is what the writer makes of its
//! records.
#![no_main]

use samovar_protocol::bulk::{Record, Records, Writer};

fn read(mut bytes: &[u8]) -> Option<Vec<Record>> {
    let mut records = Records::begin(&mut bytes).ok()?;
    let mut all = Vec::new();
    while let Some(record) = records.read().ok()? {
        all.push(record);
    }
    Some(all)
}

fn write(records: &[Record]) -> Vec<u8> {
    let mut writer = Writer::default();
    let mut text = Writer::first_line(records.len()).into_bytes();
    for record in records {
        match record {
            Record::Path(hash_part, narinfo) => {
                text.extend(writer.path(*hash_part, narinfo.len()).bytes());
                text.extend_from_slice(narinfo);
            }
            Record::Absent(hash_part) => text.extend(writer.absent(*hash_part).bytes()),
            Record::Failed(hash_part) => text.extend(writer.failed(*hash_part).bytes()),
        }
    }
    text.extend(writer.last_line().bytes());
    text
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(records) = read(bytes) {
        assert_eq!(write(&records), bytes);
    }
});
