//! `PUT upload/pin/<name>`: pins an uploaded path.

use std::io::Read as _;

use samovar_http::http::{Status, percent};
use samovar_http::{Head, Request, Response};
use samovar_metrics::Event;
use samovar_nix::StorePath;
use samovar_protocol::names::{PIN_TEXT_LEN_MAX, PinName, PinText};
use samovar_storage::metadata::Pin;
use samovar_storage::token::Token;
use samovar_storage::{PinError, PinOptions, PutError};

use super::{bad_request, condition, number_needed, parameters, refusal, tag, valid};
use crate::refusal::text_response;
use crate::upload::authorize::Right;
use crate::upload::{Context, Uploads, failed, refused};

/// Maximum length of a body, in bytes: a base name of at most 244 bytes, and two lines with texts
/// of which each byte may be percent-encoded.
const BODY_LEN_MAX: u64 = 1024 + 2 * 3 * PIN_TEXT_LEN_MAX as u64;

/// The body of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) path: StorePath,
    pub(super) host: Option<PinText>,
    pub(super) message: Option<PinText>,
}

impl Uploads {
    /// Pins the path in the body of a request.
    pub(super) fn put_pin(
        &self,
        context: Context<'_>,
        request: &mut Request,
        name: Option<&PinName>,
    ) -> Result<Response, Response> {
        let token = self.client(context, request.head(), Right::Pin)?;
        let name = valid(name)?;
        name.check_new()
            .map_err(|error| bad_request(&error.to_string()))?;
        let mut options = options(request.head())?;
        let content = content(request)?;
        let path = content.path;
        (options.host, options.message) = (content.host, content.message);
        let pinned = self.pin_path(context, &token, &path, name, options);
        let pin = pinned.map_err(|error| refusal(context, request.head(), &token, error))?;
        let shared = &context.narinfos.reader.shared;
        shared.pin_watch.change();
        shared.observer.event(&Event::PathPinned {
            path: &path.display(context.store_dir),
            pin: name.as_str(),
            by: context.uploader(&token),
        });
        let text = format!("pinned {} {}\nend 1\n", pin.generation, path.base_name());
        Ok(text_response(Status::OK, text).header("ETag", tag(pin.version())))
    }

    fn pin_path(
        &self,
        context: Context<'_>,
        token: &Token,
        path: &StorePath,
        name: &PinName,
        options: PinOptions,
    ) -> Result<Pin, PinError> {
        // A path that a policy hides is answered as if it did not exist.
        match self.is_readable(context, path)? {
            true => self.stored.pin(token, path, name, options),
            false => Err(PinError::NotUploaded(path.clone())),
        }
    }
}

/// Returns the options in the URL and in the header of a request.
fn options(head: Head<'_>) -> Result<PinOptions, Response> {
    let [keep, lifetime] = parameters(head, ["keep", "expires"])?;
    let keep = keep.map(|keep| {
        u32::try_from(keep).map_err(|_too_large| {
            let fault = number_needed("keep", &keep.to_string());
            bad_request(&format!("{fault} and at most {}", u32::MAX))
        })
    });
    Ok(PinOptions {
        keep: keep.transpose()?,
        lifetime,
        condition: condition::of(head).map_err(|fault| bad_request(&fault))?,
        ..PinOptions::default()
    })
}

/// Reads the body of a request.
fn content(request: &mut Request) -> Result<Content, Response> {
    let mut body = Vec::new();
    let read = request
        .reader()
        // Read one byte more than allowed, to detect a body that is too long.
        .take(BODY_LEN_MAX + 1)
        .read_to_end(&mut body);
    if let Err(error) = read {
        return Err(failed(request.head(), &PutError::Source(error)));
    }
    match body.len() as u64 > BODY_LEN_MAX {
        true => Err(refused(
            Status::CONTENT_TOO_LARGE,
            &format!(
                "the body has more than {BODY_LEN_MAX} bytes: send the base name of a store path, \
                 a host and a message"
            ),
        )),
        false => parse(&body).map_err(|fault| bad_request(&fault)),
    }
}

