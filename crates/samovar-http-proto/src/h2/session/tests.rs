use super::*;
use crate::h2::ResponseHead;
use crate::http::Status;

/// A client that writes raw frames and records the headers of received frames.
struct Client {
    session: Session<()>,
    now: Instant,
    out: Vec<u8>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = len[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// `:method: GET`, `:scheme: http`, `:path: /`, `:authority: a` (RFC 7541, appendix A).
const GET: &[u8] = b"\x82\x86\x84\x41\x01a";
const POST: &[u8] = b"\x83\x86\x84\x41\x01a";

fn get(stream: u32) -> Vec<u8> {
    frame(1, 5, stream, GET)
}

fn reset(stream: u32) -> Vec<u8> {
    frame(3, 0, stream, &8_u32.to_be_bytes())
}

impl Client {
    fn new() -> Self {
        Self::with_streams_max(100)
    }

    fn with_streams_max(streams_max: u32) -> Self {
        let now = Instant::now();
        let mut client = Self {
            session: Session::new(streams_max, &HeadLimits::default(), now),
            now,
            out: Vec::new(),
        };
        client.send(PREFACE);
        client.send(&frame(4, 0, 0, b""));
        assert_eq!(client.events(), []);
        let frames: Vec<_> = client.frames().iter().map(|frame| frame.kind).collect();
        assert_eq!(frames, [4, 4, 8], "SETTINGS, an answer, the window");
        client.send(&frame(4, 1, 0, b""));
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.session.receive(bytes, self.now);
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.poll()).collect()
    }

    /// Returns the headers of the frames received since the last call.
    fn frames(&mut self) -> Vec<frames::Frame> {
        self.out.clear();
        self.session.take_output(&mut self.out);
        let mut found = Vec::new();
        Scanner::new(0).scan(&self.out, |frame| found.push(frame));
        found
    }

    fn respond(&mut self, stream: u32, is_end: bool) {
        let head = ResponseHead::read(Status::OK, b"X: y\r\n");
        self.session.respond(stream, head, is_end);
    }

    /// Returns the error code of the GOAWAY frame that ends the connection.
    #[track_caller]
    fn expect_gone(&mut self) -> u8 {
        assert!(self.session.is_closed());
        let last = self.frames().pop().expect("a frame");
        assert_eq!(last.kind, 7);
        let debug_at = self.out.len() - last.len as usize;
        self.out[debug_at + 7]
    }
}

const CALM: u8 = 11;
const PROTOCOL_ERROR: u8 = 1;

#[test]
fn an_abuse_in_the_first_bytes_is_answered_with_goaway() {
    let now = Instant::now();
    let mut client = Client {
        session: Session::new(100, &HeadLimits::default(), now),
        now,
        out: Vec::new(),
    };
    let pings = frame(6, 0, 0, &[0; 8]).repeat(600);
    client.send(&[PREFACE.as_slice(), &frame(4, 0, 0, b""), &pings].concat());
    assert_eq!(client.events(), []);
    assert_eq!(client.expect_gone(), CALM);
    assert_eq!(client.session.abused(), Some(Abuse::Control));
}

#[test]
fn a_request_gets_its_response() {
    let mut client = Client::new();
    client.send(&get(1));
    assert_eq!(
        client.session.poll(),
        Some(Event::Request {
            stream: 1,
            is_end: true
        })
    );
    let (text, _) = client.session.head();
    assert_eq!(text, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.respond(1, false);
    client.session.send(1, Bytes::from_static(b"hello"), true);
    assert_eq!(client.events(), [Event::Sent(1)]);
    assert_eq!(client.session.stream_count(), 0);
    let frames = client.frames();
    assert_eq!((frames[0].kind, frames[1].kind, frames[1].len), (1, 0, 5));
    assert!(frames[1].ends_stream());
}

#[test]
fn reading_a_body_opens_the_windows() {
    let mut client = Client::new();
    client.send(&frame(1, 4, 1, POST));
    assert_eq!(
        client.events(),
        [Event::Request {
            stream: 1,
            is_end: false
        }]
    );
    for _ in 0..16 {
        client.send(&frame(0, 0, 1, &[7; 16384]));
    }
    assert_eq!(client.events(), []);
    client.session.read(1, true);
    let events = client.events();
    assert_eq!(events.len(), 16);
    assert_eq!(events[0], Event::Data(1, Bytes::from(vec![7; 16384])));
    assert_eq!(client.frames(), []);
    client.session.release(1, 10 * 16384);
    assert_eq!(client.events(), []);
    assert_eq!(
        client
            .frames()
            .iter()
            .filter(|frame| frame.kind == 8)
            .count(),
        1
    );
    client.send(&frame(0, 1, 1, b""));
    assert_eq!(client.events(), [Event::End(1)]);
}

#[test]
fn more_than_the_window_is_an_error() {
    let mut client = Client::new();
    client.send(&frame(1, 4, 1, POST));
    for _ in 0..STREAM_WINDOW_LEN / 16384 {
        client.send(&frame(0, 0, 1, &[7; 16384]));
    }
    assert_eq!(client.events().len(), 1);
    client.send(&frame(0, 0, 1, b"x"));
    assert_eq!(client.events(), [Event::Reset(1)]);
    assert_eq!(client.frames()[0].kind, 3);
}

#[test]
fn a_response_respects_the_peers_window() {
    let mut client = Client::new();
    client.send(&get(1));
    client.send(&get(3));
    assert_eq!(client.events().len(), 2);
    client.respond(1, false);
    let piece = Bytes::from(vec![7; 65536]);
    client.session.send(1, piece.clone(), false);
    // The piece is one byte longer than the window of 65535.
    assert_eq!(client.events(), []);
    let sent: u32 = client
        .frames()
        .iter()
        .filter(|frame| frame.kind == 0)
        .map(|f| f.len)
        .sum();
    assert_eq!((sent, client.session.sent_len(1)), (65535, 65535));
    client.send(&frame(8, 0, 0, &100_000_u32.to_be_bytes()));
    assert_eq!(client.events(), []);
    // A stream without a window does not block others.
    client.respond(3, false);
    client.session.send(3, Bytes::from_static(b"small"), true);
    assert_eq!(client.events(), [Event::Sent(3)]);
    client.send(&frame(8, 0, 1, &100_u32.to_be_bytes()));
    assert_eq!(client.events(), [Event::Drained(1)]);
    client.session.send(1, Bytes::new(), true);
    assert_eq!(client.events(), [Event::Sent(1)]);
}

#[test]
fn output_is_bounded() {
    let mut client = Client::new();
    client.send(&frame(8, 0, 0, &0x7000_0000_u32.to_be_bytes()));
    client.send(&frame(4, 0, 0, &[0, 4, 0x70, 0, 0, 0]));
    client.send(&get(1));
    assert_eq!(client.events().len(), 1);
    client.respond(1, false);
    let mut given_len = 0;
    loop {
        client.session.send(1, Bytes::from(vec![7; 65536]), false);
        given_len += 65536;
        if client.events() != [Event::Drained(1)] {
            break;
        }
    }
    assert!(given_len <= 4 * 65536, "{given_len}");
    let mut out_len = 0;
    loop {
        let sent: u32 = client
            .frames()
            .iter()
            .filter(|f| f.kind == 0)
            .map(|f| f.len)
            .sum();
        out_len += sent as usize;
        if client.events() == [Event::Drained(1)] {
            break;
        }
    }
    assert!(out_len + 65536 + 32768 >= given_len);
}

#[test]
fn rapid_resets_end_the_connection() {
    let mut client = Client::new();
    for stream in (1..).step_by(2).take(200) {
        client.send(&get(stream));
        assert_eq!(client.events().len(), 1);
        client.send(&reset(stream));
        assert_eq!(client.events(), [Event::Reset(stream)]);
    }
    assert_eq!(client.session.abused(), None);
    client.send(&get(401));
    assert_eq!(client.events().len(), 1);
    client.send(&reset(401));
    assert_eq!(client.events(), [Event::Reset(401)]);
    assert_eq!(client.expect_gone(), CALM);
    assert_eq!(client.session.abused(), Some(Abuse::Resets));
    client.send(&get(403));
    assert_eq!(client.events(), []);
}

#[test]
fn provoked_resets_count() {
    let mut client = Client::new();
    // `content-length: 1`
    let block = [POST, b"\x0f\x0d\x011"].concat();
    for stream in (1..).step_by(2).take(201) {
        assert_eq!(client.session.abused(), None);
        client.send(&frame(1, 4, stream, &block));
        assert_eq!(client.events().len(), 1);
        client.send(&frame(0, 0, stream, b"xx"));
        assert_eq!(client.events(), [Event::Reset(stream)]);
    }
    assert_eq!(client.expect_gone(), CALM);
}

#[test]
fn floods_end_the_connection() {
    for (bytes, abuse) in [
        (frame(6, 0, 0, &[0; 8]), Abuse::Control),
        (frame(4, 0, 0, b""), Abuse::Control),
        (frame(2, 0, 1, &[0; 5]), Abuse::Control),
        (frame(99, 0, 0, b""), Abuse::Control),
        (frame(8, 0, 0, &1_u32.to_be_bytes()), Abuse::Windows),
    ] {
        let mut client = Client::new();
        let mut count = 0;
        while !client.session.is_closed() {
            client.send(&bytes);
            assert_eq!(client.events(), []);
            count += 1;
            assert!(count < 2000);
        }
        assert_eq!(client.session.abused(), Some(abuse));
        assert_eq!(client.expect_gone(), CALM);
    }
}

#[test]
fn an_endless_header_block_ends_the_connection() {
    let mut client = Client::new();
    client.send(&frame(1, 0, 1, GET));
    assert!(client.session.is_mid_block());
    for _ in 0..20 {
        client.send(&frame(9, 0, 1, &[b'\0'; 16384]));
        client.events();
    }
    assert!(client.session.is_closed());
    assert!(client.session.abused().is_some());
}

#[test]
fn hpack_bombs_end_the_connection() {
    // One field of 4000 bytes enters the dynamic table, then single bytes refer to it.
    let mut block = GET.to_vec();
    block.extend(b"\x40\x01x\x7f\xa1\x1e");
    block.extend([b'a'; 4000]);
    block.extend([0xbe; 8000]);
    let mut client = Client::new();
    client.send(&frame(1, 5, 1, &block));
    assert!(
        client
            .events()
            .iter()
            .all(|event| !matches!(event, Event::Request { .. }))
    );
    assert!(client.session.is_closed() || client.frames().iter().any(|frame| frame.kind == 3));
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let mut client = Client::with_streams_max(2);
    client.send(&[get(1), get(3), get(5)].concat());
    assert_eq!(client.events().len(), 2);
    let refused = client.frames();
    assert_eq!((refused[0].kind, refused[0].stream), (3, 5));
}

#[test]
fn go_away_is_sent_twice_before_the_end() {
    let mut client = Client::new();
    client.send(&get(1));
    assert_eq!(client.events().len(), 1);
    client.session.go_away();
    assert_eq!(client.events(), []);
    let kinds: Vec<_> = client.frames().iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds, [7, 6]);
    let ping = client.out[client.out.len() - 8..].to_vec();
    client.send(&frame(6, 1, 0, &ping));
    assert_eq!(client.events(), []);
    let again = client.frames();
    assert_eq!((again.len(), again[0].kind), (1, 7));
    client.respond(1, true);
    assert_eq!(client.events(), [Event::Sent(1)]);
    assert_eq!(client.events(), []);
    assert!(client.session.is_closed());
}

#[test]
fn any_split_gives_the_same_events() {
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(4, 0, 0, b""));
    bytes.extend(frame(1, 4, 1, POST));
    bytes.extend(frame(0, 0, 1, b"hello"));
    bytes.extend(get(3));
    bytes.extend(frame(0, 9, 1, b"\x02yo\0\0"));
    let run = |splits: &[usize]| {
        let now = Instant::now();
        let mut session = Session::<()>::new(100, &HeadLimits::default(), now);
        let (mut body, mut ends) = (Vec::new(), Vec::new());
        let mut at = 0;
        for end in splits.iter().copied().chain([bytes.len()]) {
            session.receive(&bytes[at..end], now);
            at = end;
            while let Some(event) = session.poll() {
                match event {
                    Event::Request { stream, .. } => session.read(stream, true),
                    Event::Data(_, bytes) => body.extend(bytes),
                    other => ends.push(other),
                }
            }
        }
        (body, ends)
    };
    let whole = run(&[]);
    assert_eq!(whole, (b"helloyo".to_vec(), vec![Event::End(1)]));
    for split in 0..bytes.len() {
        assert_eq!(run(&[split]), whole, "split at {split}");
    }
    let singly: Vec<_> = (0..bytes.len()).collect();
    assert_eq!(run(&singly), whole);
}

