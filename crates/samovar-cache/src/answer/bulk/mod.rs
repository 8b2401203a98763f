//! Bulk queries: `POST /narinfos` returns the narinfos of a list of paths.
//!
//! # Grammar
//!
//! ```text
//! body = [line *(LF line) [LF]]
//! line = hash-part / base-name / store-dir "/" base-name
//! ```

pub(crate) mod closure;
mod records;

use std::fmt;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::Instant;

use samovar_http::http::Status;
use samovar_http::{BodyError, Request, Response};
use samovar_metrics::Event;
use samovar_nix::{HashPart, StoreDir, StorePath};
use samovar_store::Member;

use crate::narinfo::narinfos::{Answer, Narinfos};
use crate::refusal::{Fixed, text_response};

/// Maximum number of paths in a request: ten closures of a whole system.
pub(crate) const COUNT_MAX: usize = 100_000;

/// Maximum length of the request body, in bytes: 100,000 full paths of usual length.
pub(crate) const BODY_LEN_MAX: u64 = 16 << 20;

/// The reason why a list of paths was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ListError {
    /// A line that names no store path.
    #[error("Line {line} is neither a hash part nor a base name nor a path of this store.")]
    Line {
        /// Number of the line, starting at 1.
        line: usize,
    },
    /// More lines than allowed.
    #[error("Line {} is one too many: ask for at most {COUNT_MAX} paths at once.", COUNT_MAX + 1)]
    TooMany,
}

/// The paths of a cache that are not in the store.
pub(crate) trait OtherPaths: fmt::Debug + Send {
    /// Replaces the refusals of absent paths by the narinfos of other paths with the same hash
    /// parts.
    ///
    /// # Errors
    ///
    /// If the other paths cannot be read now. The callee has reported that.
    fn complete(&self, hash_parts: &[HashPart], answers: &mut [Answer]) -> io::Result<()>;

    /// Whether [`complete`](Self::complete) may wait for another server.
    fn may_wait(&self) -> bool {
        false
    }
}

/// Answers `POST /narinfos`. `others`: the paths that are not in the store, if there may be any.
pub(crate) fn respond(
    narinfos: &Arc<Narinfos>,
    request: &mut Request,
    others: Option<Box<dyn OtherPaths>>,
) -> Response {
    let coding = request.head().header("Content-Encoding");
    if coding.is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
        let text = "The body may not be compressed.\n";
        // A 415 names the accepted codings (RFC 9110, 15.5.16).
        return text_response(Status::UNSUPPORTED_MEDIA_TYPE, text)
            .header("Accept-Encoding", "identity");
    }
    // If the client had to be authenticated first, its body was not buffered and is read here.
    let mut streamed = Vec::new();
    if request.body().is_empty() {
        let mut reader = request.reader().take(BODY_LEN_MAX + 1);
        if let Err(error) = reader.read_to_end(&mut streamed) {
            let status = BodyError::of(&error).map_or(Status::BAD_REQUEST, BodyError::status);
            return text_response(status, format!("{error}\n"));
        }
        if streamed.len() as u64 > BODY_LEN_MAX {
            let text = "The request body is too long.\n";
            return text_response(Status::CONTENT_TOO_LARGE, text);
        }
    }
    let body = match &*streamed {
        [] => request.body(),
        streamed => streamed,
    };
    let hash_parts = match parse(body, narinfos.reader.store().store_dir(), COUNT_MAX) {
        Ok(hash_parts) => hash_parts,
        Err(error) => {
            let status = match error {
                ListError::Line { .. } => Status::BAD_REQUEST,
                ListError::TooMany => Status::CONTENT_TOO_LARGE,
            };
            return text_response(status, format!("{error}\n"));
        }
    };
    let member = |hash_part| Member {
        hash_part,
        registration: None,
    };
    many(
        narinfos,
        hash_parts.into_iter().map(member).collect(),
        false,
        others,
    )
}

