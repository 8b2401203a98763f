//! The installed compression programs accept the same files as this server. They use the same
//! libraries as clients.

use std::process::{Command, Stdio};

use super::*;

/// Runs a program as a filter. Returns whether it succeeded, and its output. Returns `None` if the
/// program is not installed.
pub(super) fn run_program(
    program: &str,
    arguments: &[&str],
    input: &[u8],
) -> Option<(bool, Vec<u8>)> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // The write fails if the program finds an error and stops reading.
        scope.spawn(move || stdin.write_all(input).is_ok());
        child.wait_with_output().unwrap()
    });
    Some((output.status.success(), output.stdout))
}

fn filter(program: &str, arguments: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let (success, output) = run_program(program, arguments, input)?;
    assert!(success, "{program} {arguments:?}");
    Some(output)
}

#[test]
fn output_of_programs_is_accepted() {
    let nar = large_nar();
    for (compression, program, arguments) in [
        (Compression::Brotli, "brotli", &["-c"][..]),
        (Compression::Bzip2, "bzip2", &["-c"]),
        (Compression::Gzip, "gzip", &["-c"]),
        (Compression::Gzip, "gzip", &["-9c"]),
        (Compression::Lz4, "lz4", &["-c"]),
        (
            Compression::Lz4,
            "lz4",
            &["-c", "-9", "-BD", "--content-size"],
        ),
        (
            Compression::Lz4,
            "lz4",
            &["-qc", "-B4", "-BX", "--no-frame-crc"],
        ),
        (Compression::Lzip, "lzip", &["-c"]),
        (Compression::Xz, "xz", &["-c"]),
        (Compression::Xz, "xz", &["-9ec"]),
        (Compression::Xz, "xz", &["-c", "-T2", "--block-size=65536"]),
        (Compression::Xz, "xz", &["-c0", "--check=crc32"]),
        (Compression::Xz, "xz", &["-c1", "--check=sha256"]),
        (Compression::Xz, "xz", &["-c1", "--check=none"]),
        (Compression::Zstd, "zstd", &["-c"]),
        (Compression::Zstd, "zstd", &["-c", "-19", "--long=27"]),
        (Compression::Zstd, "zstd", &["-c", "-T2", "--no-check"]),
    ] {
        match filter(program, arguments, &nar) {
            Some(body) => {
                check(compression, &body, &nar);
            }
            None => eprintln!("skipped: {program} is not installed"),
        }
    }
}

/// Xz filters are refused: clients send none, and decoders treat them differently.
#[test]
fn xz_filters_are_refused() {
    let nar = large_nar();
    if let Some(body) = filter("xz", &["-c", "--x86", "--lzma2=preset=1"], &nar) {
        let refusal = run(Compression::Xz, &body).unwrap_err();
        assert!(
            refusal.to_string().contains("filter other than LZMA2"),
            "{refusal}"
        );
    }
}

/// A changed file that the server accepts must also be accepted by the programs. Otherwise the path
/// would be unusable for all clients of the cache.
#[test]
fn changed_files_that_are_accepted_are_accepted_by_programs() {
    let nar = small_nar();
    for (compression, program, arguments) in [
        (Compression::Bzip2, "bzip2", &["-c"][..]),
        (Compression::Gzip, "gzip", &["-c"]),
        (Compression::Lz4, "lz4", &["-c"]),
        (
            Compression::Lz4,
            "lz4",
            &["-c", "-BX", "-BD", "--content-size"],
        ),
        (Compression::Xz, "xz", &["-c"]),
        (
            Compression::Xz,
            "xz",
            &["-c", "-T2", "--check=none", "--block-size=300"],
        ),
        (Compression::Zstd, "zstd", &["-c"]),
        (Compression::Zstd, "zstd", &["-c", "--no-check"]),
    ] {
        let Some(mut body) = filter(program, arguments, &nar) else {
            continue;
        };
        for at in 0..body.len() {
            for flip in [1, 8, 0x80] {
                body[at] ^= flip;
                if run(compression, &body).is_ok() {
                    let (success, _) = run_program(program, &["-dc"], &body).unwrap();
                    assert!(
                        success,
                        "{program} {arguments:?} refuses byte {at} {flip:x}"
                    );
                }
                body[at] ^= flip;
            }
        }
    }
}
