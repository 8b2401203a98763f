//! nginx as a process of a test.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use crate::process::Process;
use crate::{eventually, free_port, http1};

/// Directories that nginx may be in, for a `PATH` without those of the administrator.
const DIRECTORIES: [&str; 2] = ["/usr/sbin", "/usr/bin"];

/// A running nginx, whose files are in a temporary directory.
#[derive(Debug)]
pub struct Nginx {
    /// The process of nginx.
    pub process: Process,
    dir: tempfile::TempDir,
    address: SocketAddr,
}

impl Nginx {
    /// Starts nginx with these lines in the block `http`. In them, `@port@` stands for its port,
    /// and `@dir@` for its directory. Returns `None` if nginx is not installed.
    #[track_caller]
    pub fn start(http: &str) -> Option<Self> {
        let program = DIRECTORIES.map(|dir| Path::new(dir).join("nginx"));
        let program = program.into_iter().find(|program| program.exists())?;
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let root = dir.path().display().to_string();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {root}/{name};\n"));
        let http = http.replace("@port@", &port.to_string());
        let config = format!(
            "daemon off; master_process off; pid {root}/pid; error_log stderr;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\n{}access_log {root}/access;\n{}\n}}\n",
            temporary.concat(),
            http.replace("@dir@", &root)
        );
        let file = dir.path().join("nginx.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(program);
        command.arg("-c").arg(file).arg("-p").arg(dir.path());
        let process = Process::spawn(&mut command);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        eventually("nginx answers", || {
            http1::Connection::try_connect(address).is_ok()
        });
        Some(Self {
            process,
            dir,
            address,
        })
    }

    /// Starts nginx in front of several servers, which it asks in turn. A request that a server
    /// does not answer is sent to the next one, except if the server may have changed something.
    /// Returns `None` if nginx is not installed.
    #[track_caller]
    pub fn before(servers: &[SocketAddr]) -> Option<Self> {
        let servers: String = servers
            .iter()
            .map(|server| format!("server {server} max_fails=1 fail_timeout=2s; "))
            .collect();
        Self::start(&format!(
            "upstream nodes {{ {servers} keepalive 32; }}\n\
             server {{ listen 127.0.0.1:@port@; location / {{ proxy_pass http://nodes;\n\
             proxy_http_version 1.1; proxy_set_header Connection \"\";\n\
             proxy_set_header Host $host; proxy_buffering off; client_max_body_size 0;\n\
             proxy_connect_timeout 2s; proxy_read_timeout 120s; }} }}"
        ))
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the lines of the access log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("access")).unwrap()
    }
}
