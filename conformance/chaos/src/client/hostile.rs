//! Hostile clients: the server refuses their requests, and other clients are unaffected.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::Result;

use crate::world::{Cause, World, lock};
use testkit::random::SplitMix64;

/// Request heads that RFC 9112 or a limit of the server forbids.
const HEADS: [&str; 12] = [
    "GET / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "GET / HTTP/1.1\nHost: a\n\n",
    "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/3.7\r\nHost: a\r\n\r\n",
    "POST /narinfos HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST /narinfos HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "POST /narinfos HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
    "POST /narinfos HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "POST /narinfos HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n : folded\r\n\r\n",
    "\0\x01\x02\x03 / HTTP/1.1\r\nHost: a\r\n\r\n",
];

/// Attacks the server until the run ends.
pub(crate) fn run(world: &World, name: &str) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, name);
    while world.goes_on() {
        let began = world.now();
        let Some(address) = lock(&world.addresses).plain else {
            continue;
        };
        if let Ok(stream) = TcpStream::connect(address)
            && let Ok(said) = attack(world, &mut random, stream)
        {
            let status = said.get(9..12).unwrap_or_default();
            let text = String::from_utf8_lossy(status).into_owned();
            world.count(&format!("hostile {text}"));
            let is_refused = said.is_empty() || text.starts_with('4') || text == "501";
            let is_busy = text == "503" && world.had(&[Cause::FewDescriptors], began, world.now());
            if !is_refused && text != "505" && !is_busy && !said.starts_with(b"\0\0") {
                let said = String::from_utf8_lossy(&said).into_owned();
                world.finding(format_args!("an attack was answered with {said:?}"));
            }
        }
        world.pause(15);
    }
    Ok(())
}

/// Performs a random attack. Returns the response; it is empty for attacks that expect none.
fn attack(world: &World, random: &mut SplitMix64, mut stream: TcpStream) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    match random.index(6) {
        0 | 1 => stream.write_all(HEADS[random.index(HEADS.len())].as_bytes())?,
        2 => {
            // Send a header field that exceeds every limit.
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")?;
            stream.write_all(&vec![b'x'; 20_000])?;
        }
        3 => {
            let mut noise = random.bytes(2000);
            noise.extend(b"\r\n\r\n");
            stream.write_all(&noise)?;
        }
        4 => {
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
            stream.write_all(&random.bytes(300))?;
        }
        _ => {
            // Send nothing, or an incomplete request line.
            let len = random.index(20);
            stream.write_all(&b"GET /nix-cache-info HTTP/1.1"[..len])?;
            world.pause(50);
            return Ok(Vec::new());
        }
    }
    let mut said = Vec::new();
    stream.take(4096).read_to_end(&mut said)?;
    Ok(said)
}
