//! The caches that receive uploads.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use testkit::free_port;

use crate::figures::Part;
use crate::nginx;
use crate::process::Server;

/// A cache in the comparison.
#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) part: Part,
    /// Shell command that starts the server, with the placeholders `{port}` and `{scratch}`; `None`
    /// for a directory that `nix copy` writes to. The command may write a token to
    /// `{scratch}/token`.
    command: Option<String>,
}

/// A cache that is ready for uploads. Its server is terminated on drop.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) server: Option<Server>,
    /// URL for `nix copy`.
    pub(crate) url: String,
    /// Directory with all files of the cache.
    pub(crate) folder: PathBuf,
    pub(crate) netrc: PathBuf,
    pub(crate) token: String,
}

/// Returns the program of Samovar, which cargo builds beside this program.
pub(crate) fn samovar_program() -> Result<String> {
    let program = std::env::current_exe()?.with_file_name("samovar");
    program
        .to_str()
        .filter(|_| program.exists())
        .map(str::to_owned)
        .with_context(|| format!("{} is not built: cargo build -p samovar", program.display()))
}

impl Contender {
    /// Returns Samovar.
    pub(crate) fn ours() -> Result<Self> {
        Ok(Self {
            name: "samovar".into(),
            part: Part::Ours,
            command: Some(samovar(&samovar_program()?)),
        })
    }

    /// Returns Samovar, the servers of the command line, nginx, and a directory.
    pub(crate) fn all(servers: &[(String, String)]) -> Result<Vec<Self>> {
        let new = |name: &str, part, command| Self {
            name: name.into(),
            part,
            command,
        };
        let mut all = vec![Self::ours()?];
        all.extend(
            servers
                .iter()
                .map(|(name, command)| new(name, Part::Peer, Some(command.clone()))),
        );
        all.push(new("nginx", Part::Anchor, Some(nginx())));
        all.push(new("file://", Part::Floor, None));
        Ok(all)
    }

    /// Starts the cache in the empty directory `folder`.
    pub(crate) fn start(&self, folder: &Path) -> Result<Running> {
        let mut running = Running {
            server: None,
            url: format!("file://{}", folder.join("cache").display()),
            folder: folder.to_owned(),
            netrc: folder.join("netrc"),
            token: String::new(),
        };
        let Some(command) = &self.command else {
            return Ok(running);
        };
        let port = free_port();
        let command = command
            .replace("{port}", &port.to_string())
            .replace("{scratch}", &folder.display().to_string());
        let server = Server::start_command(&self.name, &command, port, "/nix-cache-info")?;
        running.url = format!("http://{}/upload", server.address);
        running.token = fs::read_to_string(folder.join("token")).unwrap_or_default();
        let login = format!("machine 127.0.0.1 login bench password {}", running.token);
        fs::write(&running.netrc, login)?;
        running.server = Some(server);
        Ok(running)
    }
}

impl Running {
    /// Returns the header line with the token, without its line end.
    pub(crate) fn authorization(&self) -> String {
        format!("Authorization: Bearer {}", self.token.trim_end())
    }
}

/// Returns the command that starts Samovar without a network address for metrics.
fn samovar(program: &str) -> String {
    format!(
        "nix-store --store {{scratch}}/live --init && \
         {program} token create --storage {{scratch}}/storage --name bench \
         --rights read,push,pin >{{scratch}}/token && \
         exec {program} serve --listen 127.0.0.1:{{port}} --store local?root={{scratch}}/live \
         --storage {{scratch}}/storage --set=admin.listen="
    )
}

/// Returns the command that starts nginx, which stores uploaded files without any check or flush.
fn nginx() -> String {
    let http = "client_max_body_size 0;
    server { listen 127.0.0.1:{port} backlog=1024; root {scratch}/www;
        dav_methods PUT; create_full_put_path on; }";
    format!(
        "mkdir {{scratch}}/www && echo StoreDir: /nix/store >{{scratch}}/www/nix-cache-info && \
         cat >{{scratch}}/nginx.conf <<'END'\n{}\nEND\nexec {} -c {{scratch}}/nginx.conf",
        nginx::configuration("{scratch}", 2, 4096, http),
        nginx::find("nginx").display()
    )
}
