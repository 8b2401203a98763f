//! Requests for many narinfos at once, to an upstream that is a Samovar server.

use std::collections::HashSet;
use std::io::BufReader;
use std::sync::{Mutex, mpsc};
use std::thread;

use samovar_client::http::Http;
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{HashPart, StoreDir};
use samovar_protocol::bulk::{CONTENT_TYPE, Record, Records, RecordsError};
use samovar_upstream::bulk::Reply;
use samovar_upstream::settings::UpstreamSettings;
use samovar_upstream::trust;

use crate::sync::Locked;
use crate::upstream::request::Said;

/// Maximum number of narinfos that are read from one response. The rest of a larger closure is
/// requested when clients ask for it.
const COUNT_MAX: usize = 20_000;

/// Maximum length of all narinfos that are read from one response, in bytes.
const LEN_MAX: usize = 32 << 20;

/// Number of narinfos that are checked and passed on together.
const STEP_COUNT: usize = 16;

/// Number of threads that check the narinfos of a long response.
const CHECKER_COUNT: usize = 4;

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

/// Requests many narinfos, and passes on those that may be served. The caller must request the
/// other paths one by one.
pub(super) fn narinfos(
    http: &Http,
    (settings, dir): (&UpstreamSettings, &StoreDir),
    wish: &Wish,
    tell: &(dyn Fn(Answers) + Sync),
) -> Reply {
    let check = |unchecked: Vec<Unchecked>| {
        let admitted = |(hash_part, text): Unchecked| {
            let said = match text {
                None => Said::Absent,
                Some(text) => Said::Found(trust::admit(settings, dir, hash_part, &text).ok()?),
            };
            Some((hash_part, said))
        };
        tell(unchecked.into_iter().filter_map(admitted).collect());
    };
    if let Some(root) = wish.closure_of {
        match http.get_part(&format!("/closure/{root}"), None) {
            Ok(response) if is_records(&response) => {
                return read(response, None, &check);
            }
            // A Samovar server does not answer for a closure with a path that it has only upstream.
            Ok(_) => {}
            Err(_) => return Reply::Failed,
        }
    }
    match post(http, &wish.paths) {
        Ok(response) if is_records(&response) => read(response, Some(&wish.paths), &check),
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

/// A record that was read and not checked yet: a path and its narinfo, or `None` if the upstream
/// lacks the path.
type Unchecked = (HashPart, Option<Vec<u8>>);

/// Reads a response. `asked`: the paths of which it may tell; `None`: any that the upstream has.
///
/// Signatures take longer than all else, so the narinfos of a long response are checked by several
/// threads.
fn read(
    response: Response,
    asked: Option<&HashSet<HashPart>>,
    check: &(dyn Fn(Vec<Unchecked>) + Sync),
) -> Reply {
    let mut records = match Records::begin(BufReader::new(response.into_body().into_reader())) {
        Ok(records) => records,
        Err(RecordsError::Version) => return Reply::Refused,
        Err(_) => return Reply::Failed,
    };
    let (sender, receiver) = mpsc::sync_channel::<Vec<Unchecked>>(CHECKER_COUNT);
    let receiver = Mutex::new(receiver);
    let next = || receiver.locked().recv();
    thread::scope(|scope| {
        let mut are_started = false;
        let mut read = Vec::new();
        let (mut count, mut len) = (0_usize, 0_usize);
        let reply = loop {
            let (hash_part, text) = match records.read() {
                Ok(None) => break Reply::Answered,
                Ok(Some(Record::Path(hash_part, text))) => (hash_part, Some(text)),
                Ok(Some(Record::Absent(hash_part))) => (hash_part, None),
                Ok(Some(Record::Failed(_))) => continue,
                Err(_) => break Reply::Failed,
            };
            count = count.saturating_add(1);
            len = len.saturating_add(text.as_ref().map_or(0, Vec::len));
            // A closure has no records of absent paths.
            if asked.map_or(text.is_some(), |asked| asked.contains(&hash_part)) {
                read.push((hash_part, text));
            }
            if read.len() >= STEP_COUNT {
                if !are_started {
                    are_started = true;
                    for _ in 0..CHECKER_COUNT {
                        scope.spawn(|| {
                            while let Ok(some) = next() {
                                check(some);
                            }
                        });
                    }
                }
                // Cannot fail: the receiver lives as long as the scope.
                sender.send(std::mem::take(&mut read)).ok();
            }
            if count >= COUNT_MAX || len >= LEN_MAX {
                break Reply::Answered;
            }
        };
        drop(sender);
        check(read);
        reply
    })
}
