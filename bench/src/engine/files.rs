//! The files and the database that the servers send.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rusqlite::Connection;
use testkit::random::SplitMix64;

use crate::nginx;

/// Length of the file that servers send for `/file`, in bytes.
pub(crate) const FILE_LEN: u64 = 10 << 20;

/// Length of the file that servers send for `/big`, in bytes.
pub(crate) const BIG_LEN: u64 = 100 << 20;

/// Number of rows in the database of `/item`.
pub(crate) const ITEM_COUNT: u32 = 1000;

/// A directory with the files.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) dir: PathBuf,
}

impl Files {
    /// Creates the files in `dir`.
    pub(crate) fn make(dir: &Path) -> Result<Self> {
        // The bytes are random, in case a layer below the servers treats zeros specially.
        let bytes = SplitMix64::new(1).bytes(usize::try_from(FILE_LEN)?);
        fs::write(dir.join("file"), &bytes)?;
        fs::write(dir.join("big"), bytes.repeat(10))?;
        let mut database = Connection::open(dir.join("items.sqlite"))?;
        let change = database.transaction()?;
        change.execute_batch(
            "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price_cents INTEGER) STRICT",
        )?;
        for id in 1..=ITEM_COUNT {
            let row = (id, format!("item {id}"), id * 100);
            change.execute("INSERT INTO items VALUES (?, ?, ?)", row)?;
        }
        change.commit()?;
        Ok(Self {
            dir: dir.to_path_buf(),
        })
    }

    /// Writes a configuration of nginx. Returns its file.
    pub(crate) fn nginx(&self, port: u16, workers: usize) -> Result<PathBuf> {
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
