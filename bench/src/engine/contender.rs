//! The HTTP servers in the comparison, and a check that their responses are alike.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::free_port;

use super::files::{BIG_LEN, FILE_LEN, Files};
use crate::figures::Part;
use crate::http::Client;
use crate::load::{echo, upload};
use crate::nginx;
use crate::process::Server;

/// Length of the upload with which a server is checked, in bytes.
const UPLOAD_LEN: usize = 10 << 20;

/// First version of Java with virtual threads.
const JAVA_VERSION_MIN: u32 = 21;

/// The HTTP servers that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// samovar-http with a `Router` and all defaults, so the number of its I/O threads too.
    Router,
    Hyper,
    Axum,
    Actix,
    Khttp,
    Feather,
    TinyHttp,
    Go,
    /// Java's own server with virtual threads.
    Java,
    /// A server of the command line: its name, and a command with `{port}`, `{threads}` and
    /// `{dir}`.
    Given(&'static str, &'static str),
    Nginx,
}

/// A feature that a server must have to be measured in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ability {
    /// The server answers `/text` and `/text500`.
    Text,
    Json,
    /// The server answers `/pooled` and `/sleep10` by handlers that may block.
    Blocking,
    /// The server answers `/item` from a database.
    Database,
    /// The server sends files.
    Files,
    /// The server accepts uploads.
    Uploads,
    WebSocket,
    /// WebSockets hear each other.
    Broadcast,
}

impl Ability {
    const ALL: [Self; 8] = [
        Self::Text,
        Self::Json,
        Self::Blocking,
        Self::Database,
        Self::Files,
        Self::Uploads,
        Self::WebSocket,
        Self::Broadcast,
    ];

    /// Returns the paths that a server with this ability answers, and the lengths of the bodies.
    fn paths(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Text => &[("/text", 13), ("/text500", 500)],
            Self::Json => &[("/json", 27)],
            Self::Blocking => &[("/pooled", 13), ("/sleep10", 13)],
            Self::Database => &[("/item?id=7", 42)],
            Self::Files => &[("/file", FILE_LEN), ("/big", BIG_LEN)],
            Self::Uploads | Self::WebSocket | Self::Broadcast => &[],
        }
    }

    /// Fails if `server` lacks this ability, or its responses differ from the other servers'.
    fn check(self, server: &Server) -> Result<()> {
        let mut client = Client::new(server.address);
        for &(path, len) in self.paths() {
            let answer = client.get(path, |_| ()).context(path)?;
            // Some servers end JSON with a line break.
            let is_right = answer.status == 200 && (len..=len + 1).contains(&answer.body_len);
            ensure!(is_right, "{path} is {answer:?} and not {len} bytes");
        }
        match self {
            Self::Uploads => upload::start(server.address, UPLOAD_LEN)?()?,
            Self::WebSocket => drop(echo::open(server.address, "/ws", 1)?),
            Self::Broadcast => drop(echo::open(server.address, "/broadcast", 1)?),
            _ => {}
        }
        Ok(())
    }
}

/// A server in the comparison.
#[derive(Debug, Clone)]
pub(crate) struct Entrant {
    pub(crate) kind: Kind,
    abilities: Vec<Ability>,
    /// Why the server cannot run on this machine.
    absence: Option<String>,
}

impl Entrant {
    /// Returns why a row that requires `ability` leaves the server out.
    pub(crate) fn lacks(&self, ability: Ability) -> Option<String> {
        let lack = || "not part of this row".to_owned();
        let absence = self.absence.clone();
        absence.or_else(|| (!self.abilities.contains(&ability)).then(lack))
    }

    /// Returns whether the server can run on this machine.
    pub(crate) fn is_present(&self) -> bool {
        self.absence.is_none()
    }

    /// Verifies the responses of `server`, because the speed of wrong responses is meaningless. A
    /// server of the command line takes part in the rows whose responses are right.
    pub(crate) fn check(&mut self, server: &Server) -> Result<()> {
        if let Kind::Given(..) = self.kind {
            self.abilities
                .retain(|ability| ability.check(server).is_ok());
            return Ok(());
        }
        let mut abilities = self.abilities.iter();
        abilities
            .try_for_each(|ability| ability.check(server))
            .with_context(|| self.kind.name())
    }
}

/// Returns all servers: those that this program builds, and those of the command line.
pub(crate) fn entrants(servers: &[(String, String)]) -> Vec<Entrant> {
    let mut kinds = Kind::BUILT.to_vec();
    // They are needed until the program ends.
    let given = servers
        .iter()
        .map(|(name, command)| Kind::Given(name.clone().leak(), command.clone().leak()));
    kinds.extend(given);
    kinds.push(Kind::Nginx);
    let entrant = |kind: Kind| Entrant {
        kind,
        abilities: Ability::ALL
            .into_iter()
            .filter(|&ability| kind.can(ability))
            .collect(),
        absence: kind.absence(),
    };
    kinds.into_iter().map(entrant).collect()
}

impl Kind {
    const BUILT: [Self; 13] = [
        Self::Floor,
        Self::FloorHop,
        Self::Inline,
        Self::Worker,
        Self::Router,
        Self::Hyper,
        Self::Axum,
        Self::Actix,
        Self::Khttp,
        Self::Feather,
        Self::TinyHttp,
        Self::Go,
        Self::Java,
    ];

