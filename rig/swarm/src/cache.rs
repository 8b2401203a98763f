//! A fleet of Nix clients. Each client requests the narinfos of many paths, and then downloads the
//! closure of one path.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write;
use std::time::Duration;

use testkit::random::{SplitMix64, mix};

use crate::fleet::{Answer, Ask, Fleet, Verdict, verdict_of};

const OPERATIONS: &[&str] = &["cache-info", "narinfo", "absent", "closure", "nar"];
const CACHE_INFO: usize = 0;
const NARINFO: usize = 1;
const ABSENT: usize = 2;
const CLOSURE: usize = 3;
const NAR: usize = 4;

/// Digits of Nix's base-32: without e, o, u and t.
const DIGITS: &[u8; 32] = b"0123456789abcdfghijklmnpqrsvwxyz";
const HASH_LEN: usize = 32;

/// Hash part of a store path.
type Hash = [u8; HASH_LEN];

/// Store paths in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog(Vec<Hash>);

impl Catalog {
    /// Parses store paths, one per line, as printed by `nix path-info --all`. Skips other lines;
    /// returns `None` if there are no store paths.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let hashes: Vec<Hash> = text.lines().filter_map(hash_of).collect();
        (!hashes.is_empty()).then_some(Self(hashes))
    }

    /// Returns the number of paths.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// Returns the hash part of `/nix/store/<hash>-name` or `<hash>-name`.
fn hash_of(path: &str) -> Option<Hash> {
    let name = path.trim().rsplit('/').next()?;
    let (hash, _) = name.split_once('-')?;
    let hash: Hash = hash.as_bytes().try_into().ok()?;
    hash.iter()
        .all(|digit| DIGITS.contains(digit))
        .then_some(hash)
}

/// Requests that a client sends in each period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// Number of narinfos to request at once.
    pub queries: u32,
    /// Percentage of absent paths among these narinfos. It is high in practice: Nix asks each cache
    /// for every path that it is about to build.
    pub misses_of_100: u32,
    /// Whether the client then downloads the closure of one path.
    pub downloads: bool,
}

/// Requests of a typical Nix client.
pub const TURN: Turn = Turn {
    queries: 50,
    misses_of_100: 80,
    downloads: true,
};

/// Resource to request.
#[derive(Debug, Clone)]
enum Want {
    Info,
    Path(Hash),
    Absent(Hash),
    /// Narinfo of a path in the closure of a download, and the number of the download.
    Closure(Hash, u64),
    /// A NAR: its URL, its length according to the narinfo, and the number of the download.
    Nar(String, u64, u64),
}

/// Download in progress.
#[derive(Debug, Default)]
struct Download {
    /// Hash parts of the paths whose narinfos the download has requested so far.
    met: HashSet<Hash>,
    /// Number of requests of the download that are not answered yet.
    open: usize,
}

/// Clients that perform one [`Turn`] per period. A request caused by a response, such as the NAR
/// after its narinfo, is due immediately.
#[derive(Debug)]
pub struct Clients {
    catalog: Catalog,
    turn: Turn,
    /// Start times of the clients' turns within the period, in ascending order.
    phases: Vec<Duration>,
    period: Duration,
    since: Duration,
    index: usize,
    /// Pending requests, each with its due time.
    due: VecDeque<(Duration, Want)>,
    /// Requests in flight, by token.
    asked: HashMap<u64, Want>,
    tokens: u64,
    downloads: HashMap<u64, Download>,
    random: SplitMix64,
    host: String,
}

impl Clients {
    /// Creates `count` clients, which send `host` in the `Host` field and perform one turn in each
    /// `period`. Times and paths are random, derived from `seed`.
    #[must_use]
    pub fn new(
        host: &str,
        catalog: Catalog,
        turn: Turn,
        count: usize,
        period: Duration,
        seed: u64,
    ) -> Self {
        let mut random = SplitMix64::new(mix(seed));
        let period_us = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
        let mut phases: Vec<_> = (0..count)
            .map(|_| Duration::from_micros(random.below(period_us)))
            .collect();
        phases.sort_unstable();
        Self {
            catalog,
            turn,
            phases,
            period,
            since: Duration::ZERO,
            index: 0,
            due: VecDeque::new(),
            asked: HashMap::new(),
            tokens: 0,
            downloads: HashMap::new(),
            random,
            host: host.to_owned(),
        }
    }

    fn next_turn(&self) -> Option<Duration> {
        Some(self.since + *self.phases.get(self.index)?)
    }

