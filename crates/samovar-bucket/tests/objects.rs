//! Objects can be written, read, listed and deleted in a bucket of a real engine.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_engine;

use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use samovar_bucket::{Bucket, CredentialSource, Fault, FixedCredentials, PutOptions, Settings};
use support_engine::Engine;
use testkit::random::SplitMix64;

fn plain() -> PutOptions {
    PutOptions::default()
}

#[track_caller]
fn read(bucket: &Bucket, key: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut download = bucket.get(key, None).unwrap().unwrap();
    download.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, download.len());
    bytes
}

fn keys(bucket: &Bucket, prefix: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let listed = bucket.list(prefix, &mut |entry| {
        keys.push(entry.key.clone());
        ControlFlow::Continue(())
    });
    listed.unwrap();
    keys
}

fn random(len: usize) -> Vec<u8> {
    SplitMix64::for_actor(1, "objects").bytes(len)
}

#[test]
fn an_object_is_written_read_and_deleted() {
    let Some(engine) = Engine::start() else {
        return;
    };
    let bucket = engine.bucket("pre/fix");
    let content = random(100_000);
    assert!(bucket.head("nar/a.nar").unwrap().is_none());
    assert!(bucket.get("nar/a.nar", None).unwrap().is_none());
    bucket.put("nar/a.nar", &content, &plain()).unwrap();

    let stat = bucket.head("nar/a.nar").unwrap().unwrap();
    assert_eq!(stat.len, 100_000);
    assert!(!stat.etag.is_empty());
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert!(now.abs_diff(u64::try_from(stat.modified_at).unwrap()) < 60);

    let download = bucket.get("nar/a.nar", None).unwrap().unwrap();
    assert_eq!((download.len(), download.total_len()), (100_000, 100_000));
    assert_eq!(download.etag(), stat.etag);
    drop(download);
    assert!(read(&bucket, "nar/a.nar") == content);

    // Another prefix has other keys.
    let whole = engine.bucket("");
    assert_eq!(keys(&whole, ""), ["pre/fix/nar/a.nar"]);
    assert!(whole.head("nar/a.nar").unwrap().is_none());

    // A second PUT replaces it.
    bucket.put("nar/a.nar", b"short", &plain()).unwrap();
    assert_eq!(read(&bucket, "nar/a.nar"), b"short");

    bucket.delete(&["nar/a.nar", "nar/never"]).unwrap();
    assert!(bucket.head("nar/a.nar").unwrap().is_none());
    bucket.delete(&["nar/a.nar"]).unwrap();
    bucket.delete(&[]).unwrap();
}

#[test]
fn an_object_may_be_empty_and_have_any_name() {
    let Some(engine) = Engine::start() else {
        return;
    };
    let bucket = engine.bucket("");
    let names = [
        "empty",
        "a b",
        "plus+plus",
        "percent%25",
        "ü",
        "a&b=c;d",
        "log/x.drv",
        "q?r#s",
    ];
    for name in names {
        bucket.put(name, b"", &plain()).unwrap();
        assert_eq!(bucket.head(name).unwrap().unwrap().len, 0, "{name}");
        let mut download = bucket.get(name, None).unwrap().unwrap();
        assert_eq!(download.read(&mut [0; 8]).unwrap(), 0, "{name}");
        bucket.put(name, name.as_bytes(), &plain()).unwrap();
        assert_eq!(read(&bucket, name), name.as_bytes());
    }
    let mut expected = names.map(str::to_owned).to_vec();
    expected.sort_unstable();
    let mut listed = keys(&bucket, "");
    listed.sort_unstable();
    assert_eq!(listed, expected);
    bucket.delete(&names).unwrap();
    assert!(keys(&bucket, "").is_empty());
}

#[test]
fn requests_are_counted() {
    let Some(engine) = Engine::start() else {
        return;
    };
    let bucket = engine.bucket("");
    bucket.put("a", &[1; 1000], &plain()).unwrap();
    bucket.put("b", &[1; 500], &plain()).unwrap();
    assert_eq!(read(&bucket, "a").len(), 1000);
    assert!(bucket.get("c", None).unwrap().is_none());
    bucket.delete(&["a", "b"]).unwrap();
    keys(&bucket, "");
    let statistics = bucket.statistics();
    let counts = statistics
        .operations
        .map(|it| (it.answered_count, it.failed_count));
    // In the order of `Operation::ALL`.
    let expected = [(2, 0), (2, 0), (0, 0), (1, 0), (1, 0), (0, 0), (0, 0)];
    assert_eq!(counts, expected);
    assert!(statistics.sent_len >= 1500);
    assert_eq!((statistics.retry_count, statistics.down), (0, None));
    assert_eq!(statistics.received_len, 1000);
    assert_eq!((statistics.in_flight, statistics.in_flight_max), (0, 64));
}

