//! Lists of objects.

use std::ops::ControlFlow;

use jiff::Timestamp;
use rusty_s3::Method;
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::actions::list_objects_v2::ListObjectsContent;

use crate::error::{BucketError, Fault};
use crate::wire::{Request, Wire};

/// An object in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Key, relative to the prefix of the bucket's settings.
    pub key: String,
    /// Length in bytes.
    pub len: u64,
    /// When it was written, in seconds since 1970 by the engine's clock. 0: the engine says
    /// nothing.
    pub modified_at: i64,
}

pub(crate) fn list(
    wire: &Wire,
    prefix: &str,
    visit: &mut dyn FnMut(&Entry) -> ControlFlow<()>,
) -> Result<(), BucketError> {
    let whole = format!("{}{prefix}", wire.prefix());
    let mut token: Option<String> = None;
    loop {
        let page = page(wire, &whole, token.as_deref())?;
        for content in page.contents {
            // An engine that knows no prefixes would list the keys of others.
            let Some(entry) = entry(content, wire.prefix(), &whole) else {
                continue;
            };
            if visit(&entry).is_break() {
                return Ok(());
            }
        }
        match page.next_continuation_token {
            None => return Ok(()),
            next if next == token => {
                let what = "the list begins again and again";
                return Err(wire.error(format!("LIST {prefix}"), Fault::Answer { what }));
            }
            next => token = next,
        }
    }
}

type Page = rusty_s3::actions::ListObjectsV2Response;

fn page(wire: &Wire, prefix: &str, token: Option<&str>) -> Result<Page, BucketError> {
    // Without encoding-type: XML can express all keys of ours, and some engines say that they have
    // encoded keys when they have not.
    let mut request = Request::bucket(Method::Get)
        .query("list-type", "2")
        .query("prefix", prefix.to_owned());
    if let Some(token) = token {
        request = request.query("continuation-token", token.to_owned());
    }
    let failed = |fault| wire.error(format!("LIST {prefix}"), fault);
    let text = wire.send(&request)?.text().map_err(failed)?;
    let page = ListObjectsV2::parse_response(&text);
    page.ok().ok_or_else(|| {
        failed(Fault::Answer {
            what: "it is no list of objects",
        })
    })
}

fn entry(content: ListObjectsContent, own_prefix: &str, prefix: &str) -> Option<Entry> {
    if !content.key.starts_with(prefix) {
        return None;
    }
    let modified: Option<Timestamp> = content.last_modified.and_then(|time| time.parse().ok());
    Some(Entry {
        key: content.key.strip_prefix(own_prefix)?.to_owned(),
        len: content.size?,
        modified_at: modified.map_or(0, Timestamp::as_second),
    })
}
