//! However a request target is encoded, it reaches no file outside of the store's paths, is not
//! repeated in a response, and does not affect the next request on the connection.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::{bare, hash_part, local, nix_serve, sample, sample_root};
use support_process::{Connection, Process, Response, once, serve_sample, signal};
use testkit::limit;
use testkit::procfs::cpu_time;

const INFO: &str = "StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 30\n";
const NOT_ALLOWED: &str = "This cache is read-only: use GET or HEAD.\n";
const NO_UPLOADS: &str = "This URL takes no uploads: check it, or ask the operator to allow \
                          uploads (samovar serve --storage).\n";
const ONLY_POST: &str = "Use POST for this URL.\n";
const MISSES: [&str; 3] = [
    "No such path.\n",
    "File not found.\n",
    "Incorrect NAR hash. Maybe the path has been recreated.\n",
];
/// Part of every request. Must not appear in any response.
const CANARY: &str = "c4nary";
/// Maximum length of a target, bytes (`docs/book/limits.md`).
const TARGET_LEN_MAX: usize = 8192;

/// Texts that are put before, into, after and in place of each path segment.
const SNIPPETS: &str = r#"
    ../ ./ .. . ... ....// / // \ ..\ %2e%2e%2f %2e%2e/ %2E%2e%2F ..%2f ..%5c %2f %2F%2f
    %252e%252e%252f %25 %2525 %c0%ae%c0%ae/ %c0%af %e0%80%ae %f0%80%80%af %uff0e%u002e %00
    %0d%0aX-Canary:c4nary %0a %09 %1b[2J %7f %ff%fe %E2%80%AE %20 % %2 %zz %+1 ;c4nary=1 ;
    ?c4nary ? ?? ?hash=.. ?hash=%2e%2e%2f&hash= ?a;b=c&&= %3f %3Fhash= %23c4nary + %2B =
    ~ ~root/ ' " <script>c4nary</script> ${jndi:ldap://c4nary} {hash} |id `id` $(id)
    * : @ ! a..b .git/ etc/passwd c4nary CON http://a/ #c4nary
"#;

/// Bytes that are not allowed in a target.
const BYTES: &[u8] =
    b"\0|\x01|\t| |\n|\r|\r\n|\r\nX: c4nary\r\n\r\n|\x1b[2J|\x7f|\xc3\xa9|\xff|\xc0\xae";

fn snippets() -> impl Iterator<Item = &'static [u8]> {
    let words = SNIPPETS.split_whitespace().map(str::as_bytes);
    words.chain(BYTES.split(|byte| *byte == b'|'))
}

