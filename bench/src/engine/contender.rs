//! HTTP servers in the comparison, and a check that they respond alike.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use testkit::random::SplitMix64;

use crate::figures::Part;
use crate::http::Client;
use crate::nginx;
use crate::process::{Server, free_port};

/// Length of `/file`, in bytes.
pub(crate) const FILE_LEN: u64 = 10 << 20;

/// Length of `/big`, in bytes. The file is sparse.
pub(crate) const BIG_LEN: u64 = 1 << 30;

/// Number of threads for blocking handlers, unless a row needs more.
pub(crate) const BLOCKING_THREADS: usize = 16;

/// Kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Receives and sends without parsing: the lower bound of the cost.
    Floor,
    /// samovar-http with handlers on its I/O threads.
    Inline,
    /// samovar-http with handlers on its workers.
    Worker,
    Hyper,
    Axum,
    Actix,
    Nginx,
}

/// Feature of a server that a benchmark row requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ability {
    /// Serves `/text` and `/text500`.
    Text,
    Json,
    /// Serves files and accepts uploads.
    Bodies,
    /// Has blocking handlers.
    Sleep,
    WebSocket,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Floor,
        Self::Inline,
        Self::Worker,
        Self::Hyper,
        Self::Axum,
        Self::Actix,
        Self::Nginx,
    ];

    /// Returns the name, as in `--only` and in table heads.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Inline => "inline",
            Self::Worker => "worker",
            Self::Hyper => "hyper",
            Self::Axum => "axum",
            Self::Actix => "actix",
            Self::Nginx => "nginx",
        }
    }

    /// Returns the role in the comparison.
    pub(crate) fn part(self) -> Part {
        match self {
            Self::Floor => Part::Floor,
            Self::Inline | Self::Worker => Part::Ours,
            Self::Hyper | Self::Axum | Self::Actix => Part::Peer,
            Self::Nginx => Part::Anchor,
        }
    }

    /// Returns whether this server has `ability`. Rows in which samovar-http uses its workers in
    /// both modes measure it only once.
    pub(crate) fn can(self, ability: Ability) -> bool {
        match ability {
            Ability::Text => true,
            Ability::Json => self != Self::Floor,
            Ability::Bodies => !matches!(self, Self::Floor | Self::Inline),
            Ability::Sleep => !matches!(self, Self::Floor | Self::Inline | Self::Nginx),
            Ability::WebSocket => !matches!(self, Self::Floor | Self::Nginx),
        }
    }

    /// Starts the server with `threads` I/O threads and `blocking` threads for blocking handlers.
    pub(crate) fn start(self, files: &Files, threads: usize, blocking: usize) -> Result<Server> {
        let port = free_port()?;
        let release = super::release_dir()?;
        let (file, big) = (files.file.display(), files.big.display());
        let served = format!("{port} {threads} {blocking} {file} {big}");
        let ours = release.join("examples/samovar");
        let rival = |name: &str| release.with_file_name("rivals").join("release").join(name);
        let command = match self {
            Self::Floor => {
                let floor = release.join("examples/floor");
                format!("exec {} {port} {threads}", floor.display())
            }
            Self::Inline => format!("exec {} {served} --inline", ours.display()),
            Self::Worker => format!("exec {} {served}", ours.display()),
            Self::Hyper => format!("exec {} {served}", rival("rival-hyper").display()),
            Self::Axum => format!("exec {} {served}", rival("rival-axum").display()),
            Self::Actix => format!("exec {} {served}", rival("rival-actix").display()),
            Self::Nginx => {
                let file = files.nginx(port, threads)?;
                format!(
                    "exec {} -c {}",
                    nginx::find("nginx").display(),
                    file.display()
                )
            }
        };
        Server::start_command(self.name(), &command, port, "/text")
    }
}

/// Served files.
#[derive(Debug)]
pub(crate) struct Files {
    dir: PathBuf,
    file: PathBuf,
    big: PathBuf,
}

impl Files {
    /// Writes the files below `dir`.
    pub(crate) fn make(dir: &Path) -> Result<Self> {
        let files = Self {
            dir: dir.to_path_buf(),
            file: dir.join("file"),
            big: dir.join("big"),
        };
        // Random bytes, in case zeros are treated specially on the way.
        let bytes = SplitMix64::new(1).bytes(usize::try_from(FILE_LEN)?);
        fs::write(&files.file, bytes)?;
        File::create(&files.big)?.set_len(BIG_LEN)?;
        Ok(files)
    }

    fn nginx(&self, port: u16, workers: usize) -> Result<PathBuf> {
        let folder = self.dir.join(format!("nginx-{port}"));
        fs::create_dir_all(&folder)?;
        let (files, folder_name) = (self.dir.display(), folder.display());
        let http = format!(
            "sendfile on; tcp_nopush on;
    keepalive_timeout 600s;
    client_max_body_size 0;
    open_file_cache max=100 inactive=600s;
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        root {files};
        location = /text {{ return 200 \"Hello, World!\"; }}
        location = /text500 {{ return 200 \"{text}\"; }}
        location = /json {{ return 200 '{{\"message\":\"Hello, World!\"}}'; }}
        location = /upload {{ return 200 \"read\\n\"; }}
    }}",
            text = "x".repeat(500)
        );
        let configuration = nginx::configuration(&folder_name.to_string(), workers, 16_384, &http);
        let file = folder.join("nginx.conf");
        fs::write(&file, configuration)?;
        Ok(file)
    }
}

/// Verifies the responses of `server`, because the speed of wrong responses is meaningless.
pub(crate) fn check(kind: Kind, server: &Server) -> Result<()> {
    let mut client = Client::new(server.address);
    let mut expected = vec![("/text", 13), ("/text500", 500)];
    if kind.can(Ability::Json) {
        expected.push(("/json", 27));
    }
    if kind.can(Ability::Bodies) {
        expected.push(("/file", FILE_LEN));
    }
    if kind.can(Ability::Sleep) {
        expected.push(("/sleep", 13));
    }
    for (path, len) in expected {
        let answer = client
            .get(path, |_| ())
            .with_context(|| format!("{}: {path}", kind.name()))?;
        if (answer.status, answer.body_len) != (200, len) {
            bail!("{}: {path} is {answer:?} and not {len} bytes", kind.name());
        }
    }
    Ok(())
}
