//! The faults as a client and a server see them.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::eventually;

/// Starts a server that sends back what it receives. The channel gets the bytes of each connection
/// when it has ended.
fn echo() -> (FaultProxy, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = FaultProxy::start(listener.local_addr().unwrap());
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut all = Vec::new();
                let mut buffer = [0; 1 << 16];
                while let Ok(len @ 1..) = stream.read(&mut buffer) {
                    all.extend_from_slice(&buffer[..len]);
                    stream.write_all(&buffer[..len]).ok();
                }
                sender.send(all).ok();
            });
        }
    });
    (proxy, receiver)
}

fn connect(proxy: &FaultProxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(crate::PATIENCE)).unwrap();
    stream
}

/// Sends bytes and reads as many of them as come back.
fn ask(stream: &mut TcpStream, bytes: &[u8]) -> Result<Vec<u8>, ErrorKind> {
    let mut answer = vec![0; bytes.len()];
    stream.write_all(bytes).map_err(|error| error.kind())?;
    match stream.read_exact(&mut answer) {
        Ok(()) => Ok(answer),
        Err(error) => Err(error.kind()),
    }
}

#[test]
fn without_faults_all_bytes_are_forwarded() {
    let (proxy, received) = echo();
    let mut client = connect(&proxy);
    let bytes = SplitMix64::new(1).bytes(3 << 20);
    let mut writer = client.try_clone().unwrap();
    let sent = bytes.clone();
    let sending = thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    sending.join().unwrap();
    assert!(answer == bytes && received.recv().unwrap() == bytes);
    assert_eq!(proxy.forwarded(), [3 << 20; 2]);
    assert_eq!((proxy.connection_count(), proxy.cut_count()), (1, 0));
}

#[test]
fn a_request_is_cut_before_it_is_whole() {
    let (proxy, received) = echo();
    proxy.set(Faults::reset_requests(5));
    let mut client = connect(&proxy);
    assert_eq!(
        ask(&mut client, b"0123456789"),
        Err(ErrorKind::ConnectionReset)
    );
    assert_eq!(received.recv().unwrap(), b"01234");
    assert_eq!(proxy.cut_count(), 1);
}

#[test]
fn an_answer_is_lost_once() {
    let (proxy, received) = echo();
    proxy.set(Faults::reset_responses(0).once_sent("COMMIT").times(1));
    let mut client = connect(&proxy);
    assert_eq!(ask(&mut client, b"BEGIN"), Ok(b"BEGIN".to_vec()));
    // The trigger arrives in two pieces.
    assert_eq!(ask(&mut client, b"; COM"), Ok(b"; COM".to_vec()));
    assert_eq!(ask(&mut client, b"MIT"), Err(ErrorKind::ConnectionReset));
    assert_eq!(received.recv().unwrap(), b"BEGIN; COMMIT");
    let mut client = connect(&proxy);
    assert_eq!(ask(&mut client, b"COMMIT"), Ok(b"COMMIT".to_vec()));
}

#[test]
fn a_closed_connection_ends_without_an_error() {
    let (proxy, _received) = echo();
    proxy.set(Faults {
        responses: Flow::cut(3, End::Close),
        ..Faults::NONE
    });
    let mut client = connect(&proxy);
    client.write_all(b"0123456789").unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"012");
}

#[test]
fn held_bytes_are_forwarded_later() {
    let (proxy, _received) = echo();
    let mut client = connect(&proxy);
    proxy.set(Faults::hold());
    client.write_all(b"held").unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    assert_eq!(
        client.read(&mut [0; 4]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    client.set_read_timeout(Some(crate::PATIENCE)).unwrap();
    proxy.set(Faults::NONE);
    let mut answer = [0; 4];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"held");
}

#[test]
fn bytes_of_all_connections_are_counted_together() {
    let (proxy, received) = echo();
    proxy.set(Faults::hold_requests(5).in_total());
    let (mut first, mut second) = (connect(&proxy), connect(&proxy));
    assert_eq!(ask(&mut first, b"012"), Ok(b"012".to_vec()));
    second.write_all(b"345678").unwrap();
    eventually("two bytes are forwarded", || proxy.forwarded()[0] == 5);
    proxy.set(Faults::NONE);
    let mut answer = [0; 6];
    second.read_exact(&mut answer).unwrap();
    drop(first);
    assert_eq!(
        (&answer, received.recv().unwrap()),
        (b"345678", b"012".to_vec())
    );
}

#[test]
fn connections_are_refused_and_disconnected() {
    let (proxy, received) = echo();
    let mut open = connect(&proxy);
    assert_eq!(ask(&mut open, b"a"), Ok(b"a".to_vec()));
    proxy.set(Faults::refuse());
    let mut refused = connect(&proxy);
    assert!(ask(&mut refused, b"b").is_err());
    assert_eq!(ask(&mut open, b"c"), Ok(b"c".to_vec()));
    proxy.disconnect();
    assert!(ask(&mut open, b"d").is_err());
    assert_eq!(received.recv().unwrap(), b"ac");
}

#[test]
fn a_delay_does_not_limit_the_throughput() {
    let (proxy, _received) = echo();
    let delay = Duration::from_millis(100);
    proxy.set(Faults::delayed(delay));
    let mut client = connect(&proxy);
    let start = Instant::now();
    let bytes = vec![7; 1 << 20];
    let mut writer = client.try_clone().unwrap();
    let sent = bytes.clone();
    let sending = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut answer = vec![0; bytes.len()];
    client.read_exact(&mut answer).unwrap();
    sending.join().unwrap();
    assert!(start.elapsed() >= 2 * delay);
    // One after the other, the 64 pieces would take 13 seconds.
    assert!(start.elapsed() < 50 * delay, "{:?}", start.elapsed());
}

#[test]
fn a_rate_limits_the_throughput() {
    let (proxy, _received) = echo();
    proxy.set(Faults::slow(50_000));
    let start = Instant::now();
    let mut client = connect(&proxy);
    ask(&mut client, &[1; 10_000]).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(150));
}

#[test]
fn the_faults_of_a_seed_are_always_the_same() {
    let all = |seed| {
        let rule = line::Rule::Random { seed, percent: 50 };
        (0..100)
            .map(|number| rule.faults(number))
            .collect::<Vec<_>>()
    };
    assert_eq!(all(3), all(3));
    assert_ne!(all(3), all(4));
    let clean = all(3).iter().filter(|it| **it == Faults::NONE).count();
    assert!((20..80).contains(&clean), "{clean}");
}

#[test]
fn a_server_is_replaced() {
    let (proxy, _first) = echo();
    let (other, second) = echo();
    proxy.redirect(other.address());
    let mut client = connect(&proxy);
    assert_eq!(ask(&mut client, b"a"), Ok(b"a".to_vec()));
    drop(client);
    assert_eq!(second.recv().unwrap(), b"a");
}
