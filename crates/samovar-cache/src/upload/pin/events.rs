//! `GET upload/pin-events`: a WebSocket that receives the changes of all pins of a cache.

use std::sync::Arc;

use samovar_http::ws::{Limits, Message, Socket, Upgrade};
use samovar_http::{Request, Response};
use samovar_storage::StoredCache;
use samovar_storage::metadata::pins;
use samovar_storage::token::Token;

use super::generations::page;
use super::{busy, context_of, parameters};
use crate::known::pin_watch::Follower;
use crate::narinfo::narinfos::Narinfos;
use crate::route::path::encode as percent_encode;
use crate::upload::authorize::{Right, client};
use crate::upload::{Context, unavailable};

/// Maximum length of the messages that wait for a client, in bytes. Above it, the client is
/// disconnected.
const OUTBOUND_LEN_MAX: usize = 64 << 10;

/// Maximum length of a message of a client, in bytes. Messages are ignored.
const MESSAGE_LEN_MAX: usize = 1024;

/// Opens a WebSocket that receives the changes of pins.
pub(in crate::upload) fn open(context: Context<'_>, request: &mut Request) -> Response {
    let response = try_open(context, request);
    response.unwrap_or_else(|refusal| refusal)
}

fn try_open(context: Context<'_>, request: &mut Request) -> Result<Response, Response> {
    let token = client(context, request.head(), Right::ReadPins)?;
    let [] = parameters(request.head(), [])?;
    let Ok((socket, response)) = upgrade().try_accept(request) else {
        // Returns the refusal of the handshake.
        return Ok(upgrade().accept(request));
    };
    let watch = &context.narinfos.reader.shared.pin_watch;
    let change_count = watch.change_count();
    let generations = pins::newest_generations(context.stored.metadata(), context.stored.id());
    let generations = generations.map_err(|error| unavailable(context, &error))?;
    let follower = follower(context, token, socket);
    let followed = watch.follow(follower, generations, change_count);
    followed.map_err(|error| busy(&error))?;
    Ok(response)
}

fn follower(context: Context<'_>, token: Token, socket: Socket) -> Follower {
    let narinfos = Arc::clone(context.narinfos);
    let stored = context.stored.clone();
    Follower {
        stored: context.stored.clone(),
        token,
        socket,
        to_message: Arc::new(move |(name, newest)| {
            let shown = shown(&stored, &narinfos, name, *newest)?;
            Some(format!("{} {shown}", percent_encode(name.as_bytes())))
        }),
    }
}

/// Returns the newest generation of a pin that no policy hides. `newest` is 0 if the pin was
/// removed. `None`: a policy hides all generations.
fn shown(stored: &StoredCache, narinfos: &Arc<Narinfos>, name: &str, newest: i64) -> Option<i64> {
    if newest == 0 || narinfos.reader.policy.is_open() {
        return Some(newest);
    }
    let page = page(context_of(stored, narinfos), &name.parse().ok()?, i64::MAX);
    page.ok()?.pins.first().map(|pin| pin.generation)
}

fn upgrade() -> Upgrade {
    Upgrade::new(|_: &Socket, _: Message<'_>| {}).limits(Limits {
        message_len_max: MESSAGE_LEN_MAX,
        outbound_len_max: OUTBOUND_LEN_MAX,
        ..Limits::default()
    })
}