#[test]
fn ranges_are_read() {
    let Some(engine) = Engine::start() else {
        return;
    };
    let bucket = engine.bucket("");
    let content = random(10_000);
    bucket.put("a", &content, &plain()).unwrap();
    for (range, expected) in [
        (0..1, 0..1),
        (0..10_000, 0..10_000),
        (5_000..5_001, 5_000..5_001),
        (9_999..10_000, 9_999..10_000),
        // Cut at the end of the object.
        (9_000..20_000, 9_000..10_000),
    ] {
        let mut download = bucket.get("a", Some(range.clone())).unwrap().unwrap();
        let len = expected.end - expected.start;
        assert_eq!((download.len(), download.total_len()), (len as u64, 10_000));
        let mut bytes = Vec::new();
        download.read_to_end(&mut bytes).unwrap();
        assert!(bytes == content[expected], "{range:?}");
    }
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is tested")]
    for range in [10_000..10_001, 3..3, 5..2] {
        let error = bucket.get("a", Some(range.clone())).unwrap_err();
        assert!(matches!(error.fault(), Fault::Range), "{range:?}: {error}");
    }
    assert!(bucket.get("absent", Some(0..1)).unwrap().is_none());
}

#[test]
fn a_list_has_all_keys_below_a_prefix_in_their_order() {
    const COUNT: usize = 1_030;
    let Some(engine) = Engine::start() else {
        return;
    };
    let bucket = engine.bucket("");
    let name = |index: usize| format!("many/{index:04}");
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let bucket = &bucket;
            scope.spawn(move || {
                for index in (thread..COUNT).step_by(8) {
                    bucket.put(&name(index), b"x", &plain()).unwrap();
                }
            });
        }
    });
    bucket.put("other", b"y", &plain()).unwrap();
    let all: Vec<String> = (0..COUNT).map(name).collect();
    assert!(keys(&bucket, "many/") == all);
    assert_eq!(keys(&bucket, "many/000"), all[..10]);
    assert_eq!(keys(&bucket, "oth"), ["other"]);
    assert!(keys(&bucket, "none/").is_empty());
    assert_eq!(keys(&engine.bucket("many"), "00").len(), 100);

    let mut visited = 0;
    let listed = bucket.list("many/", &mut |entry| {
        assert_eq!(entry.len, 1);
        assert!(entry.modified_at > 1_700_000_000);
        visited += 1;
        if visited == 7 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    listed.unwrap();
    assert_eq!(visited, 7);

    let borrowed: Vec<&str> = all.iter().map(String::as_str).collect();
    bucket.delete(&borrowed).unwrap();
    assert_eq!(keys(&bucket, ""), ["other"]);
}

#[test]
fn a_file_is_written_whole_or_in_parts() {
    let Some(engine) = Engine::start() else {
        return;
    };
    let bucket = engine.bucket("");
    let mut file = tempfile::tempfile().unwrap();
    let content = random(37 << 20);
    file.write_all(&content).unwrap();
    file.seek(SeekFrom::Start(3)).unwrap();
    // One PUT, its greatest length, parts with a last one that is short.
    for len in [0, 1000, 16 << 20, (16 << 20) + 1, 37 << 20] {
        bucket
            .put_file("nar/big", &file, len as u64, &plain())
            .unwrap();
        assert!(read(&bucket, "nar/big") == content[..len], "{len}");
        assert_eq!(bucket.head("nar/big").unwrap().unwrap().len, len as u64);
    }
    assert_eq!(file.stream_position().unwrap(), 3);
    let error = bucket
        .put_file("x", &file, (37 << 20) + 1, &plain())
        .unwrap_err();
    assert!(matches!(error.fault(), Fault::File(_)), "{error}");
    assert!(!error.is_transient());
    assert!(bucket.head("x").unwrap().is_none());
    let error = bucket.put_file("x", &file, 38 << 20, &plain()).unwrap_err();
    assert!(matches!(error.fault(), Fault::File(_)), "{error}");
    assert_eq!(keys(&bucket, ""), ["nar/big"]);
}

#[test]
fn a_presigned_url_needs_no_credentials() {
    let Some(engine) = Engine::start() else {
        return;
    };
    let bucket = engine.bucket("p");
    let put = PutOptions {
        content_type: Some("application/x-nix-nar".to_owned()),
        ..plain()
    };
    bucket.put("nar/a b", b"content", &put).unwrap();
    let url = bucket
        .presigned_get("nar/a b", Duration::from_secs(60))
        .unwrap();
    let mut answer = ureq::get(&url).call().unwrap();
    assert_eq!(answer.headers()["content-type"], "application/x-nix-nar");
    assert_eq!(answer.body_mut().read_to_string().unwrap(), "content");
    let without = url.split('?').next().unwrap();
    assert!(ureq::get(without).call().is_err());
    assert!(
        bucket
            .presigned_get("../x", Duration::from_secs(60))
            .is_err()
    );
}

#[test]
fn bytes_that_are_not_those_of_the_checksum_are_refused() {
    let Some(engine) = Engine::start() else {
        return;
    };
    let mut settings = engine.settings("");
    settings.timing.patience = Duration::from_secs(1);
    let bucket = Bucket::open(&settings).unwrap();
    let put = PutOptions {
        sha256: Some([7; 32]),
        ..plain()
    };
    let error = bucket.put("a", b"content", &put).unwrap_err();
    assert!(
        matches!(error.fault(), Fault::Unavailable { .. }),
        "{error}"
    );
    // s3s-fs has written the object by then, and keeps it.
    if Engine::name() != "s3s-fs" {
        assert!(bucket.head("a").unwrap().is_none());
    }
}

#[test]
fn an_object_is_not_replaced_if_that_is_asked_for() {
    let Some(engine) = Engine::start() else {
        return;
    };
    if Engine::name() == "garage" {
        eprintln!("NOT TESTED: Garage ignores If-None-Match");
        return;
    }
    let bucket = engine.bucket("");
    let once = PutOptions {
        if_absent: true,
        ..plain()
    };
    bucket.put("a", b"first", &once).unwrap();
    let error = bucket.put("a", b"other, longer", &once).unwrap_err();
    assert!(error.is_taken(), "{error}");
    assert_eq!(read(&bucket, "a"), b"first");
    // The same content may be that of an attempt whose answer was lost.
    bucket.put("a", b"first", &once).unwrap();
}

#[test]
fn wrong_settings_are_told_apart() {
    let Some(engine) = Engine::start() else {
        return;
    };
    let with = |settings: &dyn Fn(&mut Settings)| {
        let mut changed = engine.settings("");
        settings(&mut changed);
        Bucket::open(&changed).unwrap()
    };
    let wrong = with(&|settings| {
        settings.credentials = CredentialSource::Fixed(FixedCredentials {
            key_id: "GK000000000000000000000000".to_owned(),
            secret: "wrongwrong".to_owned(),
            token: None,
        });
    });
    let error = wrong.put("a", b"x", &plain()).unwrap_err();
    assert!(error.is_denied() && !error.is_transient(), "{error}");
    assert!(!error.to_string().contains("wrongwrong"));
    let error = wrong.head("a").unwrap_err();
    assert!(error.is_denied(), "{error}");

    let nobody = with(&|settings| settings.credentials = CredentialSource::Anonymous);
    let error = nobody.put("a", b"x", &plain()).unwrap_err();
    assert!(error.is_denied(), "{error}");

    // These make a bucket that they lack.
    if !matches!(Engine::name().as_str(), "s3s-fs" | "seaweedfs") {
        let absent = with(&|settings| settings.bucket = "no-such-bucket".to_owned());
        let error = absent.put("a", b"x", &plain()).unwrap_err();
        assert!(
            matches!(error.fault(), Fault::NoBucket | Fault::Denied { .. }),
            "{error}"
        );
    }

    let here = with(&|_| {});
    let error = here.put("../a", b"x", &plain()).unwrap_err();
    assert!(matches!(error.fault(), Fault::Key), "{error}");
}
