//! Notes in a SQLite database. Handlers are methods of a shared value and may block.
//!
//! ```text
//! cargo run --example database
//! curl -d 'Buy tea' http://127.0.0.1:8080/notes
//! curl http://127.0.0.1:8080/notes
//! curl http://127.0.0.1:8080/notes/1
//! curl -X DELETE http://127.0.0.1:8080/notes/1
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};
use samovar_http::http::Status;
use samovar_http::{Error, Request, Router, with};

struct Notes {
    /// One connection for all workers. A server with many reads would use one connection per
    /// worker.
    database: Mutex<Connection>,
}

impl Notes {
    fn open() -> rusqlite::Result<Self> {
        let database = Connection::open_in_memory()?;
        database.execute(
            "CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
            [],
        )?;
        Ok(Self {
            database: Mutex::new(database),
        })
    }

    fn database(&self) -> std::sync::MutexGuard<'_, Connection> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self, _: &mut Request) -> Result<String, Error> {
        let database = self.database();
        let mut query = database.prepare("SELECT id, text FROM note ORDER BY id")?;
        let line = |row: &rusqlite::Row<'_>| -> rusqlite::Result<String> {
            Ok(format!(
                "{}: {}\n",
                row.get::<_, i64>(0)?,
                row.get::<_, String>(1)?
            ))
        };
        Ok(query.query_map([], line)?.collect::<Result<_, _>>()?)
    }

    /// `None` gives 404; a database error gives 500 without details.
    fn show(&self, request: &mut Request) -> Result<Option<String>, Error> {
        let (query, id) = ("SELECT text FROM note WHERE id = ?", request.param("id"));
        let note = self
            .database()
            .query_row(query, params![id], |row| row.get(0));
        Ok(note.optional()?)
    }

    fn add(&self, request: &mut Request) -> Result<(Status, String), Error> {
        let text = std::str::from_utf8(request.body())
            .map_err(|error| Error::from(error).because(Status::BAD_REQUEST, "a note is text"))?;
        let database = self.database();
        database.execute("INSERT INTO note (text) VALUES (?)", params![text])?;
        Ok((
            Status::CREATED,
            format!("/notes/{}\n", database.last_insert_rowid()),
        ))
    }

    fn delete(&self, request: &mut Request) -> Result<Status, Error> {
        let id = request.param("id");
        let count = self
            .database()
            .execute("DELETE FROM note WHERE id = ?", params![id])?;
        Ok(if count == 0 {
            Status::NOT_FOUND
        } else {
            Status::NO_CONTENT
        })
    }
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let notes = Arc::new(Notes::open().map_err(std::io::Error::other)?);
    Router::new()
        .get("/notes", with(&notes, Notes::list))
        .post("/notes", with(&notes, Notes::add))
        .get("/notes/{id}", with(&notes, Notes::show))
        .delete("/notes/{id}", with(&notes, Notes::delete))
        .serve(addr)
}
