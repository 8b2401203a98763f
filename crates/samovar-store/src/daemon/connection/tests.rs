//! The client speaks every protocol version, tested against scripted daemons.

use std::io::BufRead;
use std::thread;

use super::*;

const NAME: &str = "0123456789abcdfghijklmnpqrsvwxyz-app-1.0";

/// Plays a daemon of version 1.`minor` that sends one response. Returns the result of `ask` and the
/// bytes sent to the daemon.
fn play<T>(
    minor: u64,
    answer: Request,
    ask: impl FnOnce(&mut Connection) -> T,
) -> (Result<T, StoreError>, Vec<u8>) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut greeting = Request::new().integer(SERVER_MAGIC).integer(MAJOR | minor);
    if minor >= 38 {
        greeting = greeting.strings(&["another-feature", FEATURE_BUILD_TRACE]);
    }
    if minor >= 33 {
        greeting = greeting.string("2.x");
    }
    if minor >= 35 {
        greeting = greeting.integer(2);
    }
    let greeting = greeting.integer(0x616c_7473);
    let server = thread::spawn(move || {
        theirs.write_all(greeting.as_bytes()).unwrap();
        theirs.write_all(answer.as_bytes()).unwrap();
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).unwrap();
        received
    });
    let result = Connection::handshake(ours).map(|mut connection| ask(&mut connection));
    (result, server.join().unwrap())
}

/// Returns the bytes that a client sends before its first request.
fn greeting(minor: u64) -> Vec<u8> {
    let mut request = Request::new()
        .integer(CLIENT_MAGIC)
        .integer(MAJOR | MINOR_MAX);
    if minor >= 38 {
        request = request.strings(&[FEATURE_BUILD_TRACE]);
    }
    request.integer(0).integer(0).as_bytes().to_vec()
}

fn last() -> Request {
    Request::new().integer(0x616c_7473)
}

#[test]
fn every_generation_shakes_hands() {
    let dir = StoreDir::default();
    let path = StorePath::from_base_name(NAME).unwrap();
    for minor in MINOR_MIN..=40 {
        let answer = last().integer(1);
        let (result, received) = play(minor, answer, |connection| connection.is_valid(&dir, &path));
        assert_eq!(result, Ok(Ok(true)), "1.{minor}");
        let mut expected = greeting(minor);
        let question = Request::new().integer(1).string(&path.full(&dir));
        expected.extend_from_slice(question.as_bytes());
        assert_eq!(received, expected, "1.{minor}");
    }
    // The ninth bit belongs to the major version.
    for (minor, spoken) in [(MINOR_MIN - 1, "1.19"), (0x200 | MINOR_MAX, "3.38")] {
        let (result, _) = play(minor, Request::new(), |_| ());
        let text = result.unwrap_err().to_string();
        let expected = format!("it speaks version {spoken} of the worker protocol, but 1.20 to");
        assert!(text.contains(&expected), "{text}");
        assert!(
            text.contains(&format!("1.{MINOR_MIN} to 1.{MINOR_MAX} are")),
            "{text}"
        );
    }
}

#[test]
fn a_path_info_with_everything() {
    let dir = StoreDir::default();
    let path = StorePath::from_base_name(NAME).unwrap();
    let full = path.full(&dir);
    let signature = Signature::new("k-1", [1; 64]).unwrap();
    let answer = last()
        .integer(1)
        .string(&format!("{full}.drv"))
        .string(&"ab".repeat(32))
        .strings(&[&full, &full])
        .integer(1_700_000_000)
        .integer(1234)
        .integer(1)
        .strings(&["malformed", &signature.to_string()])
        .string("");
    let (result, _) = play(34, answer, |connection| {
        connection.path_info(&dir, path.clone())
    });
    let info = result.unwrap().unwrap().unwrap();
    let deriver = StorePath::from_base_name(&format!("{NAME}.drv")).unwrap();
    assert_eq!(info.deriver, Some(deriver));
    assert_eq!(info.nar_hash, NarHash::from_bytes([0xab; 32]));
    assert_eq!(info.references, [path]);
    assert_eq!(
        (info.registration_time, info.nar_size, info.ultimate),
        (1_700_000_000, 1234, true)
    );
    assert_eq!(info.signatures, [signature]);
    assert_eq!(info.content_address, None);
}

#[test]
fn ill_formed_answers_leave_the_connection_out_of_step() {
    let dir = StoreDir::default();
    let path = StorePath::from_base_name(NAME).unwrap();
    let answer = last().integer(1).string("").string("no hash");
    let (result, _) = play(34, answer, |connection| {
        let info = connection.path_info(&dir, path.clone());
        (info, connection.is_in_step())
    });
    assert_eq!(
        result,
        Ok((Err(StoreError::Protocol(Irregularity::Value)), false))
    );
}

#[test]
fn unrequested_bytes_leave_the_connection_out_of_step() {
    let dir = StoreDir::default();
    let path = StorePath::from_base_name(NAME).unwrap();
    let (result, _) = play(34, last().integer(0).integer(0), |connection| {
        let valid = connection.is_valid(&dir, &path);
        // Wait for the surplus bytes, which may not have arrived yet.
        let surplus = connection.stream.fill_buf().map(<[u8]>::len);
        (valid, surplus.unwrap(), connection.is_in_step())
    });
    assert_eq!(result, Ok((Ok(false), 8, false)));
}

#[test]
fn an_error_leaves_the_connection_usable() {
    let dir = StoreDir::default();
    let path = StorePath::from_base_name(NAME).unwrap();
    let error = Request::new()
        .integer(0x6378_7470)
        .string("Error")
        .integer(0)
        .string("Error")
        .string("no")
        .integer(0)
        .integer(0)
        .integer(0x616c_7473)
        .integer(1);
    let (result, _) = play(34, error, |connection| {
        let first = connection.is_valid(&dir, &path);
        (first, connection.is_valid(&dir, &path))
    });
    assert_eq!(result, Ok((Err(StoreError::Refused), Ok(true))));
}

#[test]
fn a_build_trace_by_feature() {
    let dir = StoreDir::default();
    let path = StorePath::from_base_name(NAME).unwrap();
    let drv = format!("{NAME}.drv");
    let id = RealisationId::parse_derivation_form(&drv, "out").unwrap();
    let signature = Signature::new("k-1", [0; 64]).unwrap().to_string();
    let answer = last()
        .integer(1)
        .string(&path.full(&dir))
        .strings(&[&signature]);
    let (result, _) = play(38, answer, |connection| connection.realisation(&dir, &id));
    let document = result.unwrap().unwrap().unwrap();
    assert!(document.starts_with(&format!("{{\"outPath\":\"{NAME}\",\"signatures\":[{{")));
    // A daemon without the feature gets no request.
    let (result, received) = play(37, Request::new(), |connection| {
        connection.realisation(&dir, &id)
    });
    assert_eq!(result, Ok(Ok(None)));
    assert_eq!(received, greeting(37));
}
