//! The upstreams, and the servers in front of them.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;
use testkit::free_port;
use testkit::nix::{OwnStore, key_pair, local};
use testkit::random::SplitMix64;

use super::walk;
use crate::http::Client;
use crate::load::line;
use crate::nginx;
use crate::process::Server;
use crate::store::hash_part;
use crate::uploads::contender::samovar_program;

/// The URL that each server has.
const PROBE: &str = "/nix-cache-info";

/// A Samovar with a store, nginx with its narinfos and with a large NAR as files, and an empty
/// store for servers in front of them.
pub(super) struct Stand {
    pub(super) samovar: Server,
    pub(super) nginx: Server,
    /// Closure of the store; its top is the last path.
    pub(super) closure: Vec<String>,
    /// A path with a large NAR, which nginx alone has, and the URL of the NAR there.
    pub(super) large: (String, String),
    pub(super) large_len: u64,
    /// A path of the empty store, which is not quite empty.
    pub(super) local: String,
    own: OwnStore,
    keys: [String; 2],
    dir: TempDir,
}

impl Stand {
    /// Starts the upstreams. `large_len`: length of the large file in bytes.
    pub(super) fn new(store: &Path, closure: Vec<String>, large_len: usize) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("samovar-bench-")
            .tempdir()?;
        let (secret, key) = key_pair(dir.path(), "bench-1");
        let (large_secret, large_key) = key_pair(dir.path(), "large-1");
        let config = format!(
            "store = {:?}\nsecret-key-files = {secret:?}\nnarinfo-memory = \"64 MiB\"\n",
            local(store)
        );
        let samovar = samovar("upstream", dir.path(), &config)?;
        let files = dir.path().join("files");
        let large = large(dir.path(), &files, &large_secret, large_len)?;
        let mut client = Client::new(samovar.address);
        for path in &closure {
            let name = hash_part(path);
            let text = walk::narinfo(&mut client, name)?;
            fs::write(files.join(format!("{name}.narinfo")), text)?;
        }
        let folder = new_dir(dir.path(), "nginx")?;
        let http = format!(
            "log_format bytes '$request_uri $bytes_sent';\n    access_log {}/access bytes;\n    \
             server {{ listen 127.0.0.1:@port@ backlog=1024; root {}; }}",
            folder.display(),
            files.display()
        );
        let nginx = start_nginx("nginx", &folder, &http)?;
        let own = OwnStore::new();
        Ok(Self {
            samovar,
            nginx,
            closure,
            large,
            large_len: large_len as u64,
            local: own.add_file("local", b"a text"),
            own,
            keys: [key, large_key],
            dir,
        })
    }

    /// Returns the top of the closure.
    pub(super) fn top(&self) -> Result<&str> {
        Ok(self.closure.last().context("a closure has a path")?)
    }

    /// Starts a server with this upstream, which knows nothing yet. `options`: lines of its
    /// configuration.
    pub(super) fn relay(&self, upstream: SocketAddr, options: &str) -> Result<Server> {
        let config = format!(
            "store = {:?}\n{options}[upstreams.up]\nurl = \"http://{upstream}\"\npublic-keys = \
             {:?}\n",
            local(self.own.root()),
            self.keys
        );
        samovar("relay", self.dir.path(), &config)
    }

    /// Returns a line of the configuration that names a new storage.
    pub(super) fn storage(&self) -> Result<String> {
        let folder = new_dir(self.dir.path(), "storage")?;
        Ok(format!("storage = {folder:?}\n"))
    }

    /// Starts nginx in front of this upstream, with a cache.
    pub(super) fn proxy(&self, upstream: SocketAddr) -> Result<Server> {
        let folder = new_dir(self.dir.path(), "proxy")?;
        let http = format!(
            "proxy_cache_path {}/cache keys_zone=all:10m max_size=10g;\n    server {{ listen \
             127.0.0.1:@port@ backlog=1024; location / {{ proxy_pass http://{upstream}; \
             proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_cache all; \
             proxy_cache_valid 200 1h; proxy_cache_lock on; }} }}",
            folder.display()
        );
        start_nginx("proxy_cache", &folder, &http)
    }

    /// Returns the number of bytes that nginx has sent, and the number of responses, since the
    /// last call.
    pub(super) fn sent(&self) -> Result<(u64, u64)> {
        let log = self.dir.path().join("nginx/access");
        let text = fs::read_to_string(&log)?;
        fs::OpenOptions::new().write(true).open(&log)?.set_len(0)?;
        let lens = text
            .lines()
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        let (len, count) = lens.fold((0, 0), |(len, count), one| (len + one, count + 1));
        Ok((len, count))
    }
}

/// Returns the address of a line to a server with this round-trip time.
pub(super) fn distant(server: SocketAddr, round_trip: Duration) -> Result<SocketAddr> {
    match round_trip.is_zero() {
        true => Ok(server),
        false => Ok(line::start(server, round_trip / 2, None)?),
    }
}

fn new_dir(dir: &Path, name: &str) -> Result<PathBuf> {
    let folder = dir.join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn samovar(name: &str, dir: &Path, config: &str) -> Result<Server> {
    let port = free_port();
    let file = dir.join(format!("{name}.toml"));
    let head = format!("listen = \"127.0.0.1:{port}\"\nadmin.listen = []\n");
    fs::write(&file, head + config)?;
    let command = format!(
        "exec {} serve --config {}",
        samovar_program()?,
        file.display()
    );
    Server::start_command(name, &command, port, PROBE)
}

fn start_nginx(name: &str, folder: &Path, http: &str) -> Result<Server> {
    let port = free_port();
    let http = http.replace("@port@", &port.to_string());
    let config = folder.join("nginx.conf");
    let text = nginx::configuration(&folder.display().to_string(), 2, 4096, &http);
    // The last directive counts.
    let text = text.replace("access_log off;\n", "");
    fs::write(&config, text)?;
    let program = nginx::find("nginx");
    let command = format!("exec {} -c {}", program.display(), config.display());
    Server::start_command(name, &command, port, PROBE)
}

/// Makes a binary cache in `files` with one large NAR. Returns the path and the URL of the NAR.
fn large(dir: &Path, files: &Path, secret: &Path, len: usize) -> Result<(String, String)> {
    let file = dir.join("large");
    let mut random = SplitMix64::new(7);
    let mut out = std::io::BufWriter::new(fs::File::create(&file)?);
    for _ in 0..len / 8 {
        out.write_all(&random.next().to_le_bytes())?;
    }
    out.flush()?;
    let store = OwnStore::new();
    let path = store.add(&file);
    let to = format!(
        "file://{}?compression=none&secret-key={}",
        files.display(),
        secret.display()
    );
    let mut copy = store.nix.command("nix", store.root());
    copy.args(["copy", "--from", &local(store.root()), "--to", &to, &path]);
    testkit::process::output(&mut copy);
    let narinfo = fs::read_to_string(files.join(format!("{}.narinfo", hash_part(&path))))?;
    let url = narinfo.lines().find_map(|line| line.strip_prefix("URL: "));
    let url = format!("/{}", url.context("a narinfo has a URL")?);
    Ok((path, url))
}
