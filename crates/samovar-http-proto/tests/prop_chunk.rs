//! A chunked body split at any byte decodes to the same result as in a simple reference decoder.

#![expect(clippy::cast_possible_truncation, reason = "the numbers are small")]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use samovar_http_proto::h1::chunk::{ChunkDecoder, ChunkEvent};

/// The decoded data and the length of the encoded body; `None` for an incomplete body; or an error.
type Decoded = Result<Option<(Vec<u8>, usize)>, ()>;

/// Reference decoder: reads line by line and follows RFC 9112, 7.1 as literally as possible,
/// however slowly.
fn reference(input: &[u8]) -> Decoded {
    let (mut at, mut data) = (0, Vec::new());
    loop {
        let Some(line) = line(input, &mut at)? else {
            return Ok(None);
        };
        let (digits, extension) = match line.iter().position(|byte| *byte == b';') {
            Some(semicolon) => line.split_at(semicolon),
            None => (line, &[][..]),
        };
        let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
        if digits.is_empty() || digits.len() > 16 || line.len() > 256 {
            return Err(());
        }
        if !digits.iter().all(u8::is_ascii_hexdigit) || extension.iter().any(is_control) {
            return Err(());
        }
        let digits = std::str::from_utf8(digits).map_err(drop)?;
        let size = u64::from_str_radix(digits, 16).map_err(drop)?;
        if size == 0 {
            break;
        }
        let rest = &input[at..];
        if (rest.len() as u64) < size {
            return Ok(None);
        }
        data.extend_from_slice(&rest[..size as usize]);
        at += size as usize;
        match &input[at..] {
            [] | [b'\r'] => return Ok(None),
            [b'\r', b'\n', ..] => at += 2,
            _ => return Err(()),
        }
    }
    loop {
        match line(input, &mut at)? {
            None => return Ok(None),
            Some([]) => return Ok(Some((data, at))),
            Some(line) => {
                let text = String::from_utf8_lossy(line).to_lowercase();
                let name = text.split_once(':').ok_or(())?.0;
                let is_ok = ["x-sum", "a"].contains(&name);
                if !is_ok || line.iter().any(|byte| byte.is_ascii_control()) {
                    return Err(());
                }
            }
        }
    }
}

fn line<'a>(input: &'a [u8], at: &mut usize) -> Result<Option<&'a [u8]>, ()> {
    let rest = &input[*at..];
    let Some(end) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return Ok(None);
    };
    match &rest[end..] {
        [b'\r', b'\n', ..] => {
            *at += end + 2;
            Ok(Some(&rest[..end]))
        }
        [b'\r'] => Ok(None),
        _ => Err(()),
    }
}

fn decode(input: &[u8], ends: &[usize]) -> Decoded {
    let mut decoder = ChunkDecoder::default();
    let (mut at, mut data) = (0, Vec::new());
    for end in ends {
        loop {
            let (taken, event) = decoder.step(&input[at..*end]).map_err(drop)?;
            match event {
                ChunkEvent::Incomplete => break,
                ChunkEvent::Data => data.extend_from_slice(&input[at..at + taken]),
                ChunkEvent::Framing => {}
                ChunkEvent::End => return Ok(Some((data, at + taken))),
            }
            at += taken;
        }
    }
    Ok(None)
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let good = vec(any::<u8>(), 1..20).prop_map(|data| {
        let mut chunk = format!("{:x}\r\n", data.len()).into_bytes();
        chunk.extend(data);
        chunk.extend(b"\r\n");
        chunk
    });
    let odd = select(vec![
        "0\r\n",
        "\r\n",
        "0\r\n\r\n",
        "A;x=\"y\"\r\n0123456789\r\n",
        "00002\r\nab\r\n",
        "+1\r\n",
        "1 \r\na\r\n",
        "1\nb\r\n",
        "1\r\nb\n",
        "1\r\nbb\r\n",
        "0x1\r\n",
        "ffffffffffffffff\r\n",
        "00000000000000001\r\na\r\n",
        "X-Sum: 1\r\n",
        "a:\r\n",
        "Host: a\r\n",
        "1;\0\r\na\r\n",
        "\r",
        "\n",
        ";",
        "g",
    ]);
    let piece = prop_oneof![6 => good, 2 => odd.prop_map(|text| text.as_bytes().to_vec())];
    (
        vec(piece, 0..8),
        select(vec!["", "0\r\n\r\n", "0;x\r\na: b\r\n\r\nGET /"]),
    )
        .prop_map(|(pieces, end)| {
            let mut text = pieces.concat();
            text.extend_from_slice(end.as_bytes());
            text
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn bodies_decode_as_by_the_reference(text in body(), cuts in vec(any::<Index>(), 0..8)) {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(text.len());
        prop_assert_eq!(decode(&text, &ends), reference(&text));
    }

    #[test]
    fn nothing_panics(bytes in vec(any::<u8>(), 0..400)) {
        decode(&bytes, &[bytes.len()]).ok();
    }
}
