//! Xz files with correct checksums but wrong sizes are refused, although the decoder accepts them.

use super::programs::run_program;
use super::*;

/// The fault that a generated xz file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    CompressedSize,
    UncompressedSize,
    BlockNumber,
    IndexUnpadded,
    IndexUncompressed,
    IndexOrder,
    IndexMissing,
    IndexSurplus,
    IndexNumber,
    FooterLen,
    Dictionary,
    Filter,
    Padding,
}

const FAULTS: [Fault; 13] = [
    Fault::CompressedSize,
    Fault::UncompressedSize,
    Fault::BlockNumber,
    Fault::IndexUnpadded,
    Fault::IndexUncompressed,
    Fault::IndexOrder,
    Fault::IndexMissing,
    Fault::IndexSurplus,
    Fault::IndexNumber,
    Fault::FooterLen,
    Fault::Dictionary,
    Fault::Filter,
    Fault::Padding,
];

fn crc32(bytes: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    (!crc).to_le_bytes()
}

fn push_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap());
}

/// Appends an overlong multibyte integer, which the xz format forbids.
fn push_long_number(out: &mut Vec<u8>, number: usize) {
    push_number(out, number);
    *out.last_mut().unwrap() |= 0x80;
    out.push(0);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Returns an xz file of two uncompressed blocks with two chunks each, and with this fault.
fn xz(content: &[u8], fault: Fault) -> Vec<u8> {
    let mut file = b"\xfd7zXZ\0".to_vec();
    let flags = [0, 1];
    file.extend(flags);
    file.extend(crc32(&flags));
    let mut records = Vec::new();
    let (first, second) = content.split_at(content.len() / 3);
    for content in [first, second] {
        let mut data = Vec::new();
        for (number, chunk) in content.chunks(content.len().div_ceil(2)).enumerate() {
            data.push(if number == 0 { 1 } else { 2 });
            data.extend(u16::try_from(chunk.len() - 1).unwrap().to_be_bytes());
            data.extend(chunk);
        }
        data.push(0);
        let mut header = vec![0, 0xc0];
        let wrong = |wrong| usize::from(fault == wrong);
        push_number(&mut header, data.len() + wrong(Fault::CompressedSize));
        let size = content.len() + wrong(Fault::UncompressedSize);
        if fault == Fault::BlockNumber {
            push_long_number(&mut header, size);
        } else {
            push_number(&mut header, size);
        }
        if fault == Fault::Filter {
            header[1] |= 1;
            header.extend([0x03, 1, 0]);
        }
        header.extend([0x21, 1, if fault == Fault::Dictionary { 41 } else { 16 }]);
        pad(&mut header);
        header[0] = u8::try_from(header.len() / 4).unwrap();
        let crc = crc32(&header);
        header.extend(crc);
        records.push((header.len() + data.len() + 4, content.len()));
        file.extend(header);
        file.extend(&data);
        pad(&mut file);
        if fault == Fault::Padding && data.len() % 4 != 0 {
            *file.last_mut().unwrap() = 1;
        }
        file.extend(crc32(content));
    }
    match fault {
        Fault::IndexUnpadded => records[1].0 += 1,
        Fault::IndexUncompressed => records[0].1 += 1,
        Fault::IndexOrder => records.swap(0, 1),
        Fault::IndexMissing => {
            records.pop();
        }
        Fault::IndexSurplus => records.push(records[0]),
        _ => {}
    }
    let mut index = vec![0];
    if fault == Fault::IndexNumber {
        push_long_number(&mut index, records.len());
    } else {
        push_number(&mut index, records.len());
    }
    for (unpadded, uncompressed) in records {
        push_number(&mut index, unpadded);
        push_number(&mut index, uncompressed);
    }
    pad(&mut index);
    let crc = crc32(&index);
    index.extend(crc);
    file.extend(&index);
    let mut words = u32::try_from(index.len() / 4 - 1).unwrap();
    if fault == Fault::FooterLen {
        words += 1;
    }
    let end = [&words.to_le_bytes()[..], &flags].concat();
    file.extend(crc32(&end));
    file.extend(end);
    file.extend(b"YZ");
    file
}

#[test]
fn sizes_that_are_right_are_accepted() {
    for nar in [small_nar(), file_nar(&noise(50_001))] {
        let body = xz(&nar, Fault::None);
        check(Compression::Xz, &body, &nar);
        if let Some((success, content)) = run_program("xz", &["-dc"], &body) {
            assert!(success);
            assert_eq!(content, nar);
        }
        let twice = [
            &xz(&nar[..300], Fault::None)[..],
            &xz(&nar[300..], Fault::None),
        ]
        .concat();
        check(Compression::Xz, &twice, &nar);
    }
}

#[test]
fn sizes_that_are_wrong_are_refused() {
    for nar in [small_nar(), file_nar(&noise(50_001))] {
        for fault in FAULTS {
            let body = xz(&nar, fault);
            let refusal = run(Compression::Xz, &body).unwrap_err();
            let is_expected = match fault {
                Fault::Dictionary => matches!(refusal, Refusal::Window { .. }),
                _ => matches!(refusal, Refusal::Corrupt { .. }),
            };
            assert!(is_expected, "{fault:?} {refusal:?}");
            if let Some((success, _)) = run_program("xz", &["-dc"], &body) {
                assert!(!success, "xz accepts {fault:?}");
            }
        }
    }
}