/// Parses a body.
///
/// # Errors
///
/// The error names the line and the fix.
pub(super) fn parse(body: &[u8]) -> Result<Content, String> {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let text = text.strip_suffix('\n').unwrap_or(text);
    let mut lines = text.split('\n');
    let path = lines.next().unwrap_or_default();
    let path = StorePath::from_base_name(path).map_err(|_error| {
        "the body does not begin with the base name of a store path: send the part of the path \
         after /nix/store/"
            .to_owned()
    })?;
    let mut content = Content {
        path,
        host: None,
        message: None,
    };
    for line in lines {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        let field = match name {
            "host" => &mut content.host,
            "message" => &mut content.message,
            _ => {
                return Err(format!(
                    "unknown line {name:?} in the body: use host and message"
                ));
            }
        };
        if field.is_some() {
            return Err(format!("the body has two lines {name}: send one"));
        }
        *field = Some(decode(value).ok_or_else(|| {
            format!(
                "the line {name} of the body must have 1 to {PIN_TEXT_LEN_MAX} bytes of UTF-8, \
                 percent-encoded"
            )
        })?);
    }
    Ok(content)
}

/// Decodes the percent-encoded value of a line.
fn decode(value: &str) -> Option<PinText> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"%-._~".contains(&byte);
    let text = percent::decode(value.as_bytes()).filter(|_| value.bytes().all(is_plain))?;
    std::str::from_utf8(&text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::route::path::encode as percent_encode;

    const PATH: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app";

    #[test]
    fn bodies() {
        let parse = |rest: &str| parse(format!("{PATH}{rest}").as_bytes());
        let of = |host: Option<&str>, message: Option<&str>| {
            let text = |text: &str| text.parse().unwrap();
            Ok(Content {
                path: StorePath::from_base_name(PATH).unwrap(),
                host: host.map(text),
                message: message.map(text),
            })
        };
        assert_eq!(parse(""), of(None, None));
        assert_eq!(parse("\n"), of(None, None));
        assert_eq!(parse("\nhost a"), of(Some("a"), None));
        assert_eq!(
            parse("\nmessage a%20%C3%A4%0Ab\nhost x-1\n"),
            of(Some("x-1"), Some("a \u{e4}\nb"))
        );
        let longest = "a".repeat(PIN_TEXT_LEN_MAX);
        assert_eq!(
            parse(&format!("\nhost {longest}")),
            of(Some(&longest), None)
        );
        let encoded = "%61".repeat(PIN_TEXT_LEN_MAX);
        assert_eq!(
            parse(&format!("\nhost {encoded}")),
            of(Some(&longest), None)
        );
        for wrong in [
            "\n\n",
            "\nhost",
            "\nhost ",
            "\nhost a b",
            "\nhost  a",
            "\nhost a\nhost a",
            "\nhost a\r\n",
            "\nhost %2",
            "\nhost %FF",
            "\nhost \u{e4}",
            "\nhosts a",
            " \nhost a",
            &format!("\nhost {longest}a"),
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn encoded_texts_are_decoded(
            host in prop::option::of(".{1,80}"),
            message in prop::option::of(".{1,80}"),
            is_reversed: bool,
        ) {
            let line = |name: &str, text: &Option<String>| {
                let text = text.as_ref();
                text.map(|text| format!("\n{name} {}", percent_encode(text.as_bytes())))
            };
            let mut lines = vec![line("host", &host), line("message", &message)];
            if is_reversed {
                lines.reverse();
            }
            let lines: String = lines.into_iter().flatten().collect();
            let content = parse(format!("{PATH}{lines}\n").as_bytes()).unwrap();
            prop_assert_eq!(content.host.as_ref().map(PinText::as_str), host.as_deref());
            prop_assert_eq!(content.message.as_ref().map(PinText::as_str), message.as_deref());
        }

        #[test]
        fn any_body_is_parsed_or_refused_in_one_line(
            start in prop_oneof![Just(PATH), Just("")],
            rest in prop::collection::vec(any::<u8>(), 0..40),
            word in prop_oneof![Just("\nhost "), Just("\nmessage "), Just("\n")],
        ) {
            let body = [start.as_bytes(), word.as_bytes(), &rest].concat();
            if let Err(fault) = parse(&body) {
                prop_assert!(!fault.is_empty() && !fault.contains('\n'), "{fault}");
            }
        }
    }
}
