//! A right first login is answered soon beside many wrong ones: from many addresses, for names that
//! do not exist or for the user's own, and from clients that have left.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use support::{File, Server, secret_file, serve, user};
use testkit::eventually;
use testkit::http1::Connection;

/// A server with the user ada, whose password is `secret`.
struct Scene {
    _file: File,
    server: Server,
    address: SocketAddr,
}

impl Scene {
    fn new() -> Self {
        let file = File::new("");
        let folder = file.path.parent().unwrap();
        let users = secret_file(folder, "users", &user("ada", "secret"));
        file.write(&format!(
            "admin.listen = []\nworkers = 4\n[access]\nusers-file = {users:?}\n"
        ));
        let (server, address) = serve(&file);
        Self {
            _file: file,
            server,
            address: address.parse().unwrap(),
        }
    }

    /// Connects from this address and sends a login.
    fn login(&self, from: Ipv4Addr, name: &str, password: &str) -> Connection {
        let address = match self.address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(address) => unreachable!("the server listens on IPv4, not {address}"),
        };
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddrV4::new(from, 0)).unwrap();
        connect(&socket, &address).unwrap();
        let mut stream = TcpStream::from(socket);
        let login = STANDARD.encode(format!("{name}:{password}"));
        write!(
            stream,
            "GET /nix-cache-info HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {login}\r\n\r\n"
        )
        .unwrap();
        Connection::over(stream)
    }

    /// Asserts that a right login from another address is accepted. Returns how many clients were
    /// refused before.
    #[track_caller]
    fn refused_before_a_right_login(&self) -> usize {
        let mut right = self.login(Ipv4Addr::new(127, 0, 0, 9), "ada", "secret");
        assert_eq!(right.response(false).status, 200);
        self.refused_count()
    }

    /// Returns how many clients the server has refused until now, by its event counters.
    fn refused_count(&self) -> usize {
        let before = self.server.count("events since the start");
        self.server.signal("USR1");
        eventually("the events are logged", || {
            self.server.count("events since the start") > before
        });
        let lines = self.server.lines();
        let line = lines
            .iter()
            .rfind(|line| line.contains("events since"))
            .unwrap();
        let name = "access_denied=";
        let count = line.split_once(name).map(|(_, rest)| rest);
        count.map_or(0, |rest| {
            let end = rest.find(|c: char| !c.is_ascii_digit());
            rest[..end.unwrap_or(rest.len())].parse().unwrap()
        })
    }
}

fn attacker(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 9, number, 1)
}

#[test]
fn names_that_do_not_exist_delay_nobody() {
    let scene = Scene::new();
    let wrong: Vec<Connection> = (0..240)
        .map(|number| {
            let name = format!("guess-{number}");
            scene.login(attacker(number), &name, "wrong")
        })
        .collect();
    // Fifteen names are expected to come first, too.
    let count = scene.refused_before_a_right_login();
    assert!(count < 60, "{count} of {} before", wrong.len());
    drop(wrong);
}

#[test]
fn addresses_that_guess_for_the_same_name_take_turns_with_the_user() {
    let scene = Scene::new();
    let wrong: Vec<Connection> = (0..240)
        .map(|number| {
            let password = format!("wrong-{number}");
            scene.login(attacker(number % 20), "ada", &password)
        })
        .collect();
    let count = scene.refused_before_a_right_login();
    assert!(count < 60, "{count} of {} before", wrong.len());
    drop(wrong);
}

#[test]
fn passwords_of_clients_that_have_left_are_not_hashed() {
    let scene = Scene::new();
    for number in 0..240 {
        // Each password is another one: a wrong one is remembered, and then refused without a hash.
        let password = format!("wrong-{number}");
        drop(scene.login(attacker(number), "ada", &password));
    }
    let count = scene.refused_before_a_right_login();
    assert!(count < 60, "{count} before");
    let mut last = scene.login(Ipv4Addr::new(127, 0, 0, 8), "eve", "wrong");
    assert_eq!(last.response(false).status, 401);
    let count = scene.refused_count();
    assert!(count < 61, "{count} after");
}
