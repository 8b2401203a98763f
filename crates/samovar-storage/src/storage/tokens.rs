//! [`SeenTokens`]: the tokens that are known without the database.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use crate::error::StorageError;
use crate::metadata::{Database, tokens};
use crate::token::{Token, TokenHash};

/// Maximum number of tokens that are remembered as valid.
const COUNT_MAX: usize = 4096;

/// The tokens that were valid when last looked up. They decide how a body is received, which rate
/// limit counts a request, and which name is logged; no right depends on them.
#[derive(Debug, Default)]
pub(crate) struct SeenTokens(RwLock<HashMap<TokenHash, Token>>);

impl SeenTokens {
    /// Reads the valid tokens, so that the first request with each of them is known to have one.
    pub(super) fn read(&self, metadata: &Database) -> Result<(), StorageError> {
        let tokens = tokens::valid(metadata, COUNT_MAX)?;
        // If there may be more, those that are used are remembered.
        if tokens.len() < COUNT_MAX {
            let mut seen = self.0.write().unwrap_or_else(PoisonError::into_inner);
            *seen = tokens.into_iter().collect();
        }
        Ok(())
    }

    /// Calls `read` with the token if it is remembered.
    pub(super) fn find<T>(&self, hash: &TokenHash, read: impl FnOnce(&Token) -> T) -> Option<T> {
        let seen = self.0.read().unwrap_or_else(PoisonError::into_inner);
        seen.get(hash).map(read)
    }

    pub(super) fn remember(&self, hash: TokenHash, token: Token) {
        let mut seen = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= COUNT_MAX {
            seen.clear();
        }
        seen.insert(hash, token);
    }

    pub(super) fn forget(&self, hash: &TokenHash) {
        let mut seen = self.0.write().unwrap_or_else(PoisonError::into_inner);
        seen.remove(hash);
    }
}
