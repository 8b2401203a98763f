//! The access log as JSON, one object per line.
//!
//! | key | value |
//! | --- | --- |
//! | `time` | time of the request, RFC 3339, UTC, milliseconds |
//! | `client` | address of the client; `null` on a unix socket |
//! | `user` | name of an authenticated client, else `null` |
//! | `refused_user` | name of a login that was refused, as the client sent it, else `null` |
//! | `method`, `target`, `version` | the request line; `null` if it was invalid |
//! | `route` | class of the request, as in the metrics |
//! | `path` | full store path, if its name is in memory |
//! | `hash` | hash part in the target, if it has one |
//! | `status`, `bytes` | of the response; `bytes` of its body |
//! | `duration_us` | time from the request to the end of the response, microseconds |
//! | `complete` | whether the response was sent completely |
//! | `request_id` | `X-Request-Id`, if it has at most 64 plain characters, else a generated one |
//! | `referer`, `user_agent` | header fields of the request |

use std::borrow::Cow;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::access::Entry;
use super::masked::masked;
use super::utc::rfc_3339;

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    client: Option<String>,
    user: Option<Cow<'a, str>>,
    refused_user: Option<Cow<'a, str>>,
    method: Option<Cow<'a, str>>,
    target: Option<Cow<'a, str>>,
    version: Option<&'static str>,
    route: Option<&'static str>,
    path: Option<&'a str>,
    hash: Option<String>,
    status: u16,
    bytes: Option<u64>,
    duration_us: u64,
    complete: bool,
    request_id: Cow<'a, str>,
    referer: Option<Cow<'a, str>>,
    user_agent: Option<Cow<'a, str>>,
}

/// Appends the entry as a line with a newline.
pub(super) fn append_line(entry: &Entry<'_>, line: &mut Vec<u8>) {
    let request = entry.request;
    let target = request.map(|request| request.target);
    let shown = target.map(masked);
    let shown_referer = entry.referer.map(masked);
    let routed = request.map(|request| request.routed);
    let since_1970 = entry.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let milliseconds = since_1970.subsec_millis();
    let object = Line {
        time: format!("{}.{milliseconds:03}Z", rfc_3339(entry.time)),
        client: entry.client.map(|client| client.to_string()),
        user: text(entry.user),
        refused_user: text(entry.refused_user),
        method: text(request.map(|request| request.method)),
        target: text(shown.as_deref()),
        version: request.map(|request| request.version),
        route: routed.map(|routed| routed.class.name()),
        path: entry.path,
        hash: routed
            .and_then(|routed| routed.hash_part)
            .map(|hash_part| hash_part.to_string()),
        status: entry.status,
        bytes: entry.body_len,
        duration_us: u64::try_from(entry.duration.as_micros()).unwrap_or(u64::MAX),
        complete: entry.is_complete,
        request_id: request_id(entry.request_id),
        referer: text(shown_referer.as_deref()),
        user_agent: text(entry.user_agent),
    };
    serde_json::to_writer(&mut *line, &object).expect("a vector takes all bytes");
    line.push(b'\n');
}

/// Converts a client's bytes to text, with U+FFFD for invalid UTF-8; `None` if they are empty.
fn text(bytes: Option<&[u8]>) -> Option<Cow<'_, str>> {
    let bytes = bytes.filter(|bytes| !bytes.is_empty())?;
    Some(String::from_utf8_lossy(bytes))
}

/// Returns the request ID that the client sent if it is valid, else a new one that is unique on
/// this machine.
fn request_id(sent: Option<&[u8]>) -> Cow<'_, str> {
    const LEN_MAX: usize = 64;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static PROCESS: OnceLock<String> = OnceLock::new();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
    let sane = sent.filter(|id| (1..=LEN_MAX).contains(&id.len()) && id.iter().all(is_plain));
    if let Some(id) = sane.and_then(|id| std::str::from_utf8(id).ok()) {
        return id.into();
    }
    let process = PROCESS.get_or_init(|| {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let started_ms = since_1970.unwrap_or_default().as_millis();
        format!("{started_ms:x}-{:x}", process::id())
    });
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{process}-{number:x}").into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use samovar_metrics::{Class, Routed};
    use samovar_nix::HashPart;
    use serde_json::Value;

    use super::super::access::Request;
    use super::*;

    fn written(entry: &Entry<'_>) -> Value {
        let mut line = Vec::new();
        append_line(entry, &mut line);
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        serde_json::from_slice(&line).expect("an object")
    }

    fn entry() -> Entry<'static> {
        Entry {
            client: Some("192.0.2.7".parse().expect("an address")),
            user: None,
            refused_user: None,
            path: None,
            time: UNIX_EPOCH + Duration::from_millis(971_211_336_007),
            request: Some(Request {
                method: b"GET",
                target: b"/p4pclmv1gyja5kzc26npqpia1qqxrf0l.narinfo?x",
                version: "HTTP/1.1",
                routed: Routed {
                    class: Class::Narinfo,
                    cache: Some(0),
                    hash_part: HashPart::parse(b"p4pclmv1gyja5kzc26npqpia1qqxrf0l").ok(),
                },
            }),
            status: 200,
            body_len: Some(52),
            referer: None,
            user_agent: Some(b"curl/8.0 Nix/2.31"),
            duration: Duration::from_micros(250),
            is_complete: true,
            request_id: Some(b"f00-1"),
        }
    }

    #[test]
    fn an_entry_with_all_fields() {
        let expected = serde_json::json!({
            "time": "2000-10-10T20:55:36.007Z", "client": "192.0.2.7", "user": null,
            "refused_user": null,
            "method": "GET", "target": "/p4pclmv1gyja5kzc26npqpia1qqxrf0l.narinfo?x",
            "version": "HTTP/1.1", "route": "narinfo",
            "path": null, "hash": "p4pclmv1gyja5kzc26npqpia1qqxrf0l", "status": 200, "bytes": 52,
            "duration_us": 250, "complete": true, "request_id": "f00-1", "referer": null,
            "user_agent": "curl/8.0 Nix/2.31",
        });
        assert_eq!(written(&entry()), expected);
    }

    #[test]
    fn no_line_can_be_forged() {
        let hostile = b"\"}\n{\"status\":200,\"x\":\"\xff\x00";
        let object = written(&Entry {
            user_agent: Some(hostile),
            referer: Some(hostile),
            request_id: Some(hostile),
            ..entry()
        });
        assert_eq!(object["status"], 200);
        assert_eq!(
            object["user_agent"],
            String::from_utf8_lossy(hostile).as_ref()
        );
    }

    #[test]
    fn an_invalid_request_id_is_replaced() {
        let ids: Vec<String> = [None, Some(&b""[..]), Some(b"a b"), Some(&[b'x'; 65])]
            .into_iter()
            .map(|id| request_id(id).into_owned())
            .collect();
        for (index, id) in ids.iter().enumerate() {
            assert!(!id.is_empty() && !ids[..index].contains(id), "{ids:?}");
        }
        assert_eq!(request_id(Some(&[b'x'; 64])), "x".repeat(64));
    }
}