/// RFC 9113, 8.4: "A client cannot push. Thus, servers MUST treat the receipt of a `PUSH_PROMISE`
/// frame as a connection error (Section 5.4.1) of type `PROTOCOL_ERROR`."
#[test]
fn a_push_promise_ends_the_connection() {
    let mut client = Client::new();
    client.send(&frame(1, 4, 1, POST));
    assert_eq!(client.events().len(), 1);
    let promise = [&2_u32.to_be_bytes()[..], GET].concat();
    client.send(&frame(5, 4, 1, &promise));
    client.events();
    assert_eq!(client.expect_gone(), PROTOCOL_ERROR);
}

/// RFC 9113, 6.5.2: a value of `SETTINGS_ENABLE_PUSH` other than 0 or 1 is a connection error of
/// type `PROTOCOL_ERROR`.
#[test]
fn enable_push_is_acknowledged_or_refused() {
    let enable_push = |value: u8| frame(4, 0, 0, &[0, 2, 0, 0, 0, value]);
    let mut client = Client::new();
    for value in [0, 1] {
        client.send(&enable_push(value));
        assert_eq!(client.events(), []);
        let [answer] = client.frames()[..] else {
            panic!("one frame for {value}");
        };
        assert!(answer.kind == frames::SETTINGS && answer.is_ack());
    }
    client.send(&enable_push(2));
    assert_eq!(client.events(), []);
    assert_eq!(client.expect_gone(), PROTOCOL_ERROR);
}
