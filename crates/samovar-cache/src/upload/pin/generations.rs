//! The generations of a pin, as the body of a response.
//!
//! They are read in pages while they are sent: those of one pin may have 60 MB.

use std::io;
use std::sync::Arc;

use samovar_http::{Body, Response};
use samovar_nix::StoreDir;
use samovar_protocol::names::PinName;
use samovar_storage::metadata::Pin;

use super::context_of;
use crate::narinfo::narinfos::Narinfos;
use crate::route::path::encode as percent_encode;
use crate::upload::{Context, Uploads, unavailable};

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
    uploads: Uploads,
    name: PinName,
    /// Number of generations in the text so far.
    count: usize,
    /// Lines with the signatures of the newest generation.
    signatures: String,
}

impl Uploads {
    /// Reads generations with a number less than `below`. Reads further pages if a policy hides all
    /// generations of the first ones.
    pub(super) fn page(
        &self,
        context: Context<'_>,
        name: &PinName,
        mut below: i64,
    ) -> Result<Page, Response> {
        let mut newest = None;
        loop {
            let pins = self.stored.generations(name, below, PAGE_LEN);
            let pins = pins.map_err(|error| unavailable(context, &error))?;
            newest = newest.or(pins.first().map(|pin| pin.generation));
            let is_full = pins.len() >= PAGE_LEN as usize;
            let rest = pins.last().filter(|_| is_full).map(|pin| pin.generation);
            let pins = self.readable_pins(context, pins)?;
            match rest {
                Some(oldest) if pins.is_empty() => below = oldest,
                rest => return Ok(Page { newest, pins, rest }),
            }
        }
    }

    /// Returns the body with all generations of a pin. `page`: the first page, which is not empty.
    pub(super) fn generations_body(
        &self,
        context: Context<'_>,
        name: &PinName,
        page: Page,
    ) -> Body {
        let mut signatures = String::new();
        if let Some(newest) = page.pins.first() {
            let fingerprint = fingerprint(newest, context.store_dir);
            for signature in context.narinfos.signing.sign_pin(fingerprint.as_bytes()) {
                signatures.push_str(&format!("sig {signature}\n"));
            }
        }
        let mut writer = Writer {
            narinfos: Arc::clone(context.narinfos),
            uploads: self.clone(),
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
}

impl Writer {
    fn page(&self, below: i64) -> io::Result<Page> {
        let page = self
            .uploads
            .page(context_of(&self.narinfos), &self.name, below);
        // The error was reported.
        page.map_err(|_response| io::Error::other("the storage cannot be read"))
    }

    /// Returns the text of a page, and after the last page the end of the body.
    fn text(&mut self, page: &Page) -> Vec<u8> {
        self.count += page.pins.len();
        let mut text: String = page.pins.iter().map(line).collect();
        if page.rest.is_none() {
            text.push_str(&self.signatures);
            text.push_str(&format!("end {}\n", self.count));
        }
        text.into_bytes()
    }
}

/// Returns the line of a generation.
fn line(pin: &Pin) -> String {
    let expires = pin.expires_at.map(|at| at.to_string());
    format!(
        "generation {} {} {} {} {} {} {}\n",
        pin.generation,
        pin.path.base_name(),
        pin.created_at,
        expires.as_deref().unwrap_or(ABSENT),
        stated(pin.token.as_deref()),
        stated(pin.host.as_deref()),
        stated(pin.message.as_deref()),
    )
}

/// The word for an absent value.
const ABSENT: &str = "-";

/// Percent-encodes a text. The text `-` is encoded, too, to differ from [`ABSENT`].
fn stated(text: Option<&str>) -> String {
    match text {
        Some(ABSENT) => "%2D".to_owned(),
        Some(text) => percent_encode(text.as_bytes()),
        None => ABSENT.to_owned(),
    }
}

/// Returns the text that is signed for a generation.
fn fingerprint(pin: &Pin, dir: &StoreDir) -> String {
    format!(
        "samovar-ref;1;{dir};{};{};{};{}",
        percent_encode(pin.name.as_bytes()),
        pin.generation,
        pin.path.base_name(),
        pin.created_at
    )
}

#[cfg(test)]
mod tests {
    use samovar_nix::StorePath;

    use super::*;

    #[test]
    fn lines_and_fingerprints() {
        let base_name = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app";
        let mut pin = Pin {
            cache: "default".to_owned(),
            name: "mr/app 1;".to_owned(),
            generation: 3,
            path: StorePath::from_base_name(base_name).unwrap(),
            created_at: 7,
            expires_at: None,
            token: None,
            host: None,
            message: None,
            lineage: "00".repeat(16).parse().unwrap(),
        };
        assert_eq!(line(&pin), format!("generation 3 {base_name} 7 - - - -\n"));
        pin.expires_at = Some(9);
        pin.token = Some("ci 1".to_owned());
        pin.host = Some("-".to_owned());
        pin.message = Some("a\n\u{e4}".to_owned());
        let expected = format!("generation 3 {base_name} 7 9 ci%201 %2D a%0A%C3%A4\n");
        assert_eq!(line(&pin), expected);
        assert_eq!(
            fingerprint(&pin, &StoreDir::default()),
            format!("samovar-ref;1;/nix/store;mr%2Fapp%201%3B;3;{base_name};7")
        );
    }
}
