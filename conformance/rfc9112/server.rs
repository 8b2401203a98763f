//! The server under test.

use std::net::{Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use samovar_http::{Listener, Server};

use crate::own::{self, Echo};

enum Target {
    /// External server at this address.
    Url(SocketAddr),
    /// Child process, which must exit at the end of its standard input.
    Command(
        SocketAddr,
        #[expect(dead_code, reason = "kept to be seen in a debugger")] Child,
    ),
    /// Our HTTP engine, in this process.
    Own(Server<Echo>),
}

/// Returns the address of the server under test, which is started on first use.
pub(crate) fn addr() -> SocketAddr {
    static TARGET: OnceLock<Target> = OnceLock::new();
    match TARGET.get_or_init(start) {
        Target::Url(addr) | Target::Command(addr, _) => *addr,
        Target::Own(server) => server.local_addrs()[0],
    }
}

fn start() -> Target {
    if let Ok(url) = std::env::var("CONFORMANCE_URL") {
        let authority = url.trim_start_matches("http://").trim_end_matches('/');
        return Target::Url(authority.to_socket_addrs().unwrap().next().unwrap());
    }
    if let Ok(command) = std::env::var("CONFORMANCE_COMMAND") {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, testkit::free_port()));
        let command = command.replace("{port}", &addr.port().to_string());
        // The script waits for the end of its input, which comes when the tests end, and then kills
        // the server.
        let script = "sh -c \"exec $1\" & pid=$!; cat > /dev/null; kill $pid";
        let child = Command::new("sh")
            .args(["-c", script, "sh", &command])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while TcpStream::connect(addr).is_err() {
            let waited = begin.elapsed();
            assert!(
                waited < Duration::from_secs(20),
                "{command:?} does not listen"
            );
            std::thread::yield_now();
        }
        return Target::Command(addr, child);
    }
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 1024).unwrap();
    Target::Own(own::start(vec![listener]).unwrap())
}
