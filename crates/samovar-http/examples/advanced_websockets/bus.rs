//! Messages between servers, by PostgreSQL's LISTEN and NOTIFY.
//!
//! PostgreSQL stores no notifications: a server gets those that are sent while it is connected.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, Error, NoTls};
use samovar_http::log::Logger;

use super::hub::Hub;

/// Pause before the next attempt to connect to the database.
const PAUSE: Duration = Duration::from_millis(200);

/// Sends messages to all servers. It has one connection, for which handlers wait; a busy server
/// would have several, in a pool such as `r2d2`.
pub(crate) struct Bus {
    url: String,
    /// `None` before the first message, and after the connection was lost.
    client: Mutex<Option<Client>>,
}

impl Bus {
    pub(crate) fn new(url: String) -> Self {
        Self {
            url,
            client: Mutex::default(),
        }
    }

    /// Sends a message to all servers, including this one. Returns once the database has it.
    pub(crate) fn publish(&self, channel: &str, text: &str) -> Result<(), Error> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = match client.take().filter(|client| !client.is_closed()) {
            Some(open) => open,
            None => Client::connect(&self.url, NoTls)?,
        };
        let payload = format!("{channel} {text}");
        open.execute("SELECT pg_notify('messages', $1)", &[&payload])?;
        // After an error the connection is dropped.
        *client = Some(open);
        Ok(())
    }
}

/// Subscribes to the messages of all servers, and starts a thread that delivers them.
pub(crate) fn listen(url: &str, hub: Arc<Hub>, log: Logger) -> Result<(), Error> {
    let mut client = subscribe(url)?;
    let url = url.to_owned();
    std::thread::spawn(move || {
        loop {
            // A connection that ends without an error also ends the iterator.
            if let Err(error) = deliver(&mut client, &hub) {
                log.error(format_args!("lost the database: {error}"));
            }
            client = loop {
                std::thread::sleep(PAUSE);
                if let Ok(client) = subscribe(&url) {
                    break client;
                }
            };
        }
    });
    Ok(())
}

fn subscribe(url: &str) -> Result<Client, Error> {
    let mut client = Client::connect(url, NoTls)?;
    client.batch_execute("LISTEN messages")?;
    Ok(client)
}

/// Delivers messages until the connection ends.
fn deliver(client: &mut Client, hub: &Hub) -> Result<(), Error> {
    let mut notifications = client.notifications();
    let mut messages = notifications.blocking_iter();
    while let Some(message) = messages.next()? {
        let (channel, text) = message.payload().split_once(' ').unwrap_or_default();
        hub.deliver(channel, text);
    }
    Ok(())
}