    fn begin_turn(&mut self, now: Duration) {
        if self.since.is_zero() {
            // Each client requests it only once, because Nix caches the response.
            self.due.push_back((now, Want::Info));
        }
        self.index += 1;
        if self.index == self.phases.len() {
            self.index = 0;
            self.since += self.period;
        }
        for _ in 0..self.turn.queries {
            let is_absent = self.random.below(100) < u64::from(self.turn.misses_of_100);
            let want = if is_absent {
                Want::Absent(self.absent())
            } else {
                Want::Path(self.path())
            };
            self.due.push_back((now, want));
        }
        if self.turn.downloads {
            let (path, number) = (self.path(), self.tokens);
            let download = Download {
                met: HashSet::from([path]),
                open: 1,
            };
            self.downloads.insert(number, download);
            self.due.push_back((now, Want::Closure(path, number)));
        }
    }

    fn path(&mut self) -> Hash {
        let index = self.random.below(self.catalog.0.len() as u64);
        let index = usize::try_from(index).unwrap_or_default();
        *self.catalog.0.get(index).unwrap_or(&[b'0'; HASH_LEN])
    }

    /// Returns a random hash part that no path of the cache has.
    fn absent(&mut self) -> Hash {
        let mut hash = [b'0'; HASH_LEN];
        for digit in &mut hash {
            let value = usize::try_from(self.random.below(32)).unwrap_or_default();
            *digit = *DIGITS.get(value).unwrap_or(digit);
        }
        hash
    }

    /// Queues the NAR of a narinfo in a download, and the narinfos of its references. Returns
    /// `None` if the narinfo is wrong.
    fn follow(&mut self, hash: &Hash, number: u64, narinfo: &[u8], now: Duration) -> Option<()> {
        let narinfo = std::str::from_utf8(narinfo).ok()?;
        let field = |name: &str| {
            let mut lines = narinfo.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        if hash_of(field("StorePath")?)? != *hash {
            return None;
        }
        let len = field("FileSize").or_else(|| field("NarSize"))?;
        let nar = Want::Nar(field("URL")?.to_owned(), len.parse().ok()?, number);
        let download = self.downloads.get_mut(&number)?;
        for name in field("References").unwrap_or_default().split_whitespace() {
            let reference = hash_of(name)?;
            if download.met.insert(reference) {
                download.open += 1;
                self.due.push_back((now, Want::Closure(reference, number)));
            }
        }
        download.open += 1;
        self.due.push_back((now, nar));
        Some(())
    }

    /// Records that one request of a download has ended.
    fn done(&mut self, want: &Want) {
        if let Want::Closure(_, number) | Want::Nar(_, _, number) = want
            && let Some(download) = self.downloads.get_mut(number)
        {
            download.open -= 1;
            if download.open == 0 {
                self.downloads.remove(number);
            }
        }
    }
}

impl Fleet for Clients {
    fn operations(&self) -> &'static [&'static str] {
        OPERATIONS
    }

    fn next_due(&self) -> Option<Duration> {
        let first = self.due.front().map(|(due, _)| *due);
        match (first, self.next_turn()) {
            (Some(first), Some(turn)) => Some(first.min(turn)),
            (first, turn) => first.or(turn),
        }
    }

