//! Connections to servers of tests, and what is done by them.

use std::sync::atomic::{AtomicU32, Ordering};

pub use postgres::{Client, NoTls};

use super::Postgres;
use crate::process::signal;
use crate::{PATIENCE, eventually};

impl Postgres {
    /// Opens a connection.
    pub fn client(&self) -> Client {
        Client::connect(&self.url(), NoTls).unwrap()
    }

    /// Creates a database whose name no other test uses. Returns its URL.
    pub fn new_database(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let create = format!("create database {name}");
        self.client().batch_execute(&create).unwrap();
        self.url_of(&name)
    }

    /// Lets a standby accept writes.
    pub fn promote(&self) {
        let mut client = self.client();
        client.query_one("select pg_promote()", &[]).unwrap();
    }

    /// Kills the process of one connection. The server then ends all others, and recovers.
    pub fn crash_one_process(&self) {
        let mut client = self.client();
        let pid = client.query_one("select pg_backend_pid()", &[]).unwrap();
        signal(pid.get::<_, i32>(0).try_into().unwrap(), "KILL");
        eventually("the server has noticed it", || {
            client.is_valid(PATIENCE).is_err()
        });
    }
}
