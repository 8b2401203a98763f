//! The HTTP servers in the comparison, and a check that their responses are alike.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use testkit::free_port;
use testkit::random::SplitMix64;

use crate::figures::Part;
use crate::http::Client;
use crate::nginx;
use crate::process::Server;

/// Length of the file that servers send for `/file`, in bytes.
pub(crate) const FILE_LEN: u64 = 10 << 20;

/// Number of threads that run blocking handlers.
const BLOCKING_THREADS: usize = 16;

/// The HTTP servers that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Receives and sends without parsing: the lower bound of the cost.
    Floor,
    /// As [`Floor`](Self::Floor), but a second thread sends: the lower bound of the cost of a
    /// server whose handlers may block.
    FloorHop,
    /// samovar-http with handlers on its I/O threads.
    Inline,
    /// samovar-http with handlers on its workers.
    Worker,
    Hyper,
    Axum,
    Actix,
    Nginx,
}

/// A feature that a server must have to be measured in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ability {
    /// The server answers `/text` and `/text500`.
    Text,
    Json,
    /// The server sends files and accepts uploads.
    Bodies,
    WebSocket,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Floor,
        Self::FloorHop,
        Self::Inline,
        Self::Worker,
        Self::Hyper,
        Self::Axum,
        Self::Actix,
        Self::Nginx,
    ];

    /// Returns the server's name in the head of tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::FloorHop => "floor-hop",
            Self::Inline => "inline",
            Self::Worker => "worker",
            Self::Hyper => "hyper",
            Self::Axum => "axum",
            Self::Actix => "actix",
            Self::Nginx => "nginx",
        }
    }

    /// Returns the role of this server in the comparison.
    pub(crate) fn part(self) -> Part {
        match self {
            Self::Floor | Self::FloorHop => Part::Floor,
            Self::Inline | Self::Worker => Part::Ours,
            Self::Hyper | Self::Axum | Self::Actix => Part::Peer,
            Self::Nginx => Part::Anchor,
        }
    }

    /// Returns whether rows that require `ability` measure this server. Rows in which samovar-http
    /// uses its workers in both modes measure it only once.
    pub(crate) fn can(self, ability: Ability) -> bool {
        match ability {
            Ability::Text => true,
            Ability::Json => !matches!(self, Self::Floor | Self::FloorHop),
            Ability::Bodies => !matches!(self, Self::Floor | Self::FloorHop | Self::Inline),
            Ability::WebSocket => !matches!(self, Self::Floor | Self::FloorHop | Self::Nginx),
        }
    }

    /// Starts this server with `threads` I/O threads.
    pub(crate) fn start(self, files: &Files, threads: usize) -> Result<Server> {
        let port = free_port();
        let release = super::release_dir()?;
        let file = files.file.display();
        let served = format!("{port} {threads} {BLOCKING_THREADS} {file}");
        let ours = release.join("examples/samovar");
        let rival = |name: &str| release.with_file_name("rivals").join("release").join(name);
        let command = match self {
            Self::Floor | Self::FloorHop => {
                let floor = release.join("examples/floor");
                let hop = if self == Self::FloorHop { " hop" } else { "" };
                format!("exec {} {port} {threads}{hop}", floor.display())
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

/// The files that the servers send.
#[derive(Debug)]
pub(crate) struct Files {
    dir: PathBuf,
    file: PathBuf,
}

impl Files {
    /// Creates the files below `dir`.
    pub(crate) fn make(dir: &Path) -> Result<Self> {
        let files = Self {
            dir: dir.to_path_buf(),
            file: dir.join("file"),
        };
        // The bytes are random, in case a layer below the servers treats zeros specially.
        let bytes = SplitMix64::new(1).bytes(usize::try_from(FILE_LEN)?);
        fs::write(&files.file, bytes)?;
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
