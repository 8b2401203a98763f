//! Connections to a real engine may be lost, slow, or silent at any moment: what was acknowledged
//! is there, and what is read is whole.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_engine;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use samovar_bucket::{Bucket, Fault, PutOptions};
use support_engine::Engine;
use testkit::eventually;
use testkit::faults::{End, FaultProxy, Faults};
use testkit::random::SplitMix64;

/// A bucket behind a proxy that disturbs connections.
struct Disturbed {
    proxy: FaultProxy,
    bucket: Bucket,
    /// The same bucket, without the proxy.
    direct: Bucket,
    engine: Engine,
}

fn disturbed() -> Option<Disturbed> {
    let engine = Engine::start()?;
    let proxy = FaultProxy::start(engine.address());
    let mut settings = engine.settings_at(proxy.address(), "p");
    settings.timing.stall = Duration::from_secs(3);
    Some(Disturbed {
        bucket: Bucket::open(&settings).unwrap(),
        direct: engine.bucket("p"),
        proxy,
        engine,
    })
}

fn plain() -> PutOptions {
    PutOptions::default()
}

fn content(len: usize) -> Vec<u8> {
    SplitMix64::for_actor(2, "faults").bytes(len)
}

#[track_caller]
fn read(bucket: &Bucket, key: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut download = bucket.get(key, None).unwrap().unwrap();
    download.read_to_end(&mut bytes).unwrap();
    bytes
}

fn file(content: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

/// In the head, at its end, in the body, at its end.
const PLACES: [u64; 7] = [0, 1, 100, 700, 2_000, 50_000, 99_000];

#[test]
fn a_reset_at_any_byte_of_a_put_is_followed_by_another_attempt() {
    let Some(it) = disturbed() else { return };
    let content = content(100_000);
    for after in PLACES {
        let key = format!("nar/{after}");
        it.proxy.disconnect();
        it.proxy.set(Faults::reset_requests(after).times(2));
        it.bucket.put(&key, &content, &plain()).unwrap();
        assert!(read(&it.direct, &key) == content, "{after}");
    }
}

#[test]
fn an_answer_that_is_lost_is_no_error() {
    let Some(it) = disturbed() else { return };
    let content = content(20_000);
    let once = PutOptions {
        if_absent: true,
        ..plain()
    };
    it.proxy.set(Faults::reset_responses(0).times(1));
    it.bucket.put("a", &content, &plain()).unwrap();
    // The second attempt finds an object, which is that of the first.
    it.proxy.disconnect();
    it.proxy.set(Faults::reset_responses(0).times(1));
    it.bucket.put("b", &content, &once).unwrap();
    assert!(read(&it.direct, "b") == content);

    for after in [0, 20] {
        it.proxy.disconnect();
        it.proxy.set(Faults::reset_responses(after).times(1));
        it.bucket.delete(&["a"]).unwrap();
        assert!(it.direct.head("a").unwrap().is_none());
        it.bucket.put("a", &content, &plain()).unwrap();
        it.proxy.disconnect();
        it.proxy.set(Faults::reset_responses(after).times(1));
        it.bucket.delete(&["a", "absent"]).unwrap();
        it.bucket.put("a", &content, &plain()).unwrap();
    }
}

#[test]
fn a_download_goes_on_after_resets() {
    let Some(it) = disturbed() else { return };
    let content = content(3 << 20);
    it.direct.put("a", &content, &plain()).unwrap();
    for after in [0, 1, 150, 1_000, 70_000, 1 << 20] {
        it.proxy.disconnect();
        it.proxy.set(Faults::reset_responses(after).times(3));
        assert!(read(&it.bucket, "a") == content, "{after}");
    }
    let mut closed = Faults::reset_responses(500_000).times(3);
    closed.responses.cut.as_mut().unwrap().end = End::Close;
    it.proxy.disconnect();
    it.proxy.set(closed);
    assert!(read(&it.bucket, "a") == content);
}

#[test]
fn an_upload_in_parts_survives_lost_connections_and_answers() {
    let Some(it) = disturbed() else { return };
    let content = content(20 << 20);
    let file = file(&content);
    let len = content.len() as u64;
    for (name, faults) in [
        (
            "begin",
            Faults::reset_responses(0).once_sent("uploads=").times(1),
        ),
        (
            "part",
            Faults::reset_requests(1 << 20)
                .once_sent("partNumber=2")
                .times(2),
        ),
        (
            "part's answer",
            Faults::reset_responses(0)
                .once_sent("partNumber=1")
                .times(1),
        ),
        // Whatever the engine says to the second request, the object is there.
        (
            "end",
            Faults::reset_responses(0)
                .once_sent("<CompleteMultipartUpload>")
                .times(1),
        ),
    ] {
        it.proxy.disconnect();
        it.proxy.set(faults);
        it.bucket.put_file(name, &file, len, &plain()).unwrap();
        assert!(it.proxy.cut_count() > 0, "{name}");
        assert!(read(&it.direct, name) == content, "{name}");
    }
}

#[test]
fn a_silent_engine_is_given_up_in_time() {
    let Some(it) = disturbed() else { return };
    let content = content(100_000);
    it.bucket.put("a", &content, &plain()).unwrap();

    let mut settings = it.engine.settings_at(it.proxy.address(), "p");
    settings.timing.stall = Duration::from_millis(500);
    settings.timing.patience = Duration::from_secs(2);
    let impatient = Bucket::open(&settings).unwrap();
    it.proxy.set(Faults::hold());
    let begun = Instant::now();
    let error = impatient.put("b", &content, &plain()).unwrap_err();
    assert!(matches!(error.fault(), Fault::Unreachable(_)), "{error}");
    assert!(error.is_transient());
    assert!(begun.elapsed() < Duration::from_secs(30));

    // It is used again as soon as it is there.
    it.proxy.set(Faults::NONE);
    impatient.put("b", &content, &plain()).unwrap();

    // An engine that is silent for less than the patience is only slow.
    it.proxy.disconnect();
    it.proxy.set(Faults::hold());
    let connections = it.proxy.connection_count();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| it.bucket.put("c", &content, &plain()));
        eventually("a second attempt waits", || {
            it.proxy.connection_count() > connections + 1
        });
        it.proxy.set(Faults::NONE);
        writing.join().unwrap().unwrap();
    });
    assert!(read(&it.direct, "c") == content);
}

