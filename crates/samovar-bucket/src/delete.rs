//! Deletion of objects.

use std::time::Duration;

use rusty_s3::Method;
use rusty_s3::actions::{DeleteObjects, ObjectIdentifier};

use crate::error::{BucketError, Fault};
use crate::wire::{Body, Refusal, Request, Wire};
use crate::xml::{element, elements};

/// Maximum number of objects in one request, by S3's specification.
const BATCH_MAX: usize = 1000;

/// Time for a batch beyond that of other requests. Some engines delete one object after the other.
const WORK_TIME: Duration = Duration::from_secs(40);

/// How often a batch is sent of which the engine could not delete some objects.
const BATCH_ATTEMPTS: u32 = 3;

/// An object that the engine has not deleted.
#[derive(Debug, PartialEq, Eq)]
struct Undeleted {
    key: String,
    code: String,
    message: String,
}

pub(crate) fn delete(wire: &Wire, keys: &[&str]) -> Result<(), BucketError> {
    let keys = keys.iter().map(|key| wire.whole(key));
    let keys = keys.collect::<Result<Vec<String>, _>>()?;
    for batch in keys.chunks(BATCH_MAX) {
        match batch {
            [key] => one(wire, key)?,
            _ => several(wire, batch)?,
        }
    }
    Ok(())
}

fn one(wire: &Wire, key: &str) -> Result<(), BucketError> {
    match wire.send(&Request::object(Method::Delete, key)) {
        Ok(answer) => {
            answer.finish();
            Ok(())
        }
        Err(error) if matches!(error.fault(), Fault::NoObject) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes a batch by one request, or one by one where the engine has no such request.
fn several(wire: &Wire, batch: &[String]) -> Result<(), BucketError> {
    let mut left = batch.to_vec();
    for attempt in 1..=BATCH_ATTEMPTS {
        let errors = match request(wire, &left) {
            Ok(errors) => errors,
            Err(error) if is_unknown(error.fault()) => {
                return left.iter().try_for_each(|key| one(wire, key));
            }
            Err(error) => return Err(error),
        };
        let is_there = |error: &Undeleted| error.code != "NoSuchKey";
        let errors: Vec<Undeleted> = errors.into_iter().filter(is_there).collect();
        let Some(first) = errors.first() else {
            return Ok(());
        };
        left.retain(|key| errors.iter().any(|error| error.key == *key));
        let is_passing = matches!(first.code.as_str(), "InternalError" | "SlowDown");
        if !is_passing || left.is_empty() || attempt == BATCH_ATTEMPTS {
            return Err(refused(wire, first));
        }
    }
    Ok(())
}

/// Sends a batch, and returns the objects that were not deleted.
fn request(wire: &Wire, batch: &[String]) -> Result<Vec<Undeleted>, BucketError> {
    let objects: Vec<_> = batch.iter().cloned().map(ObjectIdentifier::new).collect();
    let mut action = DeleteObjects::new(wire.bucket(), None, objects.iter());
    action.set_quiet(true);
    let (body, md5) = action.body_with_md5();
    let mut request = Request::bucket(Method::Post)
        .query("delete", "1")
        .header("content-md5", md5)
        .header("content-type", "application/xml")
        .body(Body::Bytes(body.as_bytes()));
    request.work = WORK_TIME;
    let failed = |fault| wire.error(request.to_string(), fault);
    let text = wire.send(&request)?.text().map_err(failed)?;
    if !text.contains("<DeleteResult") {
        return Err(failed(Refusal::in_success(&text)));
    }
    Ok(undeleted(&text))
}

/// Reads which objects were not deleted. Engines differ in the name space, and in the fields that
/// they leave out.
fn undeleted(text: &str) -> Vec<Undeleted> {
    let errors = elements(text, "Error").into_iter();
    let field = |error: &str, name| element(error, name).unwrap_or_default();
    errors
        .map(|error| Undeleted {
            key: field(error, "Key"),
            code: field(error, "Code"),
            message: field(error, "Message"),
        })
        .collect()
}

/// Whether the engine has no request for several objects.
fn is_unknown(fault: &Fault) -> bool {
    match fault {
        Fault::Refused { status, code, .. } => {
            matches!(status, 405 | 501)
                || matches!(code.as_str(), "NotImplemented" | "MethodNotAllowed")
        }
        _ => false,
    }
}

fn refused(wire: &Wire, error: &Undeleted) -> BucketError {
    let code = error.code.clone();
    let fault = match code.as_str() {
        "AccessDenied" => Fault::Denied { code },
        "InternalError" | "SlowDown" => Fault::Unavailable { status: 200, code },
        _ => Fault::Refused {
            status: 200,
            code,
            message: error.message.clone(),
        },
    };
    wire.error(format!("DELETE {}", error.key), fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_were_not_deleted_are_read() {
        let plain = "<DeleteResult><Error><Key>a&amp;b</Key><Code>AccessDenied</Code></Error>\
                     <Deleted><Key>c</Key></Deleted></DeleteResult>";
        let expected = Undeleted {
            key: "a&b".to_owned(),
            code: "AccessDenied".to_owned(),
            message: String::new(),
        };
        assert_eq!(undeleted(plain), [expected]);
        let nothing = "<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"/>";
        assert_eq!(undeleted(nothing), []);
    }
}
