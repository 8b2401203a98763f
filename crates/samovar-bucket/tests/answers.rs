//! Answers of engines that fail, or that are not engines, are understood: each is one error, or is
//! followed by another attempt.
//!
//! The answers are canned: engines give them when they are overloaded, at other clocks, or in other
//! regions, which a test cannot bring about.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support_canned;

use std::io::Read;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use samovar_bucket::{
    Bucket, BucketError, CredentialSource, Fault, FixedCredentials, PutOptions, Settings,
};
use support_canned::{Asked, Canned, Reply};

fn bucket(server: &Canned) -> Bucket {
    let url = format!("s3://cache/p?region=here&endpoint={}", server.url());
    let mut settings = Settings::parse(&url).unwrap();
    settings.credentials = CredentialSource::Fixed(FixedCredentials {
        key_id: "key".to_owned(),
        secret: "verysecret".to_owned(),
        token: None,
    });
    settings.timing.stall = Duration::from_secs(10);
    Bucket::open(&settings).unwrap()
}

/// Answers the first requests in this order, and all others with the last.
fn in_order(replies: Vec<Reply>) -> impl Fn(&Asked) -> Reply + Send + Sync + 'static {
    let next = AtomicUsize::new(0);
    move |_| {
        let index = next.fetch_add(1, Ordering::Relaxed);
        replies[index.min(replies.len() - 1)].clone()
    }
}

fn ok() -> Reply {
    Reply::new(200, "").header("etag: \"e\"")
}

fn plain() -> PutOptions {
    PutOptions::default()
}

#[track_caller]
fn put_error(reply: Reply) -> (BucketError, usize) {
    let server = Canned::start(move |_| reply.clone());
    let error = bucket(&server).put("k", b"x", &plain()).unwrap_err();
    assert!(!error.to_string().contains("verysecret"));
    assert!(!error.to_string().contains("Signature="));
    (error, server.asked().len())
}

#[test]
fn an_overloaded_engine_is_asked_again() {
    for (status, code) in [
        (503, "SlowDown"),
        (503, ""),
        (500, "InternalError"),
        (502, ""),
        (429, ""),
        (400, "RequestTimeout"),
        (400, "BadDigest"),
        (409, "OperationAborted"),
    ] {
        let busy = Reply::error(status, code);
        let server = Canned::start(in_order(vec![busy.clone(), busy.clone(), busy, ok()]));
        bucket(&server).put("k", b"content", &plain()).unwrap();
        let asked = server.asked();
        assert_eq!(asked.len(), 4, "{status} {code}");
        assert!(asked.iter().all(|asked| asked.body == b"content"));
    }
}

#[test]
fn attempts_are_limited_in_number_and_time() {
    let (error, attempts) = put_error(Reply::error(503, "SlowDown"));
    assert_eq!(attempts, 6);
    assert!(error.is_transient(), "{error}");

    let server = Canned::start(|_| Reply::error(503, "SlowDown"));
    let url = format!("s3://cache?endpoint={}", server.url());
    let mut settings = Settings::parse(&url).unwrap();
    settings.credentials = CredentialSource::Anonymous;
    settings.timing.patience = Duration::ZERO;
    let bucket = Bucket::open(&settings).unwrap();
    assert!(bucket.put("k", b"x", &plain()).unwrap_err().is_transient());
}

#[test]
fn refusals_for_good_are_not_tried_again() {
    for (status, code) in [
        (400, "InvalidArgument"),
        (501, "NotImplemented"),
        (413, "TooBig"),
    ] {
        let (error, attempts) = put_error(Reply::error(status, code));
        assert_eq!(attempts, 1);
        assert!(!error.is_transient() && !error.is_denied(), "{error}");
        assert!(error.to_string().contains("because"), "{error}");
    }
    let (error, attempts) = put_error(Reply::error(403, "AccessDenied"));
    assert_eq!(attempts, 1);
    assert!(error.is_denied());
    let text = error.to_string();
    let (place, reason) = text.split_once(": ").unwrap();
    let place = place.strip_prefix("PUT p/k in bucket cache at 127.0.0.1:");
    assert!(place.unwrap().parse::<u16>().is_ok(), "{text}");
    let expected =
        "access was denied (AccessDenied): allow this to the credentials, or give others";
    assert_eq!(reason, expected);
    let (error, _) = put_error(Reply::error(404, "NoSuchBucket"));
    assert!(matches!(error.fault(), Fault::NoBucket), "{error}");
}

