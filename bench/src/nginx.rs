//! Reference: nginx serving the same bytes from static files. It performs no look-ups, so it is no
//! peer; it shows what an efficient server in C can do on this machine.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::check::nar_url;
use crate::http::Client;
use crate::process::Server;
use crate::store::{PathInfo, Store, hash_part};

/// Way in which nginx sends file contents.
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
/// Copies them from the server `first`, so that nginx sends the same bytes. Without a server,
/// renders narinfos as nix-serve does, and NARs with Nix. [`mod@crate::check`] verifies either.
pub(crate) fn render(store: &Store, first: Option<&Server>, scratch: &Path) -> Result<PathBuf> {
    let files = scratch.join("files");
    fs::create_dir_all(files.join("nar"))?;
    fs::write(
        files.join("nix-cache-info"),
        "StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 30\n",
    )?;
    let mut client = first.map(|server| Client::new(server.address));
    for (path, info) in &store.paths {
        let name = format!("{}.narinfo", hash_part(path));
        let mut body = Vec::new();
        match &mut client {
            Some(client) => {
                let answer =
                    client.get(&format!("/{name}"), |piece| body.extend_from_slice(piece))?;
                if answer.status != 200 {
                    bail!("the first server answers {name} with {}", answer.status);
                }
            }
            None => body.extend_from_slice(narinfo(path, info).as_bytes()),
        }
        fs::write(files.join(name), body)?;
    }
    let nars = [&store.empty, &store.big, &store.tree].into_iter();
    for path in nars.chain(&store.mixed).chain(&store.closure) {
        let url = match &mut client {
            Some(client) => nar_url(client, path)?,
            None => format!("/{}", default_url(path, store.info(path)?)),
        };
        // A query is not part of the file name.
        let file = url.split('?').next().unwrap_or_default();
        let file = files.join(file.trim_start_matches('/'));
        fs::create_dir_all(file.parent().context("a NAR has a folder")?)?;
        let mut file = fs::File::create(&file)?;
        if let Some(client) = &mut client {
            let mut written = Ok(());
            let answer = client.get(&url, |piece| {
                if written.is_ok() {
                    written = file.write_all(piece);
                }
            })?;
            written?;
            if answer.status != 200 {
                bail!("the first server answers {url} with {}", answer.status);
            }
        } else {
            let status = store.dump(path).stdout(Stdio::from(file)).status()?;
            if !status.success() {
                bail!("nix-store --dump {path}: {status}");
            }
        }
    }
    Ok(files)
}

fn default_url(path: &str, info: &PathInfo) -> String {
    let hash = info.nar_hash.trim_start_matches("sha256:");
    format!("nar/{}-{hash}.nar", hash_part(path))
}

fn narinfo(path: &str, info: &PathInfo) -> String {
    let mut text = format!(
        "StorePath: {path}\nURL: {}\nCompression: none\nNarHash: {}\nNarSize: {}\n",
        default_url(path, info),
        info.nar_hash,
        info.nar_size
    );
    // Writing to a `String` never fails.
    if !info.references.is_empty() {
        writeln!(text, "References: {}", info.references.join(" ")).ok();
    }
    if let Some(deriver) = &info.deriver {
        writeln!(text, "Deriver: {deriver}").ok();
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narinfo_without_references_has_no_such_line() {
        let info = PathInfo {
            nar_hash: "sha256:h".into(),
            nar_size: 120,
            references: Vec::new(),
            deriver: Some("d.drv".into()),
            content_address: None,
        };
        assert_eq!(
            narinfo("/nix/store/abc-x", &info),
            "StorePath: /nix/store/abc-x\nURL: nar/abc-h.nar\nCompression: none\n\
             NarHash: sha256:h\nNarSize: 120\nDeriver: d.drv\n"
        );
    }
}