/// The URLs of one path, and the expected responses.
struct Subject {
    /// Hash part, NAR hash, and the base name of a derivation with a log.
    names: [(&'static str, String); 3],
    /// Bodies of responses by decoded path.
    known: HashMap<Vec<u8>, Vec<u8>>,
    /// harmonia's form of the URL: the path, and the query that it requires.
    by_query: (Vec<u8>, Vec<u8>),
}

const ROUTES: &[&str] = &[
    "/nix-cache-info",
    "/{H}.narinfo",
    "/nar/{H}-{N}.nar",
    "/nar/{H}.nar",
    "/{H}.ls",
    "/log/{D}",
    "/closure/{H}",
    "/buildid/0000/source/nix/store/{H}-built/run",
];
/// Well-formed hash parts and names of paths that do not exist.
const ABSENT: &[&str] = &[
    "/realisations/sha256:{0}!out.doi",
    "/build-trace-v2/{D}/none.doi",
    "/zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz.narinfo",
    "/nar/{H}-{0}.nar",
    "/buildid/{0}/debuginfo",
    "/debuginfo/{0}.debug",
    "/",
];

/// Start of the URLs of source files, whose names are those in their paths without dot segments.
const SOURCE: &[u8] = b"/buildid/0000/source/";

impl Subject {
    fn of(addr: SocketAddr) -> Self {
        let hash = hash_part(&sample("built")).to_owned();
        let drv = sample("built_drv").rsplit('/').next().unwrap().to_owned();
        let narinfo = once(addr, &format!("/{hash}.narinfo")).text();
        let nar_hash = narinfo
            .lines()
            .find_map(|line| line.strip_prefix("NarHash: sha256:"));
        let nar_hash = nar_hash.unwrap().to_owned();
        let mut subject = Self {
            by_query: (
                format!("/nar/{nar_hash}.nar").into_bytes(),
                format!("hash={hash}").into_bytes(),
            ),
            names: [("{H}", hash), ("{N}", nar_hash), ("{D}", drv)],
            known: HashMap::new(),
        };
        for route in ROUTES {
            let path = subject.fill(route);
            let reply = once(addr, &path);
            assert_eq!(reply.status, 200, "{path}");
            subject.known.insert(path.into_bytes(), reply.body);
        }
        subject
    }

    fn fill(&self, pattern: &str) -> String {
        let filled = pattern.replace("{0}", &"0".repeat(64));
        let names = self.names.iter();
        names.fold(filled, |filled, (name, value)| filled.replace(name, value))
    }

    /// Builds targets: each route with each snippet at each position.
    fn targets(&self) -> Vec<Vec<u8>> {
        let harmonias = "/nar/{N}.nar?hash={H}";
        let routes = ROUTES
            .iter()
            .chain(ABSENT)
            .chain([&harmonias, &"/narinfos"]);
        let mut targets: Vec<Vec<u8>> = Vec::new();
        for route in routes {
            let route = self.fill(route);
            let segments: Vec<&str> = route[1..].split('/').collect();
            for (index, segment) in segments.iter().enumerate() {
                let before = [&[""][..], &segments[..index]].concat().join("/") + "/";
                let after: String = segments[index + 1..]
                    .iter()
                    .map(|next| format!("/{next}"))
                    .collect();
                let stem = segment.find('.').unwrap_or(segment.len());
                for snippet in snippets() {
                    for (head, tail) in [
                        ("", *segment),
                        (segment, ""),
                        ("", ""),
                        segment.split_at(stem),
                    ] {
                        let parts = [
                            before.as_bytes(),
                            head.as_bytes(),
                            snippet,
                            tail.as_bytes(),
                            after.as_bytes(),
                        ];
                        targets.push(parts.concat());
                    }
                }
            }
            for snippet in snippets() {
                targets.push([snippet, route.as_bytes()].concat());
            }
            for (at, byte) in route.bytes().enumerate() {
                let (before, after) = (&route[..at], &route[at + 1..]);
                targets.push(format!("{before}%{byte:02x}{after}").into_bytes());
                targets.push(format!("{before}%25{byte:02X}{after}").into_bytes());
            }
            for between in [
                "%2F", "%2f", "//", "/./", "/x/../", "\\", "%5c", ";/", "/%2e/", "%252f",
            ] {
                targets.push(format!("/{}", route[1..].replace('/', between)).into_bytes());
            }
            targets.push(route.into_bytes());
        }
        targets.sort();
        targets.dedup();
        targets
    }

    /// Computes the expected response in another way than the server does.
    fn due(&self, target: &[u8]) -> Due<'_> {
        let is_sound = target
            .iter()
            .all(|byte| byte.is_ascii_graphic() && *byte != b'#');
        if !is_sound {
            return Due::Refusal;
        }
        // The absolute form of a target is valid with the host of these requests.
        let target = target.strip_prefix(b"http://a").unwrap_or(target);
        if !target.starts_with(b"/") {
            return Due::Refusal;
        }
        let mut parts = target.splitn(2, |byte| *byte == b'?');
        let (path, query) = (parts.next().unwrap(), parts.next().unwrap_or_default());
        let Some(decoded) = decode(path) else {
            return Due::Miss;
        };
        let slash_count = |path: &[u8]| path.iter().filter(|byte| **byte == b'/').count();
        if slash_count(path) != slash_count(&decoded) {
            return Due::Miss;
        }
        if decoded == b"/narinfos" {
            return Due::OnlyPost;
        }
        if decoded == self.by_query.0 {
            let mut pairs = query.split(|byte| *byte == b'&');
            let first = pairs.find(|pair| pair.starts_with(b"hash="));
            let nar = &self.known[self.fill("/nar/{H}.nar").as_bytes()];
            return match first == Some(&self.by_query.1) {
                true => Due::Body(nar),
                false => Due::Miss,
            };
        }
        let plain = match decoded.strip_prefix(SOURCE) {
            Some(path) => [SOURCE, &plain(path)].concat(),
            None => decoded,
        };
        self.known
            .get(&plain)
            .map_or(Due::Miss, |body| Due::Body(body))
    }
}

/// Returns a path without `.`, `..` (RFC 3986, 5.2.4) and repeated slashes.
fn plain(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        if name == b".." {
            names.pop();
        } else if !name.is_empty() && name != b"." {
            names.push(name);
        }
    }
    names.join(&b'/')
}

#[derive(Debug)]
enum Due<'a> {
    Body(&'a [u8]),
    Miss,
    OnlyPost,
    /// Status 4xx, and the server closes the connection.
    Refusal,
}