#[test]
fn a_bucket_in_another_region_is_named() {
    let moved = || Reply::error(301, "PermanentRedirect").header("x-amz-bucket-region: eu-west-1");
    let malformed = "<Error><Code>AuthorizationQueryParametersError</Code><Message>the region \
                     'here' is wrong; expecting 'eu-west-1'</Message><Region>eu-west-1</Region>\
                     </Error>";
    for reply in [moved(), Reply::new(400, malformed)] {
        let (error, attempts) = put_error(reply);
        assert_eq!(attempts, 1);
        let text = error.to_string();
        assert!(text.contains("set region=eu-west-1"), "{text}");
    }
    let elsewhere = Reply::new(307, "").header("location: http://127.0.0.1:1/");
    let (error, _) = put_error(elsewhere);
    assert!(matches!(error.fault(), Fault::Redirect), "{error}");
}

#[test]
fn a_clock_that_is_wrong_is_corrected_by_that_of_the_engine() {
    let later = std::time::SystemTime::now() + Duration::from_secs(7200);
    let date = format!("date: {}", httpdate::fmt_http_date(later));
    let skewed = Reply::error(403, "RequestTimeTooSkewed").header(&date);
    let server = Canned::start(in_order(vec![skewed, ok().header(&date)]));
    let bucket = bucket(&server);
    bucket.put("k", b"x", &plain()).unwrap();
    bucket.put("k", b"x", &plain()).unwrap();
    let signed_at = |asked: &Asked| {
        let (_, rest) = asked.target.split_once("X-Amz-Date=").unwrap();
        let (date, time) = rest[..15].split_once('T').unwrap();
        date.parse::<u64>().unwrap() * 86_400
            + time[..2].parse::<u64>().unwrap() * 3600
            + time[2..4].parse::<u64>().unwrap() * 60
    };
    let asked = server.asked();
    assert_eq!(asked.len(), 3);
    assert!(signed_at(&asked[1]) >= signed_at(&asked[0]) + 7000);
    assert!(signed_at(&asked[2]) >= signed_at(&asked[0]) + 7000);

    // A clock that is right is no reason to ask again.
    let date = format!(
        "date: {}",
        httpdate::fmt_http_date(std::time::SystemTime::now())
    );
    let (error, attempts) = put_error(Reply::error(403, "AccessDenied").header(date));
    assert!(error.is_denied());
    assert_eq!(attempts, 1);
}

#[test]
fn a_short_object_is_an_error_and_a_lost_connection_is_not() {
    let content: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    // The first connection ends in the middle; the second goes on there.
    let all = content.clone();
    let server = Canned::start(move |asked| {
        let etag = "etag: \"e\"";
        match asked.header("range") {
            None => Reply::new(200, &all[..40_000])
                .header(etag)
                .announced(100_000)
                .cut(),
            Some(range) => {
                let start: usize = range[6..].split('-').next().unwrap().parse().unwrap();
                assert_eq!(asked.header("if-match"), Some("\"e\""));
                let range = format!("content-range: bytes {start}-99999/100000");
                Reply::new(206, &all[start..]).header(etag).header(range)
            }
        }
    });
    let mut bytes = Vec::new();
    let mut download = bucket(&server).get("k", None).unwrap().unwrap();
    download.read_to_end(&mut bytes).unwrap();
    assert!(bytes == content);

    // Another object took its place.
    let server = Canned::start(move |asked| match asked.header("range") {
        None => Reply::new(200, "12345")
            .header("etag: \"e\"")
            .announced(10)
            .cut(),
        Some(_) => Reply::error(412, "PreconditionFailed"),
    });
    let mut download = bucket(&server).get("k", None).unwrap().unwrap();
    let error = download.read_to_end(&mut Vec::new()).unwrap_err();
    assert!(
        error.to_string().contains("replaced while it was read"),
        "{error}"
    );

    // The engine ends it early again and again.
    let server = Canned::start(move |asked| match asked.header("range") {
        None => Reply::new(200, "12345").announced(10).cut(),
        Some(_) => Reply::new(206, "")
            .header("content-range: bytes 5-9/10")
            .announced(5)
            .cut(),
    });
    let mut download = bucket(&server).get("k", None).unwrap().unwrap();
    assert!(download.read_to_end(&mut Vec::new()).is_err());
    assert_eq!(server.asked().len(), 6);
}

#[test]
fn a_range_that_was_not_asked_for_is_an_error() {
    for reply in [
        Reply::new(200, "0123456789"),
        Reply::new(206, "3456").header("content-range: bytes 3-6/10"),
        Reply::new(206, "23").header("content-range: bytes 2-5/10"),
        Reply::new(206, "2345"),
    ] {
        let server = Canned::start(move |_| reply.clone());
        let error = bucket(&server).get("k", Some(2..6)).unwrap_err();
        assert!(matches!(error.fault(), Fault::Answer { .. }), "{error}");
    }
}

