//! [`Version`]: tells whether anything was committed, without the hash parts.

use std::sync::Arc;

use crate::database::{Database, Token, TokenSource};

/// A version of the store's database.
///
/// If a version read before some rows equals one read after them, the rows belong to that version:
/// as long as the version stays the same, so do the rows. One version before the rows is not
/// enough, because a commit in rollback mode that is interrupted takes its version back.
#[derive(Debug, Clone)]
pub struct Version {
    source: Arc<TokenSource>,
    token: Token,
}

impl Version {
    /// Returns the current version; `None` if the database cannot be opened, or if there is no
    /// freshness token now.
    pub(super) fn of(database: &Database) -> Option<Self> {
        let source = Arc::clone(database.session().ok()?.source());
        let token = source.read()?;
        Some(Self { source, token })
    }
}

impl PartialEq for Version {
    /// Tokens of different sources cannot be compared: between them the file was replaced.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.source, &other.source) && self.token == other.token
    }
}

impl Eq for Version {}
