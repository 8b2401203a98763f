//! Several `samovar serve` with one database and one bucket.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::free_port;
use crate::nix::key_pair;
use crate::process::{Process, output, without_variables};
use crate::s3::S3Engine;

/// Name of the signing key of all nodes.
const KEY_NAME: &str = "cache.example.org-1";

/// The nodes of a cache: their directories, configurations and processes.
#[derive(Debug)]
pub struct Nodes {
    program: PathBuf,
    dir: PathBuf,
    /// Public key of the cache.
    pub public_key: String,
    nodes: Vec<Node>,
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// The server; `None` while it is not running.
    pub process: Option<Process>,
    config: PathBuf,
    /// Address of the cache, which a restart keeps.
    pub address: SocketAddr,
    /// Address of the metrics and the status.
    pub admin: SocketAddr,
}

/// What the nodes have in common.
#[derive(Debug, Clone)]
pub struct Shared {
    /// URL of the database.
    pub database_url: String,
    /// URL of the bucket, which takes the key of [`S3Engine`].
    pub bucket_url: String,
    /// More lines of the configuration, before its first table.
    pub options: String,
}

impl Nodes {
    /// Writes the configuration of `count` nodes below `dir`, which keeps the signing key that it
    /// already has. `program`: the binary `samovar`.
    #[track_caller]
    pub fn new(program: &Path, dir: &Path, count: usize, shared: &Shared) -> Self {
        fs::create_dir_all(dir).unwrap();
        if !dir.join(format!("{KEY_NAME}.public")).exists() {
            key_pair(dir, KEY_NAME);
        }
        S3Engine::write_credentials(&dir.join("bucket.key"));
        let public_key = fs::read_to_string(dir.join(format!("{KEY_NAME}.public"))).unwrap();
        let mut nodes = Self {
            program: program.to_owned(),
            dir: dir.to_owned(),
            public_key: public_key.trim().to_owned(),
            nodes: Vec::new(),
        };
        nodes.add(count, shared);
        nodes
    }

    /// Writes the configuration of more nodes.
    #[track_caller]
    pub fn add(&mut self, count: usize, shared: &Shared) {
        for _ in 0..count {
            let number = self.nodes.len() + 1;
            let node = Node {
                process: None,
                config: self.dir.join(format!("node-{number}.toml")),
                address: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())),
                admin: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())),
            };
            fs::write(&node.config, self.configuration(number, &node, shared)).unwrap();
            self.nodes.push(node);
        }
    }

    fn configuration(&self, number: usize, node: &Node, shared: &Shared) -> String {
        let Shared {
            database_url,
            bucket_url,
            options,
        } = shared;
        format!(
            "store = \"none\"\nstorage = {:?}\nlisten = \"{}\"\nadmin.listen = \"{}\"\n\
             secret-key-files = {:?}\n{options}\n\
             [bucket]\nurl = {bucket_url:?}\ncredentials-file = {:?}\n\
             [database]\nurl = {database_url:?}\n[node]\nname = \"node-{number}\"\n",
            self.storage(number - 1),
            node.address,
            node.admin,
            self.dir.join(format!("{KEY_NAME}.secret")),
            self.dir.join("bucket.key"),
        )
    }

    /// Starts the node with this index, and waits until it serves.
    #[track_caller]
    pub fn start(&mut self, index: usize) {
        let process = Process::spawn(&mut self.command(index));
        process.wait_for_address();
        self.nodes[index].process = Some(process);
    }

    /// Starts all nodes, one after the other.
    #[track_caller]
    pub fn start_all(&mut self) {
        for index in 0..self.nodes.len() {
            self.start(index);
        }
    }

    /// Returns the command that runs a node.
    pub fn command(&self, index: usize) -> Command {
        let mut command = self.samovar();
        command.arg("serve").arg("--config");
        command.arg(self.config(index));
        command
    }

    /// Kills a node.
    pub fn kill(&mut self, index: usize) {
        self.nodes[index].process = None;
    }

    /// Lets a node end as for an upgrade. Returns its lines.
    #[track_caller]
    pub fn stop(&mut self, index: usize) -> Vec<String> {
        self.nodes[index].process.take().unwrap().terminate()
    }

    /// Returns the nodes.
    pub fn all(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the process of a node, which is running.
    pub fn process(&self, index: usize) -> &Process {
        self.nodes[index].process.as_ref().unwrap()
    }

    /// Returns the addresses of all nodes.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// Returns the configuration file of a node.
    pub fn config(&self, index: usize) -> &Path {
        &self.nodes[index].config
    }

    /// Returns the local directory of a node.
    pub fn storage(&self, index: usize) -> PathBuf {
        self.dir.join(format!("node-{}", index + 1))
    }

    /// Returns a command of the program without settings from the environment of the tests.
    pub fn samovar(&self) -> Command {
        let program = self.program.to_str().unwrap();
        without_variables(program, &["NIX_", "SAMOVAR_", "XDG_", "AWS_", "PG"])
    }

    /// Runs a command on the storage of the nodes: its first words, which name the command, then
    /// `--config` with the configuration of this node, and more arguments. Returns its standard
    /// output.
    #[track_caller]
    pub fn run(&self, index: usize, command: &[&str], arguments: &[&str]) -> String {
        let mut samovar = self.samovar();
        samovar
            .args(command)
            .arg("--config")
            .arg(self.config(index));
        output(samovar.args(arguments)).trim().to_owned()
    }

    /// Creates a token with this name and these rights. Returns the token.
    #[track_caller]
    pub fn token(&self, name: &str, rights: &str) -> String {
        let arguments = ["--name", name, "--rights", rights];
        self.run(0, &["token", "create"], &arguments)
    }
}

impl Node {
    /// Returns the URL of the cache.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}
