//! A cache that is hidden from a client (`refuse-with = "404"`) answers like a URL that does not
//! exist, whatever the client sends: also before a request body, and over HTTP/2.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::Shutdown;

use support::{File, samovar, secret_file, serve, user};
use testkit::http1::Connection;
use testkit::http2 as h2;
use testkit::process::{Process, output};

/// A token in the right form that does not exist.
const FORGED: &str = "smv1_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// The logins ada:wrong and ada with [`FORGED`] as her password.
const WRONG: &str = "Basic YWRhOndyb25n";
const FORGED_PASSWORD: &str =
    "Basic YWRhOnNtdjFfQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB";

/// A server with a hidden cache that has users and takes uploads, and the other caches in `others`.
struct Site {
    _file: File,
    _server: Process,
    address: String,
    /// Whether `others` has a cache at `/`.
    has_root: bool,
    /// A valid token for the cache `main`.
    token: String,
    /// Number of requests so far. Each comes from an address of its own, so that no limit of wrong
    /// passwords is reached.
    count: std::cell::Cell<u32>,
}

impl Site {
    fn new(others: &str) -> Self {
        let file = File::new("");
        let folder = file.path.parent().unwrap();
        let users = secret_file(folder, "users", &user("ada", "secret"));
        let storage = folder.join("storage");
        file.write(&format!(
            "admin.listen = []\nstorage = {storage:?}\naccess.trusted-proxies = [\"127.0.0.1\"]\n\
             [caches.hidden.access]\nusers-file = {users:?}\nnetworks = [\"192.0.2.0/24\"]\n\
             refuse-with = \"404\"\n{others}"
        ));
        let (server, address) = serve(&file);
        let mut command = samovar();
        command.args([
            "token",
            "create",
            "--name",
            "tests",
            "--cache",
            "main",
            "--storage",
        ]);
        let token = output(command.arg(&storage)).trim().to_owned();
        let count = std::cell::Cell::new(0);
        let site = Self {
            _file: file,
            _server: server,
            address,
            has_root: others.contains("prefix = \"/\""),
            token,
            count,
        };
        // The server knows the token from its first request on.
        let bearer = format!("Bearer {}", site.token);
        site.exchange(
            "PUT",
            "/nix-cache-info",
            &bearer,
            "Content-Length: 0\r\n",
            "",
        );
        site
    }

    fn fields(&self, authorization: &str) -> String {
        let count = self.count.get();
        self.count.set(count + 1);
        let [.., high, low] = count.to_be_bytes();
        let from = format!("X-Forwarded-For: 198.51.{high}.{low}\r\n");
        match authorization {
            "" => from,
            _ => format!("{from}Authorization: {authorization}\r\n"),
        }
    }

