//! HTTPS with compression, and certificate renewal without a restart.
//!
//! ```text
//! openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 \
//!     -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem
//! cargo run --example tls 127.0.0.1:8443 cert.pem key.pem
//! curl --cacert cert.pem --compressed https://localhost:8443/
//! ```
//!
//! Each line on standard input reloads the certificate files.

#![expect(clippy::print_stderr, reason = "a terminal is all that an example has")]

use std::error::Error;
use std::time::Duration;

use samovar_http::tls::TlsConfig;
use samovar_http::{Listener, Request, Router, Server};

fn index(request: &mut Request) -> String {
    let secure = request.head().is_secure();
    format!("Is this secure? {secure}\n").repeat(100)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: &str| arguments.next().unwrap_or(default.to_owned());
    let addr = argument("127.0.0.1:8443");
    let tls = TlsConfig::files(argument("cert.pem"), argument("key.pem"))?;
    let server = Server::builder(Router::new().get("/", index))
        .listen(Listener::bind(addr)?.tls(tls.clone()))
        .start()?;
    for line in std::io::stdin().lines() {
        line?;
        // If the new files are invalid, the old certificate stays in use.
        if let Err(error) = tls.reload() {
            eprintln!("{error}");
        }
    }
    server.drain(Duration::from_secs(5));
    Ok(())
}
