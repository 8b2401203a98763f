use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::*;
use crate::client::Peer;
use crate::conn::Conn;
use crate::h2::{Event, PREFACE, Session};
use crate::net::key::Key;
use crate::net::transport::Transport;

const NANOSECOND: Duration = Duration::from_nanos(1);
const LONG: Duration = Duration::from_secs(1_000_000);

/// The start of a request for `/` on stream 1, in an incomplete header block: `:method: GET`,
/// `:scheme: http`, `:path: /` (RFC 7541, appendix A).
const PARTIAL_BLOCK: &[u8] = b"\0\0\x03\x01\x01\0\0\0\x01\x82\x86\x84";
/// The end of the header block: `:authority: a`.
const REST: &[u8] = b"\0\0\x03\x09\x04\0\0\0\x01\x41\x01a";
/// A CONTINUATION frame without a field, which does not end the block.
const EMPTY_PART: &[u8] = b"\0\0\0\x09\0\0\0\0\x01";

fn receive(conn: &mut H2Conn, bytes: &[u8], now: Instant) -> Option<Event> {
    conn.session.receive(bytes, now);
    let event = conn.session.poll();
    conn.watch_block(now);
    event
}

/// Returns a new connection whose client has sent its SETTINGS.
fn new_conn(start: Instant) -> H2Conn {
    let (socket, _) = UnixStream::pair().unwrap();
    let transport = Transport::Plain(socket.into());
    let conn = Conn::new(transport, Peer::Unix(None), 0, Key::from_bits(0), start);
    let limits = Limits::default();
    let session = Session::new(limits.streams_max, &limits.head, start);
    let mut conn = H2Conn::new(conn, session, start);
    let settings: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
    assert!(receive(&mut conn, &[PREFACE, settings].concat(), start).is_none());
    conn
}

/// Returns a connection with one open stream, which waits for a worker.
fn busy_conn(start: Instant) -> H2Conn {
    let mut conn = new_conn(start);
    let event = receive(&mut conn, &[PARTIAL_BLOCK, REST].concat(), start);
    assert!(matches!(event, Some(Event::Request { stream: 1, .. })));
    conn.session.data(1).unwrap().state = StreamState::Away;
    conn.opened_count = 1;
    conn
}

/// Checks that a limit expires exactly `time` after `start` and not before.
#[track_caller]
fn check(
    conn: impl Fn() -> H2Conn,
    is_draining: bool,
    start: Instant,
    time: Duration,
    expected: Overdue,
) {
    let limits = Limits::default();
    let at = |time| expired(&mut conn(), &limits, is_draining, start + time);
    assert_eq!(at(time - NANOSECOND), None);
    assert_eq!(at(time), Some(expected));
    assert_eq!(at(time + NANOSECOND), Some(expected));
}

/// Checks that no time limit has expired.
#[track_caller]
fn check_none(conn: &mut H2Conn, is_draining: bool, now: Instant) {
    assert_eq!(expired(conn, &Limits::default(), is_draining, now), None);
}

#[test]
fn a_connection_is_idle_since_its_last_stream() {
    let (start, limits) = (Instant::now(), Limits::default());
    let new = || new_conn(start);
    check(new, false, start, limits.idle_time, Overdue::Leave);
    let used = || {
        let mut conn = new_conn(start);
        (conn.opened_count, conn.since) = (1, start + LONG);
        conn
    };
    check(used, false, start + LONG, limits.idle_time, Overdue::Leave);
    check_none(&mut busy_conn(start), false, start + LONG);
}

#[test]
fn a_client_that_does_not_acknowledge_a_goaway_is_closed() {
    let (start, limits) = (Instant::now(), Limits::default());
    let left = start + LONG;
    let leaving = || {
        let mut conn = new_conn(start);
        conn.leaving_since = Some(left);
        conn
    };
    for is_draining in [false, true] {
        check(
            leaving,
            is_draining,
            left,
            limits.linger_time,
            Overdue::GoAway,
        );
        // Open streams get their responses first.
        let mut busy = busy_conn(start);
        busy.leaving_since = Some(left);
        check_none(&mut busy, is_draining, left + LONG);
    }
}

#[test]
fn a_drain_sends_goaway_at_once_but_to_new_connections_a_little_later() {
    let (start, limits) = (Instant::now(), Limits::default());
    let new = || new_conn(start);
    check(new, true, start, limits.linger_time, Overdue::Leave);
    let mut used = new_conn(start);
    used.opened_count = 1;
    for conn in [&mut used, &mut busy_conn(start)] {
        assert_eq!(expired(conn, &limits, true, start), Some(Overdue::Leave));
        conn.leaving_since = Some(start);
        check_none(conn, true, start);
    }
}

#[test]
fn a_session_that_has_ended_lingers_and_has_no_other_limit() {
    let (start, limits) = (Instant::now(), Limits::default());
    let lingering = || {
        let mut conn = busy_conn(start);
        conn.is_lingering = true;
        conn.output = b"unsent".to_vec();
        conn.stuck_since = Some(start);
        conn
    };
    check(
        lingering,
        true,
        start,
        limits.linger_time,
        Overdue::Lingering,
    );
}

