//! The engine under test, with one bucket.
//!
//! By default it is s3s-fs. `make test-s3 SERVER=NAME` names another one by `SAMOVAR_TEST_S3`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rusty_s3::{Credentials, S3Action as _, UrlStyle};
use samovar_bucket::{Bucket, CredentialSource, FixedCredentials, Settings};
use testkit::process::Process;
use testkit::s3::{ACCESS_KEY, BUCKET, S3Engine, SECRET_KEY};
use testkit::{eventually, free_port};

/// A running engine.
#[derive(Debug)]
pub(crate) struct Engine {
    address: SocketAddr,
    key_id: String,
    secret: String,
    region: &'static str,
    _running: Running,
}

#[derive(Debug)]
enum Running {
    S3s(S3Engine),
    Other(Process, tempfile::TempDir),
}

impl Engine {
    /// Starts the engine. Returns `None`, and prints that, if s3s-fs is not installed.
    #[track_caller]
    pub(crate) fn start() -> Option<Self> {
        let name = std::env::var("SAMOVAR_TEST_S3").unwrap_or_default();
        match name.as_str() {
            "" | "s3s-fs" => {
                let engine = S3Engine::start()?;
                Some(Self {
                    address: engine.address(),
                    key_id: ACCESS_KEY.to_owned(),
                    secret: SECRET_KEY.to_owned(),
                    region: "us-east-1",
                    _running: Running::S3s(engine),
                })
            }
            "versitygw" => Some(versitygw()),
            "seaweedfs" => Some(seaweedfs()),
            "garage" => Some(garage()),
            other => panic!("SAMOVAR_TEST_S3={other:?}: no such engine"),
        }
    }

    /// Starts s3s-fs, which takes the labels before `domain` in a host name for a bucket. Returns
    /// `None` if it is not installed.
    #[track_caller]
    pub(crate) fn with_domain(domain: &str) -> Option<Self> {
        // Says whether it is installed.
        drop(S3Engine::start()?);
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(BUCKET)).unwrap();
        let mut command = Command::new(tools().join("bin/s3s-fs"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let port = address.port();
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]);
        command.args(["--domain", &format!("{domain}:{port}")]);
        command.arg(dir.path()).env("RUST_LOG", "error");
        let running = Running::Other(Process::spawn(&mut command), dir);
        eventually("s3s-fs answers", || TcpStream::connect(address).is_ok());
        Some(Self {
            address,
            key_id: ACCESS_KEY.to_owned(),
            secret: SECRET_KEY.to_owned(),
            region: "us-east-1",
            _running: running,
        })
    }

    /// Returns the name of the engine.
    pub(crate) fn name() -> String {
        let name = std::env::var("SAMOVAR_TEST_S3").unwrap_or_default();
        if name.is_empty() {
            "s3s-fs".to_owned()
        } else {
            name
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the settings of the bucket, below a prefix that ends with `/` or is empty.
    pub(crate) fn settings(&self, prefix: &str) -> Settings {
        self.settings_at(self.address, prefix)
    }

    /// Returns the settings of the bucket for a client that reaches the engine at another address.
    pub(crate) fn settings_at(&self, address: SocketAddr, prefix: &str) -> Settings {
        let region = self.region;
        let url = format!("s3://{BUCKET}/{prefix}?endpoint=http://{address}&region={region}");
        let mut settings = Settings::parse(&url).unwrap();
        settings.credentials = CredentialSource::Fixed(FixedCredentials {
            key_id: self.key_id.clone(),
            secret: self.secret.clone(),
            token: None,
        });
        settings
    }

    pub(crate) fn bucket(&self, prefix: &str) -> Bucket {
        Bucket::open(&self.settings(prefix)).unwrap()
    }
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.samovar/tools")
}

/// Starts versitygw, whose buckets are directories.
fn versitygw() -> Engine {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("data").join(BUCKET)).unwrap();
    let mut command = Command::new(tools().join("bin/versitygw"));
    command.env("ROOT_ACCESS_KEY", ACCESS_KEY);
    command.env("ROOT_SECRET_KEY", SECRET_KEY);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    command.args(["--port", &address.to_string(), "--quiet", "posix"]);
    command.arg(dir.path().join("data"));
    let running = Running::Other(Process::spawn(&mut command), dir);
    eventually("versitygw answers", || TcpStream::connect(address).is_ok());
    Engine {
        address,
        key_id: ACCESS_KEY.to_owned(),
        secret: SECRET_KEY.to_owned(),
        region: "us-east-1",
        _running: running,
    }
}

