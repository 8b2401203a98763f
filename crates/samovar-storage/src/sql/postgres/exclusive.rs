//! [`Exclusive`]: work that one node does at a time.

use super::Postgres;
use super::keys::Key;
use super::server::Purpose;
use super::session::Session;
use crate::error::StorageError;

/// The right to do some work alone among all nodes, such as collecting, until it is dropped.
#[derive(Debug)]
pub(crate) struct Exclusive {
    session: Session,
}

impl Exclusive {
    /// Returns whether no other node can have got the right meanwhile. It is lost with the
    /// connection to the server.
    #[must_use]
    pub(crate) fn is_held(&self) -> bool {
        !self.session.is_broken() && self.session.execute("select 1", &[]).is_ok()
    }
}

impl Postgres {
    /// Returns the right to do the work of this name, or `None` if another node has it.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unavailable`], [`StorageError::Database`].
    pub(crate) fn exclusive(&self, name: &str) -> Result<Option<Exclusive>, StorageError> {
        let session = self.connect(Purpose::Read)?;
        let lock = Key::named(&self.settings, name).number();
        let query = format!("select pg_try_advisory_lock({lock})");
        let answers = session.batch(&query, self.settings.connect_time)?;
        let is_ours = answers.first().is_some_and(|it| it.as_deref() == Some("t"));
        Ok(is_ours.then_some(Exclusive { session }))
    }
}
