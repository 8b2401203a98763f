//! Echo server for third-party conformance suites. It prints two addresses: one without TLS, one
//! with TLS and a self-signed certificate. It exits at the end of its standard input.

#![expect(clippy::print_stdout, reason = "says where it listens")]

#[path = "../own.rs"]
mod own;

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use samovar_http::Listener;
use samovar_http::tls::TlsConfig;

fn main() -> io::Result<()> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let secure = Listener::tcp(any, 1024)?.tls(certificate()?);
    let server = own::start(vec![Listener::tcp(any, 1024)?, secure])?;
    for addr in server.local_addrs() {
        println!("{addr}");
    }
    io::stdin().read_to_end(&mut Vec::new())?;
    server.drain(Duration::from_secs(5));
    Ok(())
}

fn certificate() -> io::Result<TlsConfig> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]);
    let made = made.map_err(io::Error::other)?;
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let config = TlsConfig::builder().certificate_pem(chain.as_bytes(), key.as_bytes());
    config.build().map_err(io::Error::other)
}
