//! Pipelined requests, valid or invalid, produce the same events however the input is split.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use samovar_http_proto::h1::conn::{Conn, Step};
use samovar_http_proto::h1::head::{HeadIndex, HeadLimits};

const BODY_LEN_MAX: u64 = 40;

/// Returns the events of `input` when it arrives in pieces that end at `ends`. `is_early`: each
/// response is completed before its request body is read.
fn trace(input: &[u8], ends: &[usize], is_early: bool) -> Vec<String> {
    let limits = HeadLimits::default();
    let (mut conn, mut index) = (Conn::default(), HeadIndex::default());
    let (mut at, mut events, mut data) = (0, Vec::new(), Vec::new());
    for end in ends {
        loop {
            let rest = &input[at..*end];
            let (taken, step) = conn.advance(rest, &limits, BODY_LEN_MAX, &mut index);
            let consumed = &rest[..taken];
            at += taken;
            match step {
                Step::NeedMore => break,
                Step::Head => {
                    events.push(format!(
                        "{} at {at}",
                        index.target.of(consumed).escape_ascii()
                    ));
                }
                Step::Data => data.extend_from_slice(consumed),
                Step::BodyEnd => {
                    events.push(format!("body {:?} at {at}", std::mem::take(&mut data)))
                }
                Step::Framing => {}
                Step::Paused => events.push("paused".to_owned()),
                Step::Refused(_) | Step::Closed | Step::Http2 => {
                    events.push(format!("{step:?}"));
                    return events;
                }
            }
            let is_answered = match step {
                Step::Head => is_early || !conn.has_body(),
                Step::BodyEnd => true,
                _ => false,
            };
            if is_answered {
                let keep = conn.may_keep();
                conn.answered(keep);
            }
        }
    }
    events
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let request = select(vec![
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\nHEAD /2 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /3 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "POST /4 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        "POST /5 HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\n\
         GET / HTTP/1.1\r\nHost: a\r\n\r\n....\
         .........",
        "POST /6 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a\r\nhello\r\n\
         0\r\nt: u\r\n\r\n",
        "PUT /7 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok",
    ]);
    let bad = select(vec![
        "GET /8 HTTP/1.1\r\n\r\n",
        "GET /9 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "POST /10 HTTP/1.1\r\nHost: a\r\nContent-Length: 41\r\n\r\n",
        "POST /11 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n29\r\n\
         01234567890123456789012345678901234567890\r\n0\r\n\r\n",
        "POST /12 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
        "GET /13 HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET /14 HTTP/1.1\nHost: a\n\n",
        "GET /15",
        "\r\n",
        "x",
        "\0",
    ]);
    let piece = prop_oneof![8 => request, 1 => bad];
    vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn any_split_gives_the_same_events(
        input in stream(),
        cuts in vec(any::<Index>(), 0..20),
        is_early in any::<bool>(),
    ) {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(input.len());
        let whole = trace(&input, &[input.len()], is_early);
        prop_assert_eq!(trace(&input, &ends, is_early), &whole[..]);
        let every: Vec<usize> = (0..=input.len()).collect();
        prop_assert_eq!(trace(&input, &every, is_early), whole);
    }
}
