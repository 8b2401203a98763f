//! The floor of a first copy: each part of the server's work measured alone, on one thread.
//!
//! A server that sends store paths for the first time must at least receive the requests, read the
//! files, hash their bytes and send them; one that keeps a copy also writes it. No server is
//! measured here.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest, Sha256};

use crate::store::{Store, base_name};

/// Number of bytes that are read, hashed, written and sent at once.
const PIECE_LEN: usize = 256 << 10;

/// Number of rounds; the smallest figure of each part counts.
const ROUNDS: usize = 3;

/// Lengths in bytes of a request for a narinfo or a NAR, and of a response without its NAR.
const REQUEST_LEN: usize = 180;
const ANSWER_LEN: usize = 700;

/// Number of requests for each path: for its narinfo, and for its NAR.
const REQUESTS_PER_PATH: usize = 2;

/// CPU times of the parts: requests, reading, hashing, sending, writing a copy.
type Parts = [Duration; 5];

/// Measures the floors of the copies in the report, and describes each in one line.
pub(crate) fn describe(store: &Store, scratch: &Path) -> Result<Vec<String>> {
    let tree = std::slice::from_ref(&store.tree);
    let copies = [
        ("a closure of 400 paths", &*store.closure),
        ("the tree", tree),
    ];
    let lines = copies.map(|(name, paths)| {
        let files = files(store, paths)?;
        let parts = measure(paths.len(), &files, scratch)?;
        let [requests, read, hash, send, write] = parts.map(|part| part.as_secs_f64() * 1e3);
        Ok(format!(
            "Floor of the first copy of {name} ({} files), in ms of CPU time on one thread: \
             requests {requests:.0}, read {read:.0}, SHA-256 {hash:.0}, send {send:.0}; together \
             {:.0}, and {write:.0} more to write a copy.",
            files.len(),
            requests + read + hash + send,
        ))
    });
    lines.into_iter().collect()
}

/// Returns all regular files of these store paths.
fn files(store: &Store, paths: &[String]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let in_store = |path: &String| store.dir.join("nix/store").join(base_name(path));
    let mut pending: Vec<PathBuf> = paths.iter().map(in_store).collect();
    while let Some(path) = pending.pop() {
        let kind = path.symlink_metadata()?.file_type();
        if kind.is_dir() {
            for entry in fs::read_dir(&path)? {
                pending.push(entry?.path());
            }
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

fn measure(path_count: usize, files: &[PathBuf], scratch: &Path) -> Result<Parts> {
    let mut buffer = vec![0; PIECE_LEN];
    // The first read brings the files into the page cache.
    let len = read(files, &mut buffer)?;
    let mut least = [Duration::MAX; 5];
    for _ in 0..ROUNDS {
        let parts = [
            requests(path_count * REQUESTS_PER_PATH)?,
            cpu_of(|| read(files, &mut buffer).map(drop))?,
            cpu_of(|| hash(len, &buffer))?,
            send(len, &buffer)?,
            cpu_of(|| write(len, &buffer, scratch))?,
        ];
        for (least, part) in least.iter_mut().zip(parts) {
            *least = part.min(*least);
        }
    }
    Ok(least)
}

/// Returns the CPU time of this thread for `work`.
fn cpu_of(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let before = thread_cpu()?;
    work()?;
    Ok(thread_cpu()?.saturating_sub(before))
}

fn thread_cpu() -> Result<Duration> {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).context("CPU time of a thread")
}

/// Reads all files; returns their length.
fn read(files: &[PathBuf], buffer: &mut [u8]) -> Result<usize> {
    let mut len = 0;
    for path in files {
        let mut file = File::open(path)?;
        let mut left = usize::try_from(file.metadata()?.len())?;
        len += left;
        while left > 0 {
            let piece_len = left.min(buffer.len());
            let filled = file.read(&mut buffer[..piece_len])?;
            if filled == 0 {
                bail!("{}: shorter than its size", path.display());
            }
            left -= filled;
        }
    }
    Ok(len)
}

/// Hashes `len` bytes of a buffer that stays in the processor's cache.
fn hash(len: usize, buffer: &[u8]) -> Result<()> {
    let mut hash = Sha256::new();
    pieces(len, buffer, |piece| {
        hash.update(piece);
        Ok(())
    })?;
    std::hint::black_box(hash.finalize());
    Ok(())
}

/// Writes `len` bytes into a new file without a name.
fn write(len: usize, buffer: &[u8], scratch: &Path) -> Result<()> {
    let mut file = tempfile::tempfile_in(scratch)?;
    Ok(pieces(len, buffer, |piece| file.write_all(piece))?)
}

/// Sends `len` bytes to a thread that discards them; returns the CPU time of the sender.
fn send(len: usize, buffer: &[u8]) -> Result<Duration> {
    with_peer(
        |mut stream| io::copy(&mut stream, &mut io::sink()).map(drop),
        |mut stream| {
            pieces(len, buffer, |piece| stream.write_all(piece))?;
            Ok(())
        },
    )
}

/// Answers requests one by one; returns the CPU time of the answering thread.
fn requests(count: usize) -> Result<Duration> {
    let ask = move |mut stream: TcpStream| {
        let mut answer = [0; ANSWER_LEN];
        (0..count).try_for_each(|_| {
            stream.write_all(&[b'x'; REQUEST_LEN])?;
            stream.read_exact(&mut answer)
        })
    };
    with_peer(ask, |mut stream| {
        let mut request = [0; REQUEST_LEN];
        for _ in 0..count {
            stream.read_exact(&mut request)?;
            stream.write_all(&[b'x'; ANSWER_LEN])?;
        }
        Ok(())
    })
}

/// Runs both ends of a TCP connection; returns the CPU time of `serve`.
fn with_peer(
    peer: impl FnOnce(TcpStream) -> io::Result<()> + Send,
    serve: impl FnOnce(TcpStream) -> Result<()>,
) -> Result<Duration> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    stream.set_nodelay(true)?;
    let (accepted, _) = listener.accept()?;
    accepted.set_nodelay(true)?;
    thread::scope(|scope| {
        let peer = scope.spawn(|| peer(stream));
        let cpu = cpu_of(|| serve(accepted))?;
        match peer.join() {
            Ok(done) => done?,
            Err(_panic) => bail!("the client thread has panicked"),
        }
        Ok(cpu)
    })
}

/// Calls `each` with pieces of the buffer of `len` bytes in total.
fn pieces(
    len: usize,
    buffer: &[u8],
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut left = len;
    while left > 0 {
        let piece = buffer.get(..left.min(buffer.len())).unwrap_or_default();
        each(piece)?;
        left -= piece.len();
    }
    Ok(())
}
