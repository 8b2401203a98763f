//! [`SeenTokens`]: the tokens that are known without the database.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use crate::error::StorageError;
use crate::metadata::{Database, tokens};
use crate::token::{Token, TokenHash};

/// Maximum number of tokens that are remembered as valid.
const COUNT_MAX: usize = 4096;

/// The tokens that were valid when last looked up. They decide how a body is received, which rate
/// limit counts a request, and which name is logged; no right depends on them.
#[derive(Debug, Default)]
pub(crate) struct SeenTokens(RwLock<Seen>);

#[derive(Debug, Default)]
struct Seen {
    tokens: HashMap<TokenHash, Token>,
    /// Number of times at which another node has changed tokens.
    epoch: u64,
}

/// How often other nodes have changed tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenEpoch(u64);

impl SeenTokens {
    /// Reads the valid tokens, so that the first request with each of them is known to have one.
    pub(super) fn read(&self, metadata: &Database) -> Result<(), StorageError> {
        let epoch = self.epoch();
        let tokens = tokens::valid(metadata, COUNT_MAX)?;
        // If there may be more, those that are used are remembered.
        if tokens.len() < COUNT_MAX {
            let mut seen = self.seen_mut();
            if TokenEpoch(seen.epoch) == epoch {
                seen.tokens = tokens.into_iter().collect();
            }
        }
        Ok(())
    }

    /// Calls `read` with the token if it is remembered.
    pub(super) fn find<T>(&self, hash: &TokenHash, read: impl FnOnce(&Token) -> T) -> Option<T> {
        let seen = self.0.read().unwrap_or_else(PoisonError::into_inner);
        seen.tokens.get(hash).map(read)
    }

    /// Returns the epoch. Call this before the query whose result is
    /// [remembered](Self::remember).
    pub(super) fn epoch(&self) -> TokenEpoch {
        let seen = self.0.read().unwrap_or_else(PoisonError::into_inner);
        TokenEpoch(seen.epoch)
    }

    /// Remembers a token that was read in this epoch, unless another node has changed tokens since.
    pub(super) fn remember(&self, hash: TokenHash, token: Token, epoch: TokenEpoch) {
        let mut seen = self.seen_mut();
        if TokenEpoch(seen.epoch) != epoch {
            return;
        }
        if seen.tokens.len() >= COUNT_MAX {
            seen.tokens.clear();
        }
        seen.tokens.insert(hash, token);
    }

    pub(super) fn forget(&self, hash: &TokenHash) {
        self.seen_mut().tokens.remove(hash);
    }

    /// Forgets all tokens, also those that queries are just reading.
    pub(crate) fn forget_all(&self) {
        let mut seen = self.seen_mut();
        seen.epoch += 1;
        seen.tokens.clear();
    }

    fn seen_mut(&self) -> RwLockWriteGuard<'_, Seen> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