/// Percent-decodes a path once.
fn decode(path: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::new();
    let mut rest = path;
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        decoded.push(u8::from_str_radix(digits, 16).unwrap());
        rest = &after[2..];
    }
    Some(decoded)
}

/// Sends the target with a valid request right after it. Returns the response if it is well-formed.
#[track_caller]
fn ask(
    connection: &mut Option<Connection>,
    addr: SocketAddr,
    method: &[u8],
    target: &[u8],
) -> Response {
    let shown = || format!("{} {}", method.escape_ascii(), target.escape_ascii());
    let open = connection.get_or_insert_with(|| Connection::connect(addr));
    let fields = format!("User-Agent: {CANARY}\r\nReferer: {CANARY}\r\nX-{CANARY}: {CANARY}\r\n");
    let mut request = [method, b" ", target, b" HTTP/1.1\r\nHost: a\r\n"].concat();
    request.extend_from_slice(fields.as_bytes());
    request.extend_from_slice(b"Content-Length: 0\r\n\r\n");
    request.extend_from_slice(b"GET /nix-cache-info HTTP/1.1\r\nHost: a\r\n\r\n");
    open.send(&request);
    let mut reply = open.begin_reading(method == b"HEAD");
    let len = reply
        .header("content-length")
        .map(|len| len.parse().unwrap());
    if reply.header("connection") == Some("close") {
        // Nothing is sent after a refusal. A request that cannot be parsed is not treated as HEAD,
        // so a body follows.
        reply.body = open.rest().0;
        assert_eq!(Some(reply.body.len()), len, "{}", shown());
        *connection = None;
    } else {
        let body = &mut reply.body;
        open.body(|piece| body.extend_from_slice(piece)).unwrap();
        let next = open.response(false);
        assert_eq!(
            (next.status, &*next.text()),
            (200, INFO),
            "behind {}",
            shown()
        );
    }
    let said = format!("{}{}", reply.head, reply.text()).to_lowercase();
    assert!(!said.contains(CANARY), "{} comes back: {said}", shown());
    for field in ["server", "x-powered-by", "set-cookie", "location"] {
        assert_eq!(reply.header(field), None, "{}", shown());
    }
    reply
}

/// Checks that the text of an error is one of the fixed texts.
#[track_caller]
fn check_refusal(reply: &Response, status: u16) {
    assert_eq!(
        (reply.status, reply.header("connection")),
        (status, Some("close")),
        "{reply:?}"
    );
    assert!(reply.body.len() < 100, "{reply:?}");
}

/// Ends a server and checks its log: no panic, and no line that clients could trigger at will.
#[track_caller]
fn ends_quietly(mut server: Process) {
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let lines = server.lines();
    let is_expected = |line: &String| line.contains(" on http://") || line.contains("events since");
    let unexpected: Vec<_> = lines.iter().filter(|line| !is_expected(line)).collect();
    assert!(
        unexpected
            .iter()
            .all(|line| !line.contains("panicked") && !line.contains(CANARY)),
        "{unexpected:#?}"
    );
    assert!(unexpected.len() < 5, "{unexpected:#?}");
}

/// Each target gets the expected response, as computed by the test itself.
#[test]
fn every_target_gets_its_documented_status() {
    let (server, addr) = serve_sample(&[]);
    let subject = Subject::of(addr);
    let targets = subject.targets();
    assert!(targets.len() > 5000, "{}", targets.len());
    let (mut connection, mut found_count) = (None, 0);
    let before = cpu_time(server.child.id()).unwrap();
    for target in &targets {
        let shown = target.escape_ascii();
        for method in [&b"GET"[..], b"HEAD"] {
            let reply = ask(&mut connection, addr, method, target);
            let (status, body) = (reply.status, &reply.body);
            match subject.due(target) {
                Due::Body(due) => {
                    assert_eq!(status, 200, "{shown}");
                    assert!(body == due || method == b"HEAD", "{shown}");
                    found_count += 1;
                }
                Due::Miss => {
                    assert_eq!(status, 404, "{shown}");
                    assert!(
                        MISSES.contains(&&*reply.text()) || method == b"HEAD",
                        "{shown}"
                    );
                }
                Due::OnlyPost => assert_eq!(status, 405, "{shown}"),
                Due::Refusal => check_refusal(&reply, 400),
            }
        }
    }
    assert!(found_count > 500, "{found_count}");
    let used = cpu_time(server.child.id()).unwrap() - before;
    let each = used / u32::try_from(4 * targets.len()).unwrap();
    limit::time_at_most(
        "of CPU time for one request",
        each,
        Duration::from_millis(1),
    );
    ends_quietly(server);
}