/// An engine that knows multipart uploads, and completes one as the test says.
fn multipart(complete: Vec<Reply>, head: Reply) -> Canned {
    let complete = in_order(complete);
    Canned::start(move |asked| {
        let date = httpdate::fmt_http_date(std::time::SystemTime::now());
        match asked.method.as_str() {
            "POST" if asked.target.contains("uploads=") => {
                let text = "<InitiateMultipartUploadResult xmlns=\"http://s3.amazonaws.com/doc/\
                            2006-03-01/\"><Bucket>b</Bucket><Key>k</Key><UploadId>u1</UploadId>\
                            </InitiateMultipartUploadResult>";
                Reply::new(200, text).header(format!("date: {date}"))
            }
            "POST" => complete(asked),
            "HEAD" => head.clone(),
            "GET" => Reply::error(404, "NoSuchKey"),
            "DELETE" => Reply::new(204, ""),
            _ => ok(),
        }
    })
}

const COMPLETED: &str = "<CompleteMultipartUploadResult xmlns=\"http://s3.amazonaws.com/doc/\
                         2006-03-01/\"><ETag>\"e-3\"</ETag></CompleteMultipartUploadResult>";

#[track_caller]
fn put_parts(server: &Canned) -> Result<(), BucketError> {
    let file = tempfile::tempfile().unwrap();
    file.set_len(17 << 20).unwrap();
    bucket(server).put_file("k", &file, 17 << 20, &plain())
}

fn object(age_s: u64) -> Reply {
    let at = std::time::SystemTime::now() + Duration::from_secs(60) - Duration::from_secs(age_s);
    let modified = format!("last-modified: {}", httpdate::fmt_http_date(at));
    Reply::new(200, "").announced(17 << 20).header(modified)
}

#[test]
fn the_completion_of_an_upload_is_read_and_not_believed() {
    let absent = || Reply::new(404, "");
    let error = || Reply::error(200, "InternalError");

    // An error in an answer of success is followed by another attempt.
    let server = multipart(vec![error(), Reply::new(200, COMPLETED)], absent());
    put_parts(&server).unwrap();

    // Twice is a failure, and the parts are removed.
    let server = multipart(vec![error()], absent());
    let failed = put_parts(&server).unwrap_err();
    assert!(
        matches!(failed.fault(), Fault::Unavailable { .. }),
        "{failed}"
    );
    assert!(server.asked().iter().any(|asked| asked.method == "DELETE"));

    // The answer was lost, and the engine has forgotten the upload: the object decides.
    for reply in [
        Reply::error(404, "NoSuchUpload"),
        Reply::error(403, "AccessDenied"),
        Reply::new(200, "<html>"),
    ] {
        let server = multipart(vec![reply.clone()], object(0));
        put_parts(&server).unwrap();
        // An object of the same length that was there before does not count.
        let server = multipart(vec![reply], object(3600));
        put_parts(&server).unwrap_err();
    }
}

#[test]
fn an_upload_that_the_engine_has_forgotten_begins_anew() {
    let forgotten = Reply::error(404, "NoSuchUpload");
    let server = multipart(
        vec![forgotten, Reply::new(200, COMPLETED)],
        Reply::new(404, ""),
    );
    put_parts(&server).unwrap();
    let begun = |asked: &&Asked| asked.target.contains("uploads=");
    assert_eq!(server.asked().iter().filter(begun).count(), 2);
}

#[test]
fn objects_are_deleted_one_by_one_where_the_engine_has_no_other_request() {
    let server = Canned::start(|asked| match asked.method.as_str() {
        "POST" => Reply::error(501, "NotImplemented"),
        _ => Reply::new(204, ""),
    });
    bucket(&server).delete(&["a", "b", "c"]).unwrap();
    let deleted = |asked: &&Asked| asked.method == "DELETE";
    assert_eq!(server.asked().iter().filter(deleted).count(), 3);
}

#[test]
fn an_object_that_is_not_deleted_is_an_error() {
    let answer = |code: &str| {
        let text = format!(
            "<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Error><Key>p/b</Key>\
             <Code>{code}</Code><Message>m</Message></Error></DeleteResult>"
        );
        Reply::new(200, text)
    };
    let done = Reply::new(
        200,
        "<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"></DeleteResult>",
    );
    let server = Canned::start(in_order(vec![answer("AccessDenied")]));
    let error = bucket(&server).delete(&["a", "b"]).unwrap_err();
    assert!(
        error.is_denied() && error.to_string().contains("p/b"),
        "{error}"
    );
    let server = Canned::start(in_order(vec![answer("InternalError"), done]));
    bucket(&server).delete(&["a", "b"]).unwrap();
    let server = Canned::start(in_order(vec![answer("NoSuchKey")]));
    bucket(&server).delete(&["a", "b"]).unwrap();
}

