//! The generations of a pin, as the body of a response.
//!
//! The generations are read in pages while they are sent, because one pin's generations may have
//! 60 MB in total.

use std::io;
use std::sync::Arc;

use samovar_http::{Body, Response};
use samovar_protocol::end_line;
use samovar_protocol::names::PinName;
use samovar_protocol::pins::{Generation, fingerprint, signature_line};
use samovar_storage::StoredCache;
use samovar_storage::metadata::{Pin, pins};

use super::context_of;
use super::read::readable_pins;
use crate::narinfo::narinfos::Narinfos;
use crate::upload::{Context, unavailable};

/// Maximum number of generations in a page.
const PAGE_LEN: u32 = 256;

/// Consecutive generations of a pin.
pub(super) struct Page {
    /// The newest generation that was read, also if a policy hides it.
    pub(super) newest: Option<i64>,
    /// The generations that no policy hides, newest first.
    pub(super) pins: Vec<Pin>,
    /// The oldest generation that was read, if there may be older ones.
    rest: Option<i64>,
}

/// The state of a body.
struct Writer {
    narinfos: Arc<Narinfos>,
    stored: StoredCache,
    name: PinName,
    /// Number of generations in the text so far.
    count: usize,
    /// Lines with the signatures of the newest generation.
    signatures: String,
}

/// Reads generations with a number less than `below`. Reads further pages if a policy hides all
/// generations of the first ones.
pub(super) fn page(context: Context<'_>, name: &PinName, mut below: i64) -> Result<Page, Response> {
    let metadata = context.stored.metadata();
    let mut newest = None;
    loop {
        let pins = pins::generations(metadata, context.stored.id(), name, below, PAGE_LEN);
        let pins = pins.map_err(|error| unavailable(context, &error))?;
        newest = newest.or(pins.first().map(|pin| pin.generation));
        let is_full = pins.len() >= PAGE_LEN as usize;
        let rest = pins.last().filter(|_| is_full).map(|pin| pin.generation);
        let pins = readable_pins(context, pins)?;
        match rest {
            Some(oldest) if pins.is_empty() => below = oldest,
            rest => return Ok(Page { newest, pins, rest }),
        }
    }
}

/// Returns the body with all generations of a pin. `page`: the first page, which is not empty.
pub(super) fn generations_body(context: Context<'_>, name: &PinName, page: Page) -> Body {
    let mut signatures = String::new();
    if let Some(newest) = page.pins.first() {
        let newest = generation(newest);
        let fingerprint = fingerprint(context.store_dir, name.as_str(), &newest);
        let signing = &context.narinfos.signing;
        let all = signing.sign_pin(fingerprint.as_bytes());
        signatures.extend(all.iter().map(signature_line));
    }
    let mut writer = Writer {
        narinfos: Arc::clone(context.narinfos),
        stored: context.stored.clone(),
        name: name.clone(),
        count: 0,
        signatures,
    };
    if page.rest.is_none() {
        return writer.text(&page).into();
    }
    let mut next = Some(Ok(page));
    Body::pieces(std::iter::from_fn(move || {
        Some(next.take()?.map(|page| {
            let text = writer.text(&page);
            next = page.rest.map(|oldest| writer.page(oldest));
            text
        }))
    }))
    // If the database is locked, the storage itself lends the slot.
    .keeping_slot()
}

impl Writer {
    fn page(&self, below: i64) -> io::Result<Page> {
        let page = page(context_of(&self.stored, &self.narinfos), &self.name, below);
        // The error was reported.
        page.map_err(|_response| io::Error::other("the storage cannot be read"))
    }

    /// Returns the text of a page, and after the last page the end of the body.
    fn text(&mut self, page: &Page) -> Vec<u8> {
        self.count += page.pins.len();
        let lines = page.pins.iter().map(|pin| generation(pin).line());
        let mut text: String = lines.collect();
        if page.rest.is_none() {
            text.push_str(&self.signatures);
            text.push_str(&end_line(self.count));
        }
        text.into_bytes()
    }
}

/// Returns a pin as clients see it.
fn generation(pin: &Pin) -> Generation {
    Generation {
        number: pin.generation.unsigned_abs(),
        path: pin.path.clone(),
        created_at: pin.created_at,
        expires_at: pin.expires_at,
        token: pin.token.clone(),
        host: pin.host.clone(),
        message: pin.message.clone(),
    }
}