#[test]
fn every_method_on_every_target_gets_its_documented_status() {
    let (server, addr) = serve_sample(&[]);
    let subject = Subject::of(addr);
    let targets = subject.targets();
    let long = "A".repeat(200);
    let tokens = "POST PUT DELETE OPTIONS PATCH TRACE PROPFIND get GeT M-SEARCH G%45T ".to_owned();
    let tokens = tokens + &long;
    // Methods with invalid characters, and CONNECT.
    let others = "GET\0 G\x1b[2JT G\u{c9}T  GE\"T GET\t CONNECT".split(' ');
    let mut connection = None;
    for target in targets.iter().step_by(20).chain([&b"/narinfos".to_vec()]) {
        let due = subject.due(target);
        for method in tokens.split(' ').map(str::as_bytes) {
            let reply = ask(&mut connection, addr, method, target);
            match due {
                Due::Refusal if method == b"OPTIONS" && target == b"*" => {
                    assert_eq!(reply.status, 405)
                }
                Due::Refusal => check_refusal(&reply, 400),
                Due::OnlyPost if method == b"POST" => {
                    assert_eq!(
                        (reply.status, &*reply.text()),
                        (200, "narinfos 1 0\nend 0 0 0\n")
                    );
                }
                _ => {
                    let text = match method {
                        b"PUT" => NO_UPLOADS,
                        _ => NOT_ALLOWED,
                    };
                    assert_eq!(
                        (reply.status, &*reply.text()),
                        (405, text),
                        "{}",
                        target.escape_ascii()
                    );
                    assert_eq!(reply.header("allow"), Some("GET, HEAD"));
                }
            }
        }
        for method in others.clone().map(str::as_bytes) {
            check_refusal(&ask(&mut connection, addr, method, target), 400);
        }
    }
    let reply = ask(&mut connection, addr, b"GET", b"/narinfos");
    assert_eq!(reply.text(), ONLY_POST);
    ends_quietly(server);
}

#[test]
fn absolute_authority_and_asterisk_targets() {
    let (server, addr) = serve_sample(&[]);
    let mut connection = None;
    let refused = "* a:80 a  nix-cache-info ?x http://b/nix-cache-info http://a:81/nix-cache-info \
                   http:///nix-cache-info http:// http:/nix-cache-info ftp://a/nix-cache-info \
                   http://u@a/nix-cache-info file:///etc/passwd http://a\\@b/nix-cache-info \
                   http://a#@b/nix-cache-info http://a/nix-cache-info#x";
    let missing = "http://a http://a?x http://a//nix-cache-info //a/nix-cache-info \
                   /http://a/nix-cache-info";
    let found = "http://a/nix-cache-info HTTP://A/nix-cache-info";
    let all = [(refused, 400), (missing, 404), (found, 200)];
    for (target, status) in all.iter().flat_map(|(targets, status)| {
        let targets = targets.split(' ');
        targets.map(move |target| (target, *status))
    }) {
        for method in [&b"GET"[..], b"HEAD"] {
            let reply = ask(&mut connection, addr, method, target.as_bytes());
            assert_eq!(reply.status, status, "{target}");
            if status == 400 {
                check_refusal(&reply, 400);
            }
        }
    }
    ends_quietly(server);
}

#[test]
fn a_target_of_the_greatest_length_and_one_past_it() {
    let (server, addr) = serve_sample(&[]);
    let subject = Subject::of(addr);
    let mut connection = None;
    for route in ROUTES.iter().chain(ABSENT) {
        let route = subject.fill(route);
        for filler in ["a", "../", "%2e%00", "&hash="] {
            for (len, is_long) in [(TARGET_LEN_MAX, false), (TARGET_LEN_MAX + 1, true)] {
                let mut target = format!("{route}?{}", filler.repeat(len));
                target.truncate(len);
                for target in [target.clone(), target.replacen('?', "a", 1)] {
                    let reply = ask(&mut connection, addr, b"GET", target.as_bytes());
                    if is_long {
                        check_refusal(&reply, 414);
                    } else {
                        assert!(matches!(reply.status, 200 | 404), "{route} {filler}");
                    }
                }
            }
        }
    }
    ends_quietly(server);
}