#[test]
fn a_list_that_does_not_end_is_an_error() {
    let page = "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>\
                true</IsTruncated><NextContinuationToken>t</NextContinuationToken>\
                </ListBucketResult>";
    let server = Canned::start(move |_| Reply::new(200, page));
    let error = bucket(&server)
        .list("", &mut |_| ControlFlow::Continue(()))
        .unwrap_err();
    assert!(error.to_string().contains("begins again"), "{error}");
}

#[test]
fn only_the_word_of_an_engine_means_that_an_object_is_absent() {
    let page = || Reply::new(404, "<html>there is nothing here</html>");
    let server = Canned::start(move |_| page());
    let bucket_of_proxy = bucket(&server);
    for error in [
        bucket_of_proxy.head("k").unwrap_err(),
        bucket_of_proxy.get("k", None).unwrap_err(),
        bucket_of_proxy.delete(&["k"]).unwrap_err(),
    ] {
        assert!(error.to_string().contains("not an engine's"), "{error}");
    }
    let server = Canned::start(|_| Reply::error(404, "NoSuchBucket"));
    let error = bucket(&server).head("k").unwrap_err();
    assert!(matches!(error.fault(), Fault::NoBucket), "{error}");
    let server = Canned::start(|_| Reply::error(404, "NoSuchKey"));
    let bucket = bucket(&server);
    assert!(bucket.head("k").unwrap().is_none());
    assert!(bucket.get("k", None).unwrap().is_none());
    bucket.delete(&["k"]).unwrap();
}

#[test]
fn an_engine_that_is_away_is_an_error_that_may_pass() {
    let closed = testkit::closed_port::ClosedPort::new();
    let url = format!("s3://cache?endpoint=http://{}", closed.addr());
    let mut settings = Settings::parse(&url).unwrap();
    settings.credentials = CredentialSource::Anonymous;
    settings.timing.patience = Duration::from_secs(1);
    let begun = Instant::now();
    let bucket = Bucket::open(&settings).unwrap();
    let error = bucket.head("k").unwrap_err();
    assert!(matches!(error.fault(), Fault::Unreachable(_)), "{error}");
    let statistics = bucket.statistics();
    assert_eq!(statistics.down, Some(error.with_causes()));
    assert!(
        error.with_causes().contains("refused"),
        "{}",
        error.with_causes()
    );
    assert!(statistics.retry_count > 0);
    assert!(error.is_transient());
    assert!(begun.elapsed() < Duration::from_secs(20));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    /// No answer makes the client panic.
    #[test]
    fn any_answer_is_an_error_or_a_result(status in 200_u16..600, body in any_body()) {
        let server = Canned::start(move |_| Reply::new(status, body.clone()).header("etag: e"));
        let url = format!("s3://cache?endpoint={}", server.url());
        let mut settings = Settings::parse(&url).unwrap();
        settings.credentials = CredentialSource::Anonymous;
        settings.timing.patience = Duration::ZERO;
        let bucket = Bucket::open(&settings).unwrap();
        drop(bucket.put("k", b"x", &plain()));
        drop(bucket.head("k"));
        drop(bucket.get("k", Some(0..3)).map(|download| {
            download.map(|mut download| download.read_to_end(&mut Vec::new()))
        }));
        drop(bucket.list("", &mut |_| ControlFlow::Continue(())));
        drop(bucket.delete(&["a", "b"]));
        let file = tempfile::tempfile().unwrap();
        file.set_len(17 << 20).unwrap();
        drop(bucket.put_file("k", &file, 17 << 20, &plain()));
    }
}

/// Pieces of XML in any order, and any text.
fn any_body() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "<?xml version=\"1.0\"?>",
        "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
        "</ListBucketResult>",
        "<Contents><Key>a</Key><Size>1</Size></Contents>",
        "<Contents><Key>",
        "<Size>18446744073709551616</Size>",
        "<LastModified>x</LastModified>",
        "<IsTruncated>true</IsTruncated>",
        "<NextContinuationToken>n</NextContinuationToken>",
        "<EncodingType>url</EncodingType>",
        "%ff%",
        "<Error><Code>SlowDown</Code>",
        "<Code>",
        "</Code>",
        "<UploadId>u</UploadId>",
        "<![CDATA[",
        "]]>",
        "&#x0;",
        "&lt;",
        "\u{0}",
        "<",
        ">",
    ]);
    let piece = prop_oneof![pieces.prop_map(str::to_owned), ".{0,8}"];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}
