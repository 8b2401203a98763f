//! Parser of WebSocket frame headers: the result does not depend on the bytes after the header,
//! and written headers parse to the same values.
#![no_main]

use samovar_http_proto::ws::frame::{self, HEADER_LEN_MAX, OpCode};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let parsed = frame::parse(bytes);
    let short = &bytes[..bytes.len().min(HEADER_LEN_MAX)];
    assert_eq!(frame::parse(short), parsed);
    for end in 0..short.len() {
        match frame::parse(&short[..end]) {
            Ok(None) => {}
            earlier => assert_eq!(earlier, parsed),
        }
    }
    let Ok(Some(header)) = parsed else { return };
    assert!(header.payload_len < 1 << 63);
    if let (true, Ok(len)) = (header.is_final, usize::try_from(header.payload_len)) {
        let mut written = Vec::new();
        frame::encode(&mut written, header.op_code, len);
        // A server's header equals a client's without mask bit and key.
        let mut expected = bytes[..header.header_len - 4].to_vec();
        expected[1] &= 0x7f;
        assert_eq!(written, expected);
    }
    assert!(header.op_code != OpCode::Close || header.payload_len <= 125);
});