/// Starts `SeaweedFS`, and makes the bucket.
fn seaweedfs() -> Engine {
    let dir = tempfile::tempdir().unwrap();
    let identities = dir.path().join("identities.json");
    let text = format!(
        r#"{{"identities":[{{"name":"admin","actions":["Admin"],
            "credentials":[{{"accessKey":{ACCESS_KEY:?},"secretKey":{SECRET_KEY:?}}}]}}]}}"#
    );
    std::fs::write(&identities, text).unwrap();
    let mut weed = Command::new(tools().join("seaweedfs/weed"));
    weed.args([
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-volume.max=8",
    ]);
    weed.args(["-filer", "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
    weed.args(["-master.telemetry=false", "-master.volumeSizeLimitMB=256"]);
    for name in ["master", "volume", "filer", "s3"] {
        weed.arg(format!("-{name}.port.grpc={}", free_port()));
    }
    for name in ["master", "volume", "filer"] {
        weed.arg(format!("-{name}.port={}", free_port()));
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    weed.arg(format!("-s3.port={}", address.port()));
    weed.arg(format!("-s3.config={}", identities.display()));
    weed.arg(format!("-dir={}", dir.path().display()));
    let running = Running::Other(Process::spawn(&mut weed), dir);
    eventually("the bucket can be made", || make_bucket(address));
    let engine = Engine {
        address,
        key_id: ACCESS_KEY.to_owned(),
        secret: SECRET_KEY.to_owned(),
        region: "us-east-1",
        _running: running,
    };
    // Its volumes are made by the first objects.
    let bucket = engine.bucket("");
    eventually("the bucket can be written", || {
        bucket
            .put("first", b"x", &samovar_bucket::PutOptions::default())
            .is_ok()
    });
    bucket.delete(&["first"]).unwrap();
    engine
}

/// Starts Garage with one node, and makes the bucket and a key.
fn garage() -> Engine {
    let dir = tempfile::tempdir().unwrap();
    let program = tools().join("bin/garage");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let file = dir.path().join("garage.toml");
    let root = dir.path().display();
    let (rpc, admin) = (free_port(), free_port());
    let secret = "0123456789abcdef".repeat(4);
    let text = format!(
        "metadata_dir = \"{root}/meta\"\ndata_dir = \"{root}/data\"\ndb_engine = \"sqlite\"\n\
         replication_factor = 1\nrpc_bind_addr = \"127.0.0.1:{rpc}\"\n\
         rpc_public_addr = \"127.0.0.1:{rpc}\"\nrpc_secret = \"{secret}\"\n[s3_api]\n\
         s3_region = \"garage\"\napi_bind_addr = \"{address}\"\n[admin]\n\
         api_bind_addr = \"127.0.0.1:{admin}\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("-c").arg(&file).args(words);
        let output = testkit::process::finish(&mut command);
        output
            .status
            .success()
            .then(|| String::from_utf8(output.stdout).unwrap())
    };
    let mut command = Command::new(&program);
    command.arg("-c").arg(&file).arg("server");
    let server = Process::spawn(&mut command);
    let mut node = String::new();
    eventually("garage has a node", || {
        node = run(&["node", "id", "-q"]).unwrap_or_default();
        run(&["status"]).is_some() && !node.is_empty()
    });
    let node = node.split('@').next().unwrap().trim().to_owned();
    run(&["layout", "assign", &node, "-z", "dc1", "-c", "1G"]).unwrap();
    run(&["layout", "apply", "--version", "1"]).unwrap();
    eventually("the bucket can be made", || {
        run(&["bucket", "create", BUCKET]).is_some()
    });
    let (key_id, secret) = (format!("GK{}", "0123456789ab".repeat(2)), "ab".repeat(32));
    run(&["key", "import", "--yes", &key_id, &secret, "-n", "test"]).unwrap();
    run(&[
        "bucket", "allow", BUCKET, "--read", "--write", "--owner", "--key", &key_id,
    ])
    .unwrap();
    Engine {
        address,
        key_id,
        secret,
        region: "garage",
        _running: Running::Other(server, dir),
    }
}

fn make_bucket(address: SocketAddr) -> bool {
    let endpoint = format!("http://{address}").parse().unwrap();
    let bucket = rusty_s3::Bucket::new(endpoint, UrlStyle::Path, BUCKET, "us-east-1").unwrap();
    let keys = Credentials::new(ACCESS_KEY, SECRET_KEY);
    let url = bucket.create_bucket(&keys).sign(Duration::from_secs(60));
    let answered = ureq::put(url.as_str()).send_empty();
    answered.is_ok() || matches!(answered, Err(ureq::Error::StatusCode(409)))
}
