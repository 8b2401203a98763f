//! [`Client`]: decides which NARs a request may use.

use crate::token::Token;

/// The client of a request about NARs. It may use a NAR that was sent with its token, and if it may
/// read the cache, each NAR that a path of the cache uses.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    /// Row number of the token. `None`: the client has none.
    pub token: Option<i64>,
    /// Whether the client may read the cache.
    pub is_reader: bool,
}

impl From<&Token> for Client {
    fn from(token: &Token) -> Self {
        Self {
            token: Some(token.id),
            is_reader: token.rights.read,
        }
    }
}
