//! Requests for many narinfos to an upstream that is a Samovar.

use std::collections::HashSet;
use std::io::BufReader;

use samovar_client::http::Http;
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{HashPart, StoreDir};
use samovar_protocol::bulk::{CONTENT_TYPE, Record, Records, RecordsError};
use samovar_upstream::bulk::Reply;
use samovar_upstream::settings::UpstreamSettings;
use samovar_upstream::trust;

use crate::upstream::request::Said;

/// Maximum number of narinfos that are read from one response. The rest of a larger closure is
/// requested when clients ask for it.
const COUNT_MAX: usize = 20_000;

/// Maximum length of all narinfos that are read from one response, in bytes.
const LEN_MAX: usize = 32 << 20;

/// Number of narinfos that are passed on together.
const STEP_COUNT: usize = 16;

/// What is requested.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    /// The path whose closure is requested; `None`: only `paths`.
    pub(super) closure_of: Option<HashPart>,
    /// The paths that are needed first.
    pub(super) paths: HashSet<HashPart>,
}

/// What the upstream has said about some paths.
pub(super) type Answers = Vec<(HashPart, Said<NarInfo>)>;

/// Finds out whether an upstream answers requests for many narinfos.
pub(super) fn detect(http: &Http) -> Reply {
    match post(http, &HashSet::new()) {
        Ok(response) => match is_records(&response) {
            true => Reply::Answered,
            false => refusal(&response),
        },
        Err(_) => Reply::Failed,
    }
}

/// Requests many narinfos, and passes on what may be served. Paths that are left out then are to be
/// requested alone.
pub(super) fn narinfos(
    http: &Http,
    (settings, dir): (&UpstreamSettings, &StoreDir),
    wish: &Wish,
    tell: &mut dyn FnMut(Answers),
) -> Reply {
    let admit = |hash_part, text: &[u8]| trust::admit(settings, dir, hash_part, text).ok();
    if let Some(root) = wish.closure_of {
        match http.get_part(&format!("/closure/{root}"), None) {
            Ok(response) if is_records(&response) => {
                return read(response, None, admit, tell);
            }
            // A Samovar has no closure with paths of its own upstreams.
            Ok(_) => {}
            Err(_) => return Reply::Failed,
        }
    }
    match post(http, &wish.paths) {
        Ok(response) if is_records(&response) => read(response, Some(&wish.paths), admit, tell),
        Ok(response) => refusal(&response),
        Err(_) => Reply::Failed,
    }
}

type Response = ureq::http::Response<ureq::Body>;

fn post(http: &Http, paths: &HashSet<HashPart>) -> Result<Response, String> {
    let lines: String = paths.iter().map(|one| format!("{one}\n")).collect();
    http.post_once("/narinfos", lines.as_bytes())
}

fn is_records(response: &Response) -> bool {
    response.status() == 200 && response.body().mime_type() == Some(CONTENT_TYPE)
}

/// Returns what a response means that has no records.
fn refusal(response: &Response) -> Reply {
    match response.status().as_u16() {
        // The upstream is busy, or answers with errors.
        408 | 413 | 429 | 500.. => Reply::Failed,
        _ => Reply::Refused,
    }
}

/// Reads a response. `asked`: the paths of which it may tell; `None`: any.
fn read(
    response: Response,
    asked: Option<&HashSet<HashPart>>,
    admit: impl Fn(HashPart, &[u8]) -> Option<NarInfo>,
    tell: &mut dyn FnMut(Answers),
) -> Reply {
    let mut answers = Answers::new();
    let (mut count, mut len) = (0_usize, 0_usize);
    let mut records = match Records::begin(BufReader::new(response.into_body().into_reader())) {
        Ok(records) => records,
        Err(RecordsError::Version) => return Reply::Refused,
        Err(_) => return Reply::Failed,
    };
    loop {
        let (hash_part, said) = match records.read() {
            Ok(None) => break,
            Ok(Some(Record::Path(hash_part, text))) => {
                len = len.saturating_add(text.len());
                let admitted = admit(hash_part, &text);
                (hash_part, admitted.map(Said::Found))
            }
            // A closure has no such records.
            Ok(Some(Record::Absent(hash_part))) => (hash_part, Some(Said::Absent)),
            Ok(Some(Record::Failed(hash_part))) => (hash_part, None),
            Err(_) => {
                tell(answers);
                return Reply::Failed;
            }
        };
        let is_asked = match asked {
            Some(asked) => asked.contains(&hash_part),
            None => !matches!(said, Some(Said::Absent)),
        };
        if is_asked && let Some(said) = said {
            answers.push((hash_part, said));
        }
        if answers.len() >= STEP_COUNT {
            tell(std::mem::take(&mut answers));
        }
        count = count.saturating_add(1);
        if count >= COUNT_MAX || len >= LEN_MAX {
            break;
        }
    }
    tell(answers);
    Reply::Answered
}