#[test]
fn each_frame_of_a_header_block_has_the_whole_time() {
    let (start, limits) = (Instant::now(), Limits::default());
    let partial = || {
        let mut conn = new_conn(start);
        assert!(receive(&mut conn, PARTIAL_BLOCK, start).is_none());
        conn
    };
    check(partial, false, start, limits.head_time, Overdue::Block);
    let continued = || {
        let mut conn = partial();
        assert!(receive(&mut conn, EMPTY_PART, start + limits.head_time).is_none());
        conn
    };
    let later = start + limits.head_time;
    check(continued, false, later, limits.head_time, Overdue::Block);
    // Bytes that do not complete a frame do not restart the time limit.
    let trickled = || {
        let mut conn = partial();
        assert!(receive(&mut conn, &REST[..5], later - NANOSECOND).is_none());
        conn
    };
    check(trickled, false, start, limits.head_time, Overdue::Block);
}

#[test]
fn a_complete_header_block_has_no_limit_however_long_its_answer_takes() {
    let start = Instant::now();
    let mut conn = new_conn(start);
    assert!(receive(&mut conn, PARTIAL_BLOCK, start).is_none());
    assert!(receive(&mut conn, REST, start).is_some());
    assert_eq!(conn.session.stream_count(), 1);
    check_none(&mut conn, false, start + LONG);
}

#[test]
fn a_client_that_does_not_read_its_socket_is_stuck_after_a_window() {
    let (start, limits) = (Instant::now(), Limits::default());
    let full = || {
        let mut conn = busy_conn(start - NANOSECOND);
        conn.moved_len = 1_000_000;
        conn.output = b"unsent".to_vec();
        // This check finds unsent output, and starts the window.
        check_none(&mut conn, false, start);
        conn
    };
    let almost_enough = || {
        let mut conn = full();
        conn.moved_len = limits.stall_len_min - 1;
        conn
    };
    check(full, false, start, limits.stall_time, Overdue::Stuck);
    check(
        almost_enough,
        false,
        start,
        limits.stall_time,
        Overdue::Stuck,
    );
    // Enough bytes for the first window; the next window starts at zero.
    let mut conn = full();
    conn.moved_len = limits.stall_len_min;
    let mut now = start + limits.stall_time;
    check_none(&mut conn, false, now);
    check_none(&mut conn, false, now);
    now += limits.stall_time;
    assert_eq!(
        expired(&mut conn, &limits, false, now),
        Some(Overdue::Stuck)
    );
    // The output is empty for a moment, which resets the window.
    let mut conn = full();
    conn.output.clear();
    check_none(&mut conn, false, now);
    conn.output = b"unsent".to_vec();
    check_none(&mut conn, false, now);
}

fn stream(state: StreamState) -> Stream {
    let mut stream = Stream::default();
    stream.state = state;
    stream
}

#[test]
fn a_stream_stalls_at_the_end_of_a_window_and_one_byte_below_the_minimum() {
    let (start, limits) = (Instant::now(), Limits::default());
    for state in [StreamState::Receiving, StreamState::Sending] {
        let at = |moved_len, time| {
            let mut stream = stream(state);
            stream.restart_clock(start, 100);
            let mut sent_len = 0;
            match state {
                StreamState::Receiving => stream.body_len = 100 + moved_len,
                _ => sent_len = 100 + moved_len,
            }
            is_stalled(&mut stream, sent_len, &limits, start + time)
        };
        let (time, len) = (limits.stall_time, limits.stall_len_min);
        assert!(!at(0, time - NANOSECOND));
        assert!(at(0, time));
        assert!(at(len - 1, time));
        assert!(at(len - 1, time + NANOSECOND));
        assert!(!at(len, time));
    }
}

#[test]
fn the_windows_of_a_stream_start_at_its_first_check_and_at_the_end_of_the_last() {
    let (start, limits) = (Instant::now(), Limits::default());
    let mut stream = stream(StreamState::Sending);
    let (time, len) = (limits.stall_time, limits.stall_len_min);
    assert!(!is_stalled(&mut stream, 0, &limits, start));
    assert!(!is_stalled(&mut stream, len, &limits, start + time));
    let last = start + time * 2;
    assert!(!is_stalled(
        &mut stream,
        2 * len - 1,
        &limits,
        last - NANOSECOND
    ));
    assert!(is_stalled(&mut stream, 2 * len - 1, &limits, last));
}

#[test]
fn a_stream_that_waits_for_the_server_has_no_limit() {
    let (start, limits) = (Instant::now(), Limits::default());
    for state in [StreamState::Away, StreamState::Waiting] {
        let mut stream = stream(state);
        stream.restart_clock(start, 0);
        assert!(!is_stalled(&mut stream, 0, &limits, start + LONG));
    }
}
