//! Deletion of objects.

use rusty_s3::Method;
use rusty_s3::actions::{DeleteObjects, DeleteObjectsResponse, ErrorObject, ObjectIdentifier};

use crate::error::{BucketError, Fault};
use crate::wire::{Body, Request, Wire};

/// Maximum number of objects in one request, by S3's specification.
const BATCH_MAX: usize = 1000;

/// How often a batch is sent of which the engine could not delete some objects.
const BATCH_ATTEMPTS: u32 = 3;

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
        let mut errors = errors.into_iter().filter(|error| error.code != "NoSuchKey");
        let Some(first) = errors.next() else {
            return Ok(());
        };
        let is_passing = matches!(first.code.as_str(), "InternalError" | "SlowDown");
        if !is_passing || attempt == BATCH_ATTEMPTS {
            return Err(refused(wire, first));
        }
        left = std::iter::once(first)
            .chain(errors)
            .map(|error| error.key)
            .collect();
    }
    Ok(())
}

/// Sends a batch, and returns the objects that were not deleted.
fn request(wire: &Wire, batch: &[String]) -> Result<Vec<ErrorObject>, BucketError> {
    let objects: Vec<_> = batch.iter().cloned().map(ObjectIdentifier::new).collect();
    let mut action = DeleteObjects::new(wire.bucket(), None, objects.iter());
    action.set_quiet(true);
    let (body, md5) = action.body_with_md5();
    let request = Request::bucket(Method::Post)
        .query("delete", "1")
        .header("content-md5", md5)
        .header("content-type", "application/xml")
        .body(Body::Bytes(body.as_bytes()));
    let failed = |fault| wire.error(request.to_string(), fault);
    let text = wire.send(&request)?.text().map_err(failed)?;
    match DeleteObjectsResponse::parse(&text) {
        Ok(parsed) => Ok(parsed.errors),
        Err(_) => Err(failed(crate::wire::Refusal::in_success(&text))),
    }
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

fn refused(wire: &Wire, error: ErrorObject) -> BucketError {
    let code = error.code;
    let fault = match code.as_str() {
        "AccessDenied" => Fault::Denied { code },
        "InternalError" | "SlowDown" => Fault::Unavailable { status: 200, code },
        _ => Fault::Refused {
            status: 200,
            code,
            message: error.message,
        },
    };
    wire.error(format!("DELETE {}", error.key), fault)
}