#[test]
fn a_slow_connection_is_used_as_long_as_bytes_move() {
    let Some(it) = disturbed() else { return };
    let content = content(100_000);
    let bucket = Bucket::open(&it.engine.settings_at(it.proxy.address(), "p")).unwrap();
    it.proxy.set(Faults::slow(20_000));
    let begun = Instant::now();
    bucket.put("a", &content, &plain()).unwrap();
    assert!(begun.elapsed() > Duration::from_secs(2));
    assert!(read(&bucket, "a") == content);
}

#[test]
fn nothing_is_lost_or_wrong_with_faults_of_all_kinds() {
    let Some(it) = disturbed() else { return };
    let seed = SEED.unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}");
    it.proxy.set_random(seed, 30);
    let small = content(30_000);
    let large = content(17 << 20);
    let file = file(&large);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (it, small, large, file) = (&it, &small, &large, &file);
            scope.spawn(move || {
                for round in 0..8 {
                    let key = format!("nar/{thread}-{round}");
                    let is_large = round == 4;
                    let written = if is_large {
                        it.bucket.put_file(&key, file, large.len() as u64, &plain())
                    } else {
                        it.bucket.put(&key, small, &plain())
                    };
                    let expected = if is_large { large } else { small };
                    match written {
                        Ok(()) => assert!(read(&it.direct, &key) == *expected, "{key}"),
                        Err(error) => assert!(error.is_transient(), "{error}"),
                    }
                    let mut bytes = Vec::new();
                    match it.bucket.get(&key, None) {
                        Ok(Some(mut download)) => {
                            if download.read_to_end(&mut bytes).is_ok() {
                                assert!(bytes == *expected, "{key}");
                            }
                        }
                        Ok(None) => assert!(it.direct.head(&key).unwrap().is_none()),
                        Err(error) => assert!(error.is_transient(), "{error}"),
                    }
                }
            });
        }
    });
}

/// Set it to a seed that a failed test has printed.
const SEED: Option<u64> = None;
