//! [`Link`]: a connection of its own, which is told when something changes.

use std::time::Duration;

use super::Postgres;
use super::server::{self, Purpose, ServerIdentity};
use super::session::Session;
use crate::error::StorageError;

/// A connection for one thread, apart from those of readers and of the writer.
#[derive(Debug)]
pub(crate) struct Link {
    session: Session,
    identity: ServerIdentity,
}

impl Link {
    /// Returns which server this is.
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests compare servers"))]
    #[must_use]
    pub(crate) const fn identity(&self) -> &ServerIdentity {
        &self.identity
    }

    /// Returns whether the connection is lost.
    #[must_use]
    pub(crate) fn is_lost(&self) -> bool {
        self.session.is_broken()
    }

    /// Lets [`wait`](Self::wait) return what is sent to a channel. `channel`: a plain name.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unavailable`], [`StorageError::Database`].
    pub(crate) fn listen(&self, channel: &str) -> Result<(), StorageError> {
        self.session
            .batch(&format!("listen \"{channel}\""), Duration::from_secs(5))?;
        Ok(())
    }

    /// Sends a message to all that listen to a channel. `channel`: a plain name.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unavailable`], [`StorageError::Database`].
    #[cfg(test)]
    pub(crate) fn notify(&self, channel: &str, message: &str) -> Result<(), StorageError> {
        let notify = "select pg_notify(?1, ?2)";
        self.session
            .query(notify, crate::sql::params![channel, message])?;
        Ok(())
    }

    /// Waits at most `limit` for messages of the channels. Returns those that have arrived.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unavailable`] if the connection is lost.
    pub(crate) fn wait(&self, limit: Duration) -> Result<Vec<String>, StorageError> {
        self.session.notifications(limit)
    }

    /// Returns the session, to run statements in it.
    pub(crate) const fn session(&self) -> &Session {
        &self.session
    }
}

impl Postgres {
    /// Makes a connection, and learns which server it reaches.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unavailable`], [`StorageError::Database`].
    pub(crate) fn link(&self) -> Result<Link, StorageError> {
        let (session, greeting) = server::connect(&self.settings, Purpose::Read, &self.counters)?;
        self.set_time(greeting.time);
        let mut identity = greeting.identity;
        let incarnation = session.batch(
            "insert into generation default values on conflict do nothing; \
             select id from generation",
            self.settings.connect_time,
        )?;
        identity.incarnation = incarnation.into_iter().flatten().next();
        Ok(Link { session, identity })
    }
}