    /// Returns the server's name in the head of tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::FloorHop => "floor-hop",
            Self::Inline => "inline",
            Self::Worker => "worker",
            Self::Router => "router",
            Self::Hyper => "hyper",
            Self::Axum => "axum",
            Self::Actix => "actix",
            Self::Khttp => "khttp",
            Self::Feather => "feather",
            Self::TinyHttp => "tiny-http",
            Self::Go => "go",
            Self::Java => "java",
            Self::Given(name, _) => name,
            Self::Nginx => "nginx",
        }
    }

    /// Returns the role of this server in the comparison.
    pub(crate) fn part(self) -> Part {
        match self {
            Self::Floor | Self::FloorHop => Part::Floor,
            Self::Inline | Self::Worker | Self::Router => Part::Ours,
            Self::Nginx => Part::Anchor,
            _ => Part::Peer,
        }
    }

    /// Returns whether rows that require `ability` measure this server. Rows in which samovar-http
    /// uses its workers in both modes measure it only once.
    fn can(self, ability: Ability) -> bool {
        match self {
            Self::Floor | Self::FloorHop => ability == Ability::Text,
            Self::Inline => matches!(
                ability,
                Ability::Text | Ability::Json | Ability::WebSocket | Ability::Broadcast
            ),
            Self::Khttp | Self::TinyHttp => {
                !matches!(ability, Ability::WebSocket | Ability::Broadcast)
            }
            // Its files may have at most 4 MB.
            Self::Feather => !matches!(
                ability,
                Ability::Files | Ability::WebSocket | Ability::Broadcast
            ),
            // Databases and WebSockets are not in the JDK.
            Self::Java => !matches!(
                ability,
                Ability::Database | Ability::WebSocket | Ability::Broadcast
            ),
            Self::Nginx => matches!(
                ability,
                Ability::Text | Ability::Json | Ability::Files | Ability::Uploads
            ),
            _ => true,
        }
    }

    /// Returns why this server cannot run on this machine; `None` if it can.
    fn absence(self) -> Option<String> {
        match self {
            Self::Go if !super::programs().go.exists() => Some("Go is not installed".into()),
            Self::Java => {
                let version = java_version().unwrap_or(0);
                let is_built = super::programs().java.join("Rival.class").exists();
                (version < JAVA_VERSION_MIN || !is_built).then(|| {
                    format!(
                        "needs javac, and Java {JAVA_VERSION_MIN} or later in JAVA_HOME or PATH"
                    )
                })
            }
            _ => None,
        }
    }

    /// Starts this server with `threads` I/O threads.
    pub(crate) fn start(self, files: &Files, threads: usize) -> Result<Server> {
        let port = free_port();
        let programs = super::programs();
        let dir = files.dir.display();
        let example = |name: &str| programs.examples.join(name).display().to_string();
        let rival = |name: &str| {
            let program = programs.rivals.join(format!("rival-{name}"));
            format!("exec {} {port} {threads} {dir}", program.display())
        };
        let command = match self {
            Self::Floor => format!("exec {} {port} {threads}", example("floor")),
            Self::FloorHop => format!("exec {} {port} {threads} hop", example("floor")),
            Self::Inline => {
                let ours = example("samovar");
                format!("exec {ours} {port} {threads} {dir} --inline")
            }
            Self::Worker => format!("exec {} {port} {threads} {dir}", example("samovar")),
            Self::Router => format!("exec {} {port} {dir}", example("samovar_router")),
            Self::Hyper | Self::Axum | Self::Actix => rival(self.name()),
            Self::Khttp | Self::Feather | Self::TinyHttp => rival(self.name()),
            Self::Go => {
                let program = programs.go.display();
                format!("exec {program} {port} {threads} {dir}")
            }
            Self::Java => {
                // Without the first two options, it closes all but 200 idle connections, and
                // delays the second segment of each response.
                format!(
                    "exec {} -Dsun.net.httpserver.maxIdleConnections=100000 \
                     -Dsun.net.httpserver.nodelay=true -XX:ActiveProcessorCount={threads} \
                     -cp {} Rival {port} {dir}",
                    java().display(),
                    programs.java.display()
                )
            }
            Self::Given(_, command) => command
                .replace("{port}", &port.to_string())
                .replace("{threads}", &threads.to_string())
                .replace("{dir}", &dir.to_string()),
            Self::Nginx => {
                let file = files.nginx(port, threads)?;
                let program = nginx::find("nginx");
                format!("exec {} -c {}", program.display(), file.display())
            }
        };
        Server::start_command(self.name(), &command, port, "/text")
    }
}

/// Returns the program that runs Java's bytecode.
fn java() -> PathBuf {
    let home = std::env::var_os("JAVA_HOME");
    home.map_or("java".into(), |home| Path::new(&home).join("bin/java"))
}

/// Returns the major version of Java; `None` if it is not installed.
fn java_version() -> Option<u32> {
    let said = Command::new(java()).arg("--version").output().ok()?.stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    // The first line is `openjdk 21.0.2 2024-01-16`.
    said.split(' ').nth(1)?.split('.').next()?.parse().ok()
}
