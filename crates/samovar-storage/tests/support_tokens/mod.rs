//! A token for uploads, for tests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use samovar_storage::metadata::{Database, NewToken, tokens};
use samovar_storage::token::{Rights, TokenHash};

/// Adds a token that may read and push all paths of all caches, and never expires.
pub(crate) fn add_token(database: &Database, name: &str, text: &str) {
    let new = NewToken {
        name: name.to_owned(),
        cache: None,
        names: None,
        rights: Rights {
            read: true,
            push: true,
            pin: false,
        },
        expires_at: None,
    };
    let hash = TokenHash::of(text.as_bytes()).unwrap();
    tokens::add(database, &hash, &new).unwrap();
}
