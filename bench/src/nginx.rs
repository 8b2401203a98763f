//! Runs nginx as a reference that serves the same bytes from static files. It performs no look-ups,
//! so it is no peer; it shows what an efficient server in C can do on this machine.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::check::nar_url;
use crate::http::Client;
use crate::process::Server;
use crate::store::{Store, hash_part};

/// The way in which nginx sends the contents of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// With `sendfile`, the usual setting.
    Sendfile,
    /// Through buffers of 256 KiB. Faster on loopback, where the receiver then copies whole pages
    /// instead of fragments; on a network card it may be slower.
    NoSendfile,
}

/// Returns the location of `program`; nginx may lie in a directory that is not in a user's `PATH`.
pub(crate) fn find(program: &str) -> PathBuf {
    let sbin = Path::new("/usr/sbin").join(program);
    if sbin.exists() { sbin } else { program.into() }
}

/// Writes all narinfos, and the NARs of the rows, as files below `scratch`.
///
/// Copies them from the server `first`, so that nginx sends the same bytes. [`mod@crate::check`]
/// verifies them.
pub(crate) fn render(store: &Store, first: &Server, scratch: &Path) -> Result<PathBuf> {
    let files = scratch.join("files");
    fs::create_dir_all(files.join("nar"))?;
    fs::write(
        files.join("nix-cache-info"),
        "StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 30\n",
    )?;
    let mut client = Client::new(first.address);
    let mut copy = |url: &str| -> Result<()> {
        // A query is not part of the file name.
        let file = url.split('?').next().unwrap_or_default();
        let file = files.join(file.trim_start_matches('/'));
        fs::create_dir_all(file.parent().context("a file has a folder")?)?;
        let mut file = fs::File::create(&file)?;
        let mut written = Ok(());
        let answer = client.get(url, |piece| {
            if written.is_ok() {
                written = file.write_all(piece);
            }
        })?;
        written?;
        ensure!(
            answer.status == 200,
            "the first server answers {url} with {}",
            answer.status
        );
        Ok(())
    };
    for path in store.paths.keys() {
        copy(&format!("/{}.narinfo", hash_part(path)))?;
    }
    let nars = [&store.empty, &store.big, &store.tree].into_iter();
    for path in nars.chain(&store.mixed).chain(&store.closure) {
        copy(&nar_url(&mut Client::new(first.address), path)?)?;
    }
    Ok(files)
}

/// Returns the name of a variant and the command that starts it on `files`, with placeholders.
pub(crate) fn command(
    files: &Path,
    variant: Variant,
    scratch: &Path,
) -> Result<(&'static str, String)> {
    let name = match variant {
        Variant::Sendfile => "nginx",
        Variant::NoSendfile => "nginx-nosendfile",
    };
    let configuration = scratch.join(format!("{name}.conf"));
    fs::write(&configuration, configure(files, variant))?;
    let command = format!(
        "sed 's|@port@|{{port}}|; s|@folder@|{{scratch}}|' {} >{{scratch}}/nginx.conf && \
         exec {} -c {{scratch}}/nginx.conf",
        configuration.display(),
        find("nginx").display()
    );
    Ok((name, command))
}

fn configure(files: &Path, variant: Variant) -> String {
    let files = files.display();
    let sending = match variant {
        Variant::Sendfile => "sendfile on; tcp_nopush on;",
        Variant::NoSendfile => "sendfile off; output_buffers 2 256k;",
    };
    let http = format!(
        "log_not_found off;
    {sending}
    open_file_cache max=20000 inactive=600s;
    open_file_cache_valid 600s;
    types {{ text/x-nix-narinfo narinfo; application/x-nix-nar nar; }}
    server {{ listen 127.0.0.1:@port@ backlog=1024; root {files}; }}"
    );
    configuration("@folder@", 2, 4096, &http)
}

/// Returns a configuration whose state is below `folder`; `http` is specific to the benchmark.
pub(crate) fn configuration(
    folder: &str,
    workers: usize,
    connections: usize,
    http: &str,
) -> String {
    // Files below the scratch folder belong to root if root runs the benchmark.
    let user = if rustix::process::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("    {name}_temp_path {folder}/{name};\n"))
        .concat();
    format!(
        "{user}
daemon off;
worker_processes {workers};
worker_rlimit_nofile 20000;
pid {folder}/pid;
error_log {folder}/error.log crit;
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    default_type text/plain;
{temporary}    {http}
}}
"
    )
}
