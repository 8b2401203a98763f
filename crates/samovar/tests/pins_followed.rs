//! A WebSocket tells clients each change of the pins of a cache. Clients that do not read are
//! disconnected.

mod support;
mod support_pins;
mod support_uploads;

use support::samovar;
use support_pins::Pins;
use support_uploads::{Site, send};
use testkit::eventually;
use testkit::http1::Connection;
use testkit::process::output;
use testkit::websocket::{CLOSE, Client, close, handshake};

/// Maximum number of sockets with one token.
const SOCKET_COUNT_MAX: usize = 256;

/// Returns a server with these options and two uploaded paths.
fn scene(options: &str) -> Pins {
    let site = Site::new();
    site.configure_empty(options);
    Pins::of(site, &["one", "two"])
}

impl Pins {
    /// Requests a WebSocket. `fields`: more header lines with their line ends.
    fn ask(&self, token: &str, fields: &str) -> Client {
        let authorization = match token {
            "" => String::new(),
            _ => format!("Authorization: Bearer {token}\r\n"),
        };
        let fields = format!("{authorization}{fields}");
        let request = handshake("/upload/pin-events", &fields);
        Client::ask(self.server.address, request)
    }

    /// Opens a WebSocket.
    #[track_caller]
    fn follow(&self, token: &str) -> Client {
        let client = self.ask(token, "");
        assert_eq!(client.response.status, 101, "{}", client.response.head);
        client
    }
}

/// Asserts that the next frame closes the socket with this code, and answers it.
#[track_caller]
fn expect_close(client: &mut Client, code: u16) {
    let (first, payload) = client.next_frame().expect("a close frame");
    assert_eq!(first, CLOSE, "{:?}", payload.escape_ascii().to_string());
    assert_eq!(payload.get(..2), Some(&code.to_be_bytes()[..]));
    client.send(close(code, ""));
    assert_eq!(client.next_frame(), None);
}

#[test]
fn each_change_is_a_message() {
    let pins = scene("[caches.default]\nprefix = \"/\"\n[caches.other]\n");
    pins.set("before", 0);
    let mut clients = [pins.follow(&pins.token), pins.follow(&pins.token)];
    let mut expect = |text: &str| {
        for client in &mut clients {
            client.expect_text(text);
        }
    };
    pins.set("mr%2Fapp%20%C3%A4", 0);
    expect("mr%2Fapp%20%C3%A4 1");
    pins.set("mr%2Fapp%20%C3%A4", 1);
    expect("mr%2Fapp%20%C3%A4 2");
    // A repetition, and the removal of another generation than the newest one, change nothing.
    pins.set("mr%2Fapp%20%C3%A4", 1);
    pins.remove("mr%2Fapp%20%C3%A4?generation=1");
    pins.set("before", 1);
    expect("before 2");
    pins.remove("before?generation=2");
    expect("before 1");
    pins.remove("mr%2Fapp%20%C3%A4");
    expect("mr%2Fapp%20%C3%A4 0");
    // Changes by other processes are messages, too.
    let mut pin = samovar();
    pin.args(["pin", "add", "main", &pins.paths[0], "--storage"]);
    output(pin.arg(pins.site.storage()));
    expect("main 1");
    pins.site
        .sql("update pin set expires_at = 1 where name = 'main'");
    expect("main 0");
    // A socket of another cache gets none of them.
    let token = format!("Authorization: Bearer {}\r\n", pins.token);
    let request = handshake("/other/upload/pin-events", &token);
    let mut other = Client::with(pins.server.address, request);
    pins.set("last", 0);
    expect("last 1");
    pins.server.process.signal("TERM");
    expect_close(&mut other, 1001);
}

