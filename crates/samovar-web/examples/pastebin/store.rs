//! Pastes and sessions in SQLite.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, Result, Row, params};
use serde::{Deserialize, Serialize};

const PAGE_LEN: u32 = 20;

pub(crate) struct Store {
    database: Mutex<Connection>,
}

#[derive(Deserialize)]
pub(crate) struct Draft {
    title: String,
    text: String,
}

#[derive(Serialize)]
pub(crate) struct Paste {
    pub(crate) id: i64,
    pub(crate) author: String,
    pub(crate) version: i64,
    title: String,
    pub(crate) text: String,
}

#[derive(Serialize)]
pub(crate) struct Summary {
    id: i64,
    author: String,
    title: String,
}

impl Store {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let database = Connection::open(path)?;
        database.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE IF NOT EXISTS paste (id INTEGER PRIMARY KEY, author TEXT NOT NULL,
                 version INTEGER NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL) STRICT;
             CREATE TABLE IF NOT EXISTS session (token TEXT PRIMARY KEY, name TEXT NOT NULL,
                 started INTEGER NOT NULL DEFAULT (unixepoch())) STRICT;
             DELETE FROM session WHERE started < unixepoch('now', '-30 days')",
        )?;
        let database = Mutex::new(database);
        Ok(Self { database })
    }

    fn database(&self) -> MutexGuard<'_, Connection> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn start_session(&self, name: &str) -> Result<String, samovar_http::Error> {
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let token = format!("{:032x}", u128::from_be_bytes(bytes));
        let insert = "INSERT INTO session (token, name) VALUES (?, ?)";
        self.database().execute(insert, [&token, name])?;
        Ok(token)
    }

    pub(crate) fn user_of(&self, token: &str) -> Result<Option<String>> {
        let query = "SELECT name FROM session
            WHERE token = ? AND started >= unixepoch('now', '-30 days')";
        let name = self.database().query_row(query, [token], |row| row.get(0));
        name.optional()
    }

    pub(crate) fn end_session(&self, token: &str) -> Result<()> {
        let delete = "DELETE FROM session WHERE token = ?";
        self.database().execute(delete, [token]).map(drop)
    }

    pub(crate) fn list(&self, author: Option<&str>, page: u32) -> Result<Vec<Summary>> {
        let database = self.database();
        let mut query = database.prepare(
            "SELECT id, author, title FROM paste WHERE ?1 IS NULL OR author = ?1
             ORDER BY id DESC LIMIT ?2 OFFSET ?3",
        )?;
        let offset = i64::from(page.saturating_sub(1)) * i64::from(PAGE_LEN);
        let rows = query.query_map(params![author, PAGE_LEN, offset], |row| {
            Ok(Summary {
                id: row.get(0)?,
                author: row.get(1)?,
                title: row.get(2)?,
            })
        })?;
        rows.collect()
    }

    pub(crate) fn add(&self, author: &str, draft: &Draft) -> Result<Paste> {
        self.database().query_row(
            "INSERT INTO paste (author, version, title, text) VALUES (?, 1, ?, ?) RETURNING *",
            [author, &draft.title, &draft.text],
            paste,
        )
    }

    pub(crate) fn find(&self, id: i64) -> Result<Option<Paste>> {
        let query = "SELECT * FROM paste WHERE id = ?";
        self.database().query_row(query, [id], paste).optional()
    }

    /// Returns `None` if the paste is not in this version any more.
    pub(crate) fn change(&self, old: &Paste, draft: &Draft) -> Result<Option<Paste>> {
        let changed = self.database().query_row(
            "UPDATE paste SET version = version + 1, title = ?, text = ?
             WHERE id = ? AND version = ? RETURNING *",
            params![draft.title, draft.text, old.id, old.version],
            paste,
        );
        changed.optional()
    }

    pub(crate) fn delete(&self, id: i64) -> Result<()> {
        let delete = "DELETE FROM paste WHERE id = ?";
        self.database().execute(delete, [id]).map(drop)
    }
}

fn paste(row: &Row<'_>) -> Result<Paste> {
    Ok(Paste {
        id: row.get("id")?,
        author: row.get("author")?,
        version: row.get("version")?,
        title: row.get("title")?,
        text: row.get("text")?,
    })
}