    fn ask(&mut self, request: &mut Vec<u8>) -> Ask {
        let first = self.due.front().map(|(due, _)| *due);
        if let Some(turn) = self.next_turn()
            && first.is_none_or(|first| turn <= first)
        {
            self.begin_turn(turn);
        }
        let (due, want) = self.due.pop_front().unwrap_or((Duration::ZERO, Want::Info));
        let hash = |hash: &Hash| String::from_utf8_lossy(hash).into_owned();
        let (operation, path) = match &want {
            Want::Info => (CACHE_INFO, "nix-cache-info".to_owned()),
            Want::Path(path) => (NARINFO, hash(path) + ".narinfo"),
            Want::Absent(path) => (ABSENT, hash(path) + ".narinfo"),
            Want::Closure(path, _) => (CLOSURE, hash(path) + ".narinfo"),
            Want::Nar(url, ..) => (NAR, url.clone()),
        };
        let host = &self.host;
        write!(request, "GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
            .expect("a vector takes all");
        let token = self.tokens;
        self.tokens += 1;
        self.asked.insert(token, want);
        Ask {
            operation,
            due,
            token,
            wants_body: operation == CLOSURE,
        }
    }

    fn answered(&mut self, ask: &Ask, answer: &Answer<'_>, now: Duration) -> Verdict {
        let Some(want) = self.asked.remove(&ask.token) else {
            return Verdict::Wrong;
        };
        let good = if ask.operation == ABSENT { 404 } else { 200 };
        let mut verdict = verdict_of(answer.status, good, ask.operation);
        if let Verdict::Good(_) = verdict {
            let is_right = match &want {
                Want::Closure(hash, number) => {
                    self.follow(hash, *number, answer.body, now).is_some()
                }
                Want::Nar(_, len, _) => *len == answer.body_len,
                Want::Info | Want::Path(_) | Want::Absent(_) => true,
            };
            if !is_right {
                verdict = Verdict::Wrong;
            }
        }
        self.done(&want);
        verdict
    }

    fn failed(&mut self, ask: &Ask) {
        if let Some(want) = self.asked.remove(&ask.token) {
            self.done(&want);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "a2p45spl8mr38mazl566rkh812pbw0fb";
    const B: &str = "b2p45spl8mr38mazl566rkh812pbw0fb";

    fn narinfo(references: &str) -> String {
        format!(
            "StorePath: /nix/store/{A}-a\nURL: nar/a.nar\nCompression: none\nNarSize: 7\n\
             References: {references}\n"
        )
    }

    /// Performs one exchange; returns the requested path and the verdict.
    fn step(clients: &mut Clients, status: u16, body: &str, body_len: u64) -> (String, Verdict) {
        let mut request = Vec::new();
        let ask = clients.ask(&mut request);
        let body = body.as_bytes();
        let answer = Answer {
            status,
            body,
            body_len,
        };
        let verdict = clients.answered(&ask, &answer, Duration::from_millis(5));
        let request = String::from_utf8(request).unwrap();
        (request.split(' ').nth(1).unwrap().to_owned(), verdict)
    }

    fn clients(turn: Turn) -> Clients {
        let catalog = Catalog::parse(&format!("/nix/store/{A}-a\nwarning: x\n")).unwrap();
        assert_eq!(catalog.count(), 1);
        let mut clients = Clients::new("h", catalog, turn, 1, Duration::from_secs(9), 1);
        let (path, verdict) = step(&mut clients, 200, "", 0);
        assert_eq!(
            (&path[..], verdict),
            ("/nix-cache-info", Verdict::Good(CACHE_INFO))
        );
        clients
    }

    #[test]
    fn a_download_requests_each_path_of_the_closure_once() {
        let mut clients = clients(Turn { queries: 0, ..TURN });
        let (path, verdict) = step(
            &mut clients,
            200,
            &narinfo(&format!("{A}-a {B}-b {B}-b")),
            1,
        );
        assert_eq!(
            (path, verdict),
            (format!("/{A}.narinfo"), Verdict::Good(CLOSURE))
        );
        assert_eq!(clients.next_due(), Some(Duration::from_millis(5)));
        // The narinfo describes another path than the requested one.
        let (path, verdict) = step(&mut clients, 200, &narinfo(""), 1);
        assert_eq!((path, verdict), (format!("/{B}.narinfo"), Verdict::Wrong));
        let (path, verdict) = step(&mut clients, 200, "", 7);
        assert_eq!((&path[..], verdict), ("/nar/a.nar", Verdict::Good(NAR)));
        // No request is due until the next turn.
        assert!(clients.next_due() >= Some(Duration::from_secs(9)));
        assert!(clients.downloads.is_empty() && clients.asked.is_empty());
    }

    #[test]
    fn a_nar_of_another_length_is_wrong() {
        let mut clients = clients(Turn { queries: 0, ..TURN });
        step(&mut clients, 200, &narinfo(""), 1);
        assert_eq!(step(&mut clients, 200, "", 6).1, Verdict::Wrong);
    }

    #[test]
    fn absent_paths_must_be_404_and_present_ones_200() {
        let turn = |misses_of_100| Turn {
            queries: 1,
            misses_of_100,
            downloads: false,
        };
        let absent = |status| step(&mut clients(turn(100)), status, "", 0).1;
        assert_eq!(absent(404), Verdict::Good(ABSENT));
        assert_eq!(absent(200), Verdict::Wrong);
        assert_eq!(absent(503), Verdict::Refused);
        let there = |status| step(&mut clients(turn(0)), status, "", 0).1;
        assert_eq!(there(404), Verdict::Wrong);
        assert_eq!(there(200), Verdict::Good(NARINFO));
    }
}
