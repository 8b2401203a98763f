//! The server that suites of other projects are run against: `echo [ADDRESS]`. Prints where it
//! listens, and ends with its input.

#![expect(clippy::print_stdout, reason = "says where it listens")]

#[path = "../own.rs"]
mod own;

use std::io::Read;
use std::time::Duration;

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:0".into());
    let server = own::start(addr.parse().map_err(std::io::Error::other)?)?;
    for addr in server.local_addrs() {
        println!("{addr}");
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.drain(Duration::from_secs(5));
    Ok(())
}