#[test]
fn only_clients_that_may_read_pins_follow_them() {
    let pins = scene("[access]\nnetworks = [\"192.0.2.0/24\"]\n");
    let site = &pins.site;
    let token = |rights| site.token(&["--rights", rights]);
    let (reader, pinner, pusher) = (token("read"), token("pin"), token("push"));
    let expired = site.expired_token();
    for (token, fields, status) in [
        (&*reader, "", 101),
        (&pinner, "", 101),
        (&pusher, "", 403),
        ("", "", 401),
        (expired, "", 401),
        (&reader, "Origin: https://other.example\r\n", 403),
    ] {
        let response = pins.ask(token, fields).response;
        assert_eq!(response.status, status, "{fields}: {}", response.head);
    }
    let authorization = format!("Authorization: Bearer {reader}\r\n");
    for (method, target, status) in [
        ("GET", "/upload/pin-events", 426),
        ("POST", "/upload/pin-events", 426),
        ("GET", "/upload/pin-events?x=1", 400),
    ] {
        let address = pins.server.address;
        let response = send(address, method, target, &authorization, "");
        assert_eq!(
            response.status,
            status,
            "{method} {target}: {}",
            response.text()
        );
    }
}

#[test]
fn a_reload_and_a_revoked_token_close_the_socket() {
    let pins = scene("");
    let reader = pins.site.token(&["--rights", "read", "--name", "reader"]);
    let (mut client, mut revoked) = (pins.follow(&pins.token), pins.follow(&reader));
    pins.site.revoke("reader");
    pins.set("main", 0);
    client.expect_text("main 1");
    expect_close(&mut revoked, 1008);
    pins.server.process.signal("HUP");
    expect_close(&mut client, 1012);
    let mut client = pins.follow(&pins.token);
    pins.set("main", 1);
    client.expect_text("main 2");
}

#[test]
fn sockets_of_a_token_are_limited() {
    let pins = scene("");
    let clients: Vec<Client> = (0..SOCKET_COUNT_MAX)
        .map(|_| pins.follow(&pins.token))
        .collect();
    let refused = pins.ask(&pins.token, "").response;
    assert_eq!(refused.status, 429, "{}", refused.head);
    assert!(refused.header("retry-after").is_some());
    drop(clients);
    eventually("a socket may be opened", || {
        pins.ask(&pins.token, "").response.status == 101
    });
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    // More than the buffers of the sockets contain.
    const PIN_COUNT: usize = 9000;
    const NAME_LEN: usize = 240;
    const ROUND_COUNT: usize = 6;
    let pins = scene("");
    pins.set("sync", 0);
    pins.site.sql(&format!(
        "with recursive numbers(n) as \
             (select 1 union all select n + 1 from numbers where n < {PIN_COUNT}) \
         insert into pin (cache_id, name, generation, path_id, created_at) \
         select cache_id, printf('%0{NAME_LEN}d', n), 1, path_id, 0 from numbers, pin"
    ));
    let mut slow = pins.follow(&pins.token);
    for round in 1..=ROUND_COUNT {
        pins.site
            .sql("update pin set generation = generation + 1 where name <> 'sync'");
        // The response to this request follows the messages about the changes.
        let mut waiting = Connection::connect(pins.server.address);
        let authorization = format!("Authorization: Bearer {}", pins.token);
        let known = format!("If-None-Match: \"{round}\"");
        let target = "/upload/pin/sync?wait=50";
        waiting.send_request("GET", target, &[&authorization, &known]);
        pins.set("sync", round % 2);
        assert_eq!(waiting.response(false).status, 200);
    }
    // The server closes the socket, or resets it if this test was slow.
    let mut received_len = 0;
    while let Some((first, payload)) = slow.next_frame() {
        received_len += payload.len();
        if first == CLOSE {
            assert_eq!(payload.get(..2), Some(&1013_u16.to_be_bytes()[..]));
            slow.send(close(1013, ""));
        }
    }
    assert!(
        received_len < ROUND_COUNT * PIN_COUNT * NAME_LEN,
        "{received_len}"
    );
}