    /// Sends a request without its body, waits for the first head from the server, and then sends
    /// the body and another request. Returns the first head, and all that the server has sent
    /// without dates.
    fn exchange(
        &self,
        method: &str,
        target: &str,
        authorization: &str,
        fields: &str,
        body: &str,
    ) -> (String, String) {
        let mut stream = Connection::connect(&self.address).stream;
        let own = self.fields(authorization);
        let head = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{own}{fields}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut received = Vec::new();
        let end = loop {
            let end = received.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                break end;
            }
            let mut piece = [0; 4096];
            // Also 0 if the server sends nothing in time.
            let len = stream.read(&mut piece).unwrap_or(0);
            assert!(len > 0, "no response: {method} {target} {fields}");
            received.extend_from_slice(&piece[..len]);
        };
        let undated = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let lines = text.split_inclusive('\n');
            lines
                .filter(|line| !line.starts_with("Date: "))
                .collect::<String>()
        };
        let first = undated(&received[..end]);
        // The server may have closed the connection after its response.
        let next = "GET /open/nix-cache-info HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        drop(stream.write_all(format!("{body}{next}").as_bytes()));
        drop(stream.shutdown(Shutdown::Write));
        drop(stream.read_to_end(&mut received));
        (first, undated(&received))
    }

    /// Compares the answers to the same request for the hidden cache and for none.
    #[track_caller]
    fn compare(&self, method: &str, rest: &str, authorization: &str, fields: &str, body: &str) {
        let of = |name: &str| {
            self.exchange(
                method,
                &format!("/{name}{rest}"),
                authorization,
                fields,
                body,
            )
        };
        let (hidden, nowhere) = (of("hidden"), of("nowhere"));
        assert_eq!(hidden, nowhere, "{method} {rest} {authorization} {fields}");
    }

    /// Compares the answers to many requests. `awaits`: whether the cache that answers receives the
    /// bodies of clients with tokens before it checks them.
    fn compare_all(&self, awaits: bool) {
        let bodies = [
            ("", ""),
            ("Content-Length: 3\r\n", "abc"),
            ("Expect: 100-continue\r\nContent-Length: 3\r\n", "abc"),
            ("Content-Length: 100\r\n", "abc"),
            ("Expect: 100-continue\r\nContent-Length: 100000\r\n", "abc"),
            ("Content-Length: 1000000000000\r\n", "abc"),
            ("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"),
            (
                "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n",
                "0\r\n\r\n",
            ),
        ];
        let targets = [
            "/nix-cache-info",
            "/narinfos",
            "/upload/nix-cache-info",
            "/upload/push/1/x/open",
            "/nar/00000000000000000000000000000000.nar",
        ];
        let valid = format!("Bearer {}", self.token);
        let forged = format!("Bearer {FORGED}");
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE"] {
            for target in targets {
                for (fields, body) in bodies {
                    // With these fields, the server sends something before any body that it awaits.
                    let is_told = fields.is_empty() || fields.starts_with("Expect");
                    for authorization in ["", &forged, FORGED_PASSWORD, &valid] {
                        let is_awaited = match authorization {
                            "" => false,
                            _ if authorization == valid => awaits || method == "PUT",
                            _ => awaits,
                        };
                        if is_told || !is_awaited {
                            self.compare(method, target, authorization, fields, body);
                        }
                    }
                }
            }
            // Verifying a password takes long.
            for (fields, body) in &bodies[1..3] {
                self.compare(method, "/nix-cache-info", WRONG, fields, body);
            }
        }
    }

    /// Returns what the server sends over HTTP/2 for a request of whose body only a part arrives:
    /// its frames, as kinds and flags, and the status and header fields without the date.
    fn exchange_h2(
        &self,
        method: &str,
        target: &str,
        authorization: &str,
        expects: bool,
    ) -> String {
        let mut fields = vec![("x-forwarded-for", "198.51.100.7")];
        if !authorization.is_empty() {
            fields.push(("authorization", authorization));
        }
        if expects {
            fields.push(("expect", "100-continue"));
        }
        let mut block = b"\x86\x41\x01a".to_vec();
        block.extend(h2::literal(":method", method));
        block.extend(h2::literal(":path", target));
        for (name, value) in &fields {
            block.extend(h2::literal(name, value));
        }
        let mut raw = h2::Raw::connect(self.address.parse().unwrap());
        raw.send(&h2::frame(h2::HEADERS, 4, 1, &block));
        if !expects {
            raw.send(&h2::frame(h2::DATA, 0, 1, b"abc"));
        }
        let mut frames = Vec::new();
        while let Some(frame) = raw.next_frame() {
            if frame.stream != 0 {
                frames.push((frame.kind, frame.flags));
            }
            // The response has ended, or is interim.
            if frame.stream != 0 && (frame.flags & 1 == 1 || frame.kind == h2::RST_STREAM) {
                break;
            }
            if frames.len() == 1 && frame.kind == h2::HEADERS && expects {
                raw.send(&h2::frame(h2::DATA, 1, 1, b"abc"));
            }
        }
        let mut request = h2::get(target);
        *request.method_mut() = method.parse().unwrap();
        for (name, value) in fields {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let mut client = h2::Client::connect(self.address.parse().unwrap());
        let (mut future, _send) = client.start(request, expects);
        let (mut head, _) = client.head(&mut future).unwrap().into_parts();
        head.headers.remove("date");
        format!("{frames:?} {} {:?}", head.status, head.headers)
    }

    /// As [`compare_all`](Self::compare_all), over HTTP/2.
    fn compare_h2(&self, awaits: bool) {
        let forged = format!("Bearer {FORGED}");
        for method in ["GET", "POST", "PUT", "DELETE"] {
            for authorization in ["", &forged, FORGED_PASSWORD, WRONG] {
                for expects in [false, true] {
                    // The rest of the body of a refused upload is awaited.
                    let is_awaited = match method {
                        "PUT" => self.has_root,
                        _ => awaits && !["", WRONG].contains(&authorization),
                    };
                    if is_awaited && !expects {
                        continue;
                    }
                    let of = |name: &str| {
                        let target = format!("/{name}/upload/nix-cache-info");
                        self.exchange_h2(method, &target, authorization, expects)
                    };
                    let (hidden, nowhere) = (of("hidden"), of("nowhere"));
                    assert_eq!(hidden, nowhere, "{method} {authorization} {expects}");
                }
            }
        }
    }
}