/// Makes the response with the narinfos of `members`; 503 if there is no capacity for the list. If
/// the members are a closure, the response is complete or aborted. `uploaded`: `None` if all
/// members are paths of the store.
pub(crate) fn many(
    narinfos: &Arc<Narinfos>,
    members: Vec<Member>,
    is_closure: bool,
    others: Option<Box<dyn OtherPaths>>,
) -> Response {
    let shared = &narinfos.reader.shared;
    let (share, evicted_count) = shared.bulk_budget.share(members, Instant::now());
    for _ in 0..evicted_count {
        shared.observer.event(&Event::BulkEvicted);
    }
    match share {
        Some(share) => records::respond(narinfos, share, is_closure, others),
        None => {
            shared.observer.event(&Event::BulkLimitReached);
            Fixed::Busy.response()
        }
    }
}

/// Parses the list of paths in a request body.
pub(crate) fn parse(
    body: &[u8],
    dir: &StoreDir,
    count_max: usize,
) -> Result<Vec<HashPart>, ListError> {
    let body = body.strip_suffix(b"\n").unwrap_or(body);
    if body.is_empty() {
        return Ok(Vec::new());
    }
    let mut hash_parts = Vec::new();
    for (index, line) in body.split(|byte| *byte == b'\n').enumerate() {
        if index >= count_max {
            return Err(ListError::TooMany);
        }
        let hash_part = parse_line(line, dir).ok_or(ListError::Line { line: index + 1 })?;
        hash_parts.push(hash_part);
    }
    Ok(hash_parts)
}

fn parse_line(line: &[u8], dir: &StoreDir) -> Option<HashPart> {
    if let Ok(hash_part) = HashPart::parse(line) {
        return Some(hash_part);
    }
    let text = std::str::from_utf8(line).ok()?;
    let path = match text.starts_with('/') {
        true => StorePath::parse(dir, text),
        false => StorePath::from_base_name(text),
    };
    path.ok().map(|path| path.hash_part())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const H: &str = "vdszx2k8vwaxcpdpwhbwsgib5c6sf53k";

    #[track_caller]
    fn check(body: &str, expected: Result<usize, ListError>) {
        let parsed = parse(body.as_bytes(), &StoreDir::default(), 3);
        assert_eq!(
            parsed.map(|hash_parts| hash_parts.len()),
            expected,
            "{body:?}"
        );
    }

    #[test]
    fn lists_are_parsed_or_refused_with_the_line() {
        check("", Ok(0));
        check("\n", Ok(0));
        check(H, Ok(1));
        check(&format!("{H}\n"), Ok(1));
        check(&format!("{H}-app\n/nix/store/{H}-app\n{H}"), Ok(3));
        check(&format!("{H}\n{H}\n{H}\n"), Ok(3));
        check(&format!("{H}\n{H}\n{H}\n{H}"), Err(ListError::TooMany));
        for bad in [
            "nonsense".to_owned(),
            format!("{H}/bin"),
            format!("/nix/store/{H}-app/bin"),
            format!("/gnu/store/{H}-app"),
            format!("/nix/store/{H}"),
            format!("{H}\r"),
            format!("{H} "),
            format!("{H}{H}"),
            String::new(),
        ] {
            check(
                &format!("{H}\n{bad}\n{H}\n"),
                Err(ListError::Line { line: 2 }),
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in vec(any::<u8>(), 0..200)) {
            let _outcome = parse(&body, &StoreDir::default(), COUNT_MAX);
        }

        #[test]
        fn every_form_of_a_path_is_parsed_to_its_hash_part(
            all in vec((any::<[u8; 20]>(), 0..3_u8, "[a-z0-9+._?=-]{1,20}"), 0..20),
            ends in any::<bool>(),
        ) {
            let lines: Vec<String> = all
                .iter()
                .map(|(bytes, form, name)| {
                    let hash_part = HashPart::from_bytes(*bytes);
                    match form {
                        0 => hash_part.to_string(),
                        1 => format!("{hash_part}-{name}"),
                        _ => format!("/nix/store/{hash_part}-{name}"),
                    }
                })
                .collect();
            let mut body = lines.join("\n");
            if ends {
                body.push('\n');
            }
            let hash_parts = all.iter().map(|(bytes, ..)| HashPart::from_bytes(*bytes));
            let expected: Vec<_> = hash_parts.collect();
            let parsed = parse(body.as_bytes(), &StoreDir::default(), COUNT_MAX);
            prop_assert_eq!(parsed, Ok(expected));
        }
    }
}