#[test]
fn hostile_lists_of_paths_are_refused() {
    let (server, addr) = serve_sample(&[]);
    let hash = hash_part(&sample("built")).to_owned();
    let mut connection = Connection::connect(addr);
    let mut post = |body: &[u8]| {
        let len = body.len();
        connection.send(
            format!("POST /narinfos HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n")
                .as_bytes(),
        );
        connection.send(body);
        connection.send(b"GET /nix-cache-info HTTP/1.1\r\nHost: a\r\n\r\n");
        let (reply, next) = (connection.response(false), connection.response(false));
        assert_eq!((next.status, &*next.text()), (200, INFO));
        assert!(!reply.text().contains(CANARY), "{reply:?}");
        reply
    };
    for line in [
        &b"../../../etc/passwd"[..],
        b"/etc/passwd",
        b"c4nary",
        b"\0",
        b"\xff\xfe",
        b"\x1b[2J",
        b"/nix/store/../../etc/passwd",
        b"GET /nix-cache-info HTTP/1.1",
        b"0\r\n\r\n",
        b"absent zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
        b"end 0 0 0",
        b"<script>c4nary</script>",
        format!("{hash}/../c4nary").as_bytes(),
        format!("/nix/store/{hash}-a/b").as_bytes(),
        format!("{hash}-").as_bytes(),
        format!("{hash} c4nary").as_bytes(),
        format!("{hash}-a\0b").as_bytes(),
        format!("{hash}\r").as_bytes(),
        format!("{hash}-{}", "n".repeat(212)).as_bytes(),
        hash.to_uppercase().as_bytes(),
        &[b'a'; 100_000],
    ] {
        for (before, at) in [("", 1), (&*format!("{hash}\n"), 2)] {
            let reply = post(&[before.as_bytes(), line, b"\n", hash.as_bytes()].concat());
            // The log contains the position of the error, but not the bytes.
            let said = format!(
                "Line {at} is neither a hash part nor a base name nor a path of this store.\n"
            );
            assert_eq!(
                (reply.status, reply.text()),
                (400, said),
                "{}",
                line.escape_ascii()
            );
        }
    }
    let repeated = |count| format!("{hash}\n").repeat(count);
    let reply = post(repeated(100_000).as_bytes());
    assert!(reply.status == 200 && reply.text().ends_with("end 100000 0 0\n"));
    assert_eq!(post(repeated(100_001).as_bytes()).status, 413);
    // Longer than any body that the server reads.
    let len = (16 << 20) + 1;
    connection.send(
        format!("POST /narinfos HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n").as_bytes(),
    );
    check_refusal(&connection.response(false), 413);
    ends_quietly(server);
}

/// The server opens and looks up no files except those of the store, as recorded by strace.
#[test]
fn no_file_outside_of_the_store_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let may_trace = Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .status();
    if !may_trace.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "no strace");
        println!("NOT TESTED: which files are opened. There is no strace here");
        return;
    }
    let mut command = bare("strace");
    command.args("-f --seccomp-bpf -qq -xx -s 4096 -e trace=%file -o".split(' '));
    command.arg(&trace).arg("--").arg(nix_serve().get_program());
    command.args("--listen 127.0.0.1:0 --nar-cache-size 0 --store".split(' '));
    command.arg(local(&sample_root()));
    let (mut tracer, addr) = Process::serving(&mut command);
    let subject = Subject::of(addr);
    let seen_len = fs::read_to_string(&trace).unwrap().len();
    let mut connection = None;
    for target in subject.targets().iter().step_by(6) {
        ask(&mut connection, addr, b"GET", target);
    }
    let tracer_pid = tracer.child.id();
    let children = fs::read_to_string(format!("/proc/{tracer_pid}/task/{tracer_pid}/children"));
    signal(children.unwrap().trim().parse().unwrap(), "TERM");
    assert_eq!(tracer.wait(), Some(0));
    let text = fs::read_to_string(&trace).unwrap();
    let (root, mut count) = (sample_root(), 0);
    for line in text[seen_len..].lines() {
        let Some(quoted) = line.split('"').nth(1) else {
            continue;
        };
        let name: Vec<u8> = quoted
            .split("\\x")
            .skip(1)
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect();
        let name = String::from_utf8_lossy(&name).into_owned();
        let is_plain = !name.split('/').any(|part| matches!(part, "." | ".."));
        let is_below = is_plain && Path::new(&name).starts_with(root.join("nix"));
        // The name is relative to an open directory.
        let is_child = !name.contains('/') && name != ".." && !line.contains("AT_FDCWD");
        // SQLite checks whether a parent of the database is a link.
        let is_above = root.starts_with(&name);
        assert!(is_below || is_child || is_above, "{name:?} in {line}");
        count += 1;
    }
    assert!(count > 100, "{count}");
}