#[test]
fn a_hidden_cache_answers_as_if_it_did_not_exist() {
    let site = Site::new("[caches.open]\n[caches.main]\n");
    site.compare_all(false);
    site.compare_h2(false);
}

#[test]
fn a_hidden_cache_below_another_answers_as_that_one() {
    let site = Site::new("[caches.open]\n[caches.main]\nprefix = \"/\"\n");
    site.compare_all(false);
    site.compare_h2(false);
}

#[test]
fn a_hidden_cache_below_a_private_one_answers_as_that_one() {
    let private = "[caches.main.access]\nnetworks = [\"192.0.2.0/24\"]\n";
    let site = Site::new(&format!(
        "[caches.open]\n[caches.main]\nprefix = \"/\"\n{private}"
    ));
    site.compare_all(true);
    site.compare_h2(true);
}

/// Also requests for hidden caches count in the cache that answers them.
#[test]
fn requests_for_a_hidden_cache_are_limited_as_those_for_none() {
    let limited = "[caches.main]\nprefix = \"/\"\naccess.rate = 1\naccess.burst = 3\n";
    let site = Site::new(&format!("[caches.open]\n{limited}"));
    for name in ["nowhere", "hidden"] {
        let mut connection = Connection::connect(&site.address);
        let from = match name {
            "hidden" => "203.0.113.1",
            _ => "203.0.113.2",
        };
        let mut statuses = (0..30).map(|_| {
            connection.send(format!(
                "GET /{name}/nix-cache-info HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {from}\r\n\
                 Authorization: Bearer {FORGED}\r\n\r\n"
            ));
            connection.response(false).status
        });
        assert_eq!(statuses.next(), Some(404), "{name}");
        assert!(statuses.any(|status| status == 429), "{name}");
    }
}

/// A client that the cache admits is served from its first request on, with a body of any kind.
#[test]
fn the_first_request_of_a_client_that_is_admitted_has_a_body() {
    let known = "Basic YWRhOnNlY3JldA==";
    let site = Site::new("[caches.open]\n[caches.main]\nprefix = \"/\"\n");
    let fields = "Expect: 100-continue\r\nContent-Length: 33\r\n";
    let body = "00000000000000000000000000000000\n";
    let (first, all) = site.exchange("POST", "/hidden/narinfos", known, fields, body);
    assert!(first.starts_with("HTTP/1.1 100"), "{all}");
    assert!(all.contains("HTTP/1.1 200 OK\r\n"), "{all}");
    let (first, _) = site.exchange("GET", "/hidden/nix-cache-info", known, "", "");
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
}
