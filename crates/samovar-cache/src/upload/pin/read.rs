//! `GET upload/pin/<name>` and `GET upload/pin/`: the generations of a pin, and the list of pins.

use samovar_http::http::Status;
use samovar_http::{Body, Head, Response};
use samovar_nix::StoreDir;
use samovar_storage::metadata::Pin;
use samovar_storage::{PinName, StorageError};

use super::{bad_request, condition, parameters, tag, valid};
use crate::pages::percent_encode;
use crate::upload::authorize::Right;
use crate::upload::{Context, Uploads, refused, unavailable};

/// Keeps shared caches from storing a response, which is private.
const NO_STORE: &str = "no-store";

impl Uploads {
    /// Responds with the generations of a pin.
    pub(super) fn read_pin(
        &self,
        context: Context<'_>,
        head: Head<'_>,
        name: Option<&PinName>,
    ) -> Result<Response, Response> {
        self.client(context, head, Right::ReadPins)?;
        let name = valid(name)?;
        let [] = parameters(head, [])?;
        let condition = condition::of(head).map_err(|fault| bad_request(&fault))?;
        let pins = self.stored.generations(name);
        let pins = self.readable_pins(context, pins)?;
        let Some(newest) = pins.first() else {
            let text = format!("the cache has no pin {:?}", name.as_str());
            return Err(refused(Status::NOT_FOUND, &text));
        };
        let generation = Some(newest.generation);
        if condition
            .except
            .is_some_and(|tags| tags.contain(generation))
        {
            return Ok(fresh(
                Response::new(Status::NOT_MODIFIED, Body::Empty),
                newest,
            ));
        }
        let mut text: String = pins.iter().map(line).collect();
        let fingerprint = fingerprint(newest, context.store_dir);
        for signature in context.narinfos.signing.sign_pin(fingerprint.as_bytes()) {
            text.push_str(&format!("sig {signature}\n"));
        }
        text.push_str(&format!("end {}\n", pins.len()));
        Ok(fresh(Response::text(Status::OK, text), newest))
    }

    /// Responds with the newest generation of each pin.
    pub(super) fn list_pins(
        &self,
        context: Context<'_>,
        head: Head<'_>,
    ) -> Result<Response, Response> {
        self.client(context, head, Right::ReadPins)?;
        let [] = parameters(head, [])?;
        let pins = self.readable_pins(context, self.stored.newest_pins())?;
        let mut text = String::new();
        for pin in &pins {
            let name = percent_encode(pin.name.as_bytes());
            let (path, created) = (pin.path.base_name(), pin.created_at);
            text.push_str(&format!("pin {name} {} {path} {created}\n", pin.generation));
        }
        text.push_str(&format!("end {}\n", pins.len()));
        Ok(Response::text(Status::OK, text).header("Cache-Control", NO_STORE))
    }

    /// Removes the pins of paths that a policy hides.
    fn readable_pins(
        &self,
        context: Context<'_>,
        pins: Result<Vec<Pin>, StorageError>,
    ) -> Result<Vec<Pin>, Response> {
        let readable = pins.and_then(|mut pins| {
            if !context.narinfos.reader.policy.is_open() {
                let mut failure = None;
                pins.retain(|pin| {
                    let readable = self.is_readable(context, &pin.path);
                    readable.unwrap_or_else(|error| {
                        failure = Some(error);
                        false
                    })
                });
                if let Some(error) = failure {
                    return Err(error);
                }
            }
            Ok(pins)
        });
        readable.map_err(|error| unavailable(context, &error))
    }
}

/// Adds the header fields of a response about a pin with this newest generation.
fn fresh(response: Response, newest: &Pin) -> Response {
    response
        .header("ETag", tag(newest.generation))
        .header("Cache-Control", NO_STORE)
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
