//! [`Follower`]: a WebSocket that receives the changes of all pins of a cache.

use std::sync::Arc;

use samovar_http::ws::{CloseCode, Socket};
use samovar_storage::StoredCache;
use samovar_storage::metadata::tokens;
use samovar_storage::token::Token;

use super::Change;

/// Function that returns the message about a change. `None`: a policy hides the pin from the
/// client.
pub(crate) type ToMessage = dyn Fn(&Change) -> Option<String> + Send + Sync;

/// A WebSocket that receives the changes of all pins of a cache.
#[derive(Clone)]
pub(crate) struct Follower {
    pub(crate) stored: StoredCache,
    /// The client's token.
    pub(crate) token: Token,
    pub(crate) socket: Socket,
    pub(crate) to_message: Arc<ToMessage>,
}

impl Follower {
    /// Sends changes of pins. Closes the socket if the token is not valid any more. A client that
    /// does not read is disconnected by the engine.
    pub(super) fn send(&self, changes: &[Change]) {
        match tokens::is_valid(self.stored.metadata(), self.token.id) {
            Ok(true) => {
                let messages = changes.iter().filter_map(&*self.to_message);
                messages.for_each(|message| self.socket.send(&message));
            }
            Ok(false) => {
                let reason = "the token was revoked or has expired";
                self.socket.close(CloseCode::POLICY, reason);
            }
            // The client would miss the changes.
            Err(_error) => {
                let reason = "the storage cannot be read";
                self.socket.close(CloseCode::TRY_AGAIN, reason);
            }
        }
    }
}
