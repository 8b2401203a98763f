//! Nodes of one cache, with a PostgreSQL and an S3 engine that tests stop, hang and disturb.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

pub(crate) mod load;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use testkit::eventually;
use testkit::faults::FaultProxy;
use testkit::http1::{Connection, Response};
use testkit::nginx::Nginx;
use testkit::nodes::{Nodes, Shared};
use testkit::postgres::Postgres;
use testkit::s3::S3Engine;

use crate::support_uploads::{MadePath, upload};

/// The nodes, and what they share. The fields are dropped in this order: the nodes first.
pub(crate) struct Cluster {
    pub(crate) nodes: Nodes,
    /// Between the nodes and PostgreSQL.
    pub(crate) to_database: FaultProxy,
    /// Between the nodes and the bucket.
    pub(crate) to_bucket: FaultProxy,
    pub(crate) postgres: Postgres,
    pub(crate) engine: S3Engine,
    dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts `count` nodes. Returns `None` if the S3 engine is not installed.
    #[track_caller]
    pub(crate) fn start(count: usize) -> Option<Self> {
        Self::with(count, "")
    }

    /// Starts `count` nodes with more options.
    #[track_caller]
    pub(crate) fn with(count: usize, options: &str) -> Option<Self> {
        let engine = S3Engine::start()?;
        let postgres = Postgres::with_settings(&["listen_addresses=127.0.0.1"]);
        let to_bucket = FaultProxy::start(engine.address());
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, postgres.port()));
        let to_database = FaultProxy::start(server);
        let shared = Shared {
            database_url: format!("postgresql://postgres@{}/postgres", to_database.address()),
            bucket_url: S3Engine::url_at(to_bucket.address()),
            options: options.to_owned(),
        };
        let dir = tempfile::tempdir().unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_samovar"));
        let mut nodes = Nodes::new(program, dir.path(), count, &shared);
        nodes.start_all();
        Some(Self {
            nodes,
            to_database,
            to_bucket,
            postgres,
            engine,
            dir,
        })
    }

    /// Starts nginx in front of all nodes. Returns `None` if it is not installed.
    #[track_caller]
    pub(crate) fn behind_nginx(&self) -> Option<Nginx> {
        Nginx::before(&self.nodes.addresses())
    }

    /// Returns a directory for files of the test.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the URL of a node.
    pub(crate) fn url(&self, index: usize) -> String {
        self.nodes.all()[index].url()
    }

    /// Returns the address of a node.
    pub(crate) fn address(&self, index: usize) -> SocketAddr {
        self.nodes.all()[index].address
    }

    /// Sends a GET request to a node.
    #[track_caller]
    pub(crate) fn get(&self, index: usize, target: &str) -> Response {
        Connection::connect(self.address(index)).get(target)
    }

    /// Uploads the NAR file and the narinfo of a path through a node. Asserts that both succeed.
    #[track_caller]
    pub(crate) fn publish(&self, index: usize, token: &str, path: &MadePath) {
        let requests = [
            (path.file_target(), path.file.clone()),
            (path.target(), path.narinfo().into_bytes()),
        ];
        for (target, body) in requests {
            let answer = upload(self.address(index), token, &target, body);
            assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        }
    }

    /// Asserts that all nodes serve a path with the uploaded bytes.
    #[track_caller]
    pub(crate) fn assert_serve(&self, path: &MadePath) {
        for index in 0..self.nodes.all().len() {
            let narinfo = self.get(index, &path.target());
            assert_eq!(narinfo.status, 200, "node {index}: {}", narinfo.text());
            let text = narinfo.text();
            // After a deletion, the file gets another name.
            let url = text.lines().find_map(|line| line.strip_prefix("URL: "));
            let expected = path.narinfo_with("URL", url.unwrap());
            for line in expected.lines() {
                assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
            }
            let file = self.get(index, &format!("/{}", url.unwrap()));
            assert_eq!(file.status, 200, "node {index}: {}", file.text());
            assert!(file.body == path.file, "node {index}: {}", path.store_path);
        }
    }

    /// Starts a node again, and waits until it answers.
    #[track_caller]
    pub(crate) fn restart(&mut self, index: usize) {
        self.nodes.start(index);
        eventually("the node is ready", || {
            self.get(index, "/readyz").status == 200
        });
    }
}
