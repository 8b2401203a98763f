//! Uploads prepared files as a stock client does: a PUT for each file.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testkit::http1::Connection;

use super::on_threads;

/// Uploads the files of each path in order, with the header line `field`, on `count` keep-alive
/// connections. Returns the time until all are acknowledged. Fails if a response is not a success.
pub(crate) fn all(
    address: SocketAddr,
    field: &str,
    paths: &[[(String, Vec<u8>); 2]],
    count: usize,
) -> Result<Duration> {
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    on_threads(count, || {
        let mut connection = Connection::try_connect(address)?;
        let mut sent = 0;
        while let Some(files) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            for (name, content) in files {
                let head = format!(
                    "PUT /upload/{name} HTTP/1.1\r\nHost: {address}\r\n{field}\r\n\
                     Content-Length: {}\r\n\r\n",
                    content.len()
                );
                connection.try_send([head.as_bytes(), content].concat())?;
                let response = connection.try_next(false)?.context("no response")?;
                let is_done = matches!(response.status, 200..=299);
                ensure!(is_done, "{name}: {} {}", response.status, response.text());
            }
            sent += 1;
        }
        Ok(sent)
    })?;
    Ok(started.elapsed())
}
