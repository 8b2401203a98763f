//! Receives and serves uploaded realisations of content-addressed derivations.

use std::io::Read;

use samovar_http::Response;
use samovar_http::http::Status;
use samovar_metrics::Event;
use samovar_nix::{Signature, StorePath};
use samovar_storage::metadata::{NewRealisation, StoredRealisation, extras};
use samovar_storage::token::Token;
use samovar_storage::{PutError, REALISATION_LEN_MAX, Refusal, StorageError, realisations};
use samovar_store::{Realisation, RealisationId};
use serde_json::{Map, Value};

use super::get::is_denied;
use super::{Context, ok, report, unavailable};
use crate::narinfo::signing::Stored;
use crate::reader::uploaded_info;
use crate::refusal::Fixed;
use crate::route;

/// Maximum number of signatures of a realisation.
const SIGNATURE_COUNT_MAX: usize = 32;

pub(super) fn put(
    context: Context<'_>,
    source: &mut dyn Read,
    token: &Token,
    id: &RealisationId,
) -> Result<Response, PutError> {
    let mut text = Vec::new();
    // Read one byte more than allowed, to detect a text that is too long.
    let mut source = source.take(REALISATION_LEN_MAX as u64 + 1);
    source.read_to_end(&mut text).map_err(PutError::of_source)?;
    if text.len() > REALISATION_LEN_MAX {
        return Err(Refusal::RealisationTooLong.into());
    }
    let mut new = parse(id, &text).map_err(Refusal::Realisation)?;
    let reader = &context.narinfos.reader;
    match reader.may_read(&new.out_path) {
        Ok(is_readable) => new.is_elsewhere = is_readable,
        // The live Nix store may contain the output, but it cannot be read at the moment.
        Err(_refusal) if !context.stored.may_contain(new.out_path.hash_part()) => {
            return Ok(Fixed::Unavailable.response());
        }
        Err(_refusal) => {}
    }
    if !realisations::put(context.stored, token, &new)? {
        let path = &new.out_path.display(context.store_dir);
        let by = context.uploader(token);
        let observer = &reader.shared.observer;
        observer.event(&Event::UploadConflict { path, by });
        return Ok(ok("another realisation was there first, and stays"));
    }
    // The realisation is recorded, whether or not the mirror can be written now.
    if let Err(error) = mirror(context, id) {
        report(context, &error);
    }
    Ok(ok("kept"))
}

/// Responds with an uploaded realisation. A realisation reveals that its output exists, so it is
/// served only to clients that may read the output.
pub(super) fn answer(context: Context<'_>, id: &RealisationId) -> Response {
    match render(context, id) {
        Ok(Some(text)) => {
            Response::new(Status::OK, text).header("Content-Type", "application/json")
        }
        Ok(None) => Fixed::NotFound.response(),
        Err(error) => unavailable(context, &error),
    }
}

/// Writes the realisations that the storage directory lacks.
pub(super) fn repair(context: Context<'_>) {
    let repaired = realisations::unmirrored(context.stored).and_then(|keys| {
        for key in keys {
            if let Some(id) = key.strip_suffix(".doi").and_then(route::realisation) {
                mirror(context, &id)?;
            }
        }
        Ok(())
    });
    if let Err(error) = repaired {
        report(context, &error);
    }
}

fn mirror(context: Context<'_>, id: &RealisationId) -> Result<(), StorageError> {
    match render(context, id)? {
        Some(text) => realisations::mirror(context.stored, &key(id), &text),
        None => Ok(()),
    }
}

/// Returns the JSON document of an uploaded realisation, with the cache's signatures in addition to
/// the uploaded ones. Returns `None` if there is no such realisation, or if the client may not read
/// its output.
fn render(context: Context<'_>, id: &RealisationId) -> Result<Option<String>, StorageError> {
    let Some(StoredRealisation {
        is_of_cache,
        body,
        signatures,
    }) = extras::realisation(context.stored.metadata(), context.stored.id(), &key(id))?
    else {
        return Ok(None);
    };
    let damaged = |error: &dyn std::fmt::Display| StorageError::Damaged(error.to_string());
    let realisation = |document| Realisation::new(document).map_err(|error| damaged(&error));
    let uploaded = realisation(realisation(body)?.signed(id, &signatures, false))?;
    let out_path = uploaded.out_path();
    let (reader, signing) = (&context.narinfos.reader, &context.narinfos.signing);
    let info = if is_of_cache {
        // This look-up revives the output if it is condemned.
        match context.stored.lookup(out_path.hash_part())? {
            Some(path) if !is_denied(context, &path) => Some(uploaded_info(&path)),
            _ => return Ok(None),
        }
    } else {
        match reader.readable(out_path.hash_part()) {
            Ok(info) => Some(info),
            Err(_refusal) => return Ok(None),
        }
    };
    let info = info.filter(|info| info.path == *out_path);
    Ok(info.map(|info| {
        signing.realisation(id, uploaded, Some(&info), context.store_dir, Stored::Keep)
    }))
}

/// Returns the URL of a realisation, relative to the cache. It is also the key of its object.
fn key(id: &RealisationId) -> String {
    match id {
        RealisationId::Hash { .. } => format!("realisations/{id}.doi"),
        RealisationId::Derivation { derivation, output } => {
            format!("build-trace-v2/{derivation}/{output}.doi")
        }
    }
}

/// Parses an uploaded realisation.
///
/// # Errors
///
/// The error states the fault and where it is.
fn parse(id: &RealisationId, text: &[u8]) -> Result<NewRealisation, String> {
    let value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let Value::Object(mut members) = value else {
        return Err("it is not a JSON object".to_owned());
    };
    let signatures = match members.remove("signatures") {
        None => Vec::new(),
        Some(Value::Array(signatures)) => signatures,
        Some(_) => return Err("signatures is not an array".to_owned()),
    };
    if signatures.len() > SIGNATURE_COUNT_MAX {
        return Err(format!(
            "signatures has {} entries, the limit is {SIGNATURE_COUNT_MAX}",
            signatures.len()
        ));
    }
    let out_path = base_name(members.get("outPath"), "outPath")?;
    check_members(id, &members)?;
    let key = key(id);
    let end = key.rfind(['!', '/']).map_or(0, |at| at + 1);
    Ok(NewRealisation {
        key_prefix: key[..end].to_owned(),
        key,
        out_path,
        derivation: match id {
            RealisationId::Hash { .. } => None,
            RealisationId::Derivation { derivation, .. } => Some(derivation.clone()),
        },
        is_elsewhere: false,
        body: Value::Object(members).to_string(),
        signatures: signatures.iter().map(signature).collect::<Result<_, _>>()?,
    })
}

/// Checks all members of the document except `outPath` and `signatures`.
fn check_members(id: &RealisationId, members: &Map<String, Value>) -> Result<(), String> {
    let is_by_hash = matches!(id, RealisationId::Hash { .. });
    for (name, value) in members {
        match &**name {
            "outPath" => {}
            "id" if is_by_hash => {}
            "dependentRealisations" if is_by_hash => {
                let Value::Object(dependencies) = value else {
                    return Err("dependentRealisations is not an object".to_owned());
                };
                for (id, path) in dependencies {
                    RealisationId::parse_hash_form(id)
                        .map_err(|error| format!("dependentRealisations has {id:?}: {error}"))?;
                    base_name(Some(path), "dependentRealisations")?;
                }
            }
            name => return Err(format!("it has the unknown member {name:?}")),
        }
    }
    let expected = id.to_string();
    match members.get("id").and_then(Value::as_str) {
        found if is_by_hash && found != Some(&*expected) => Err(format!(
            "id is {}, but the URL is that of {expected}",
            found.map_or_else(|| "missing".to_owned(), |found| format!("{found:?}"))
        )),
        _ => Ok(()),
    }
}

/// Parses a value that is the base name of a store path.
fn base_name(value: Option<&Value>, member: &str) -> Result<StorePath, String> {
    let text = value.and_then(Value::as_str);
    let path = text.and_then(|text| StorePath::from_base_name(text).ok());
    path.ok_or_else(|| format!("{member} is not the base name of a store path"))
}

/// Parses a signature: a string or, since Nix 2.35, an object.
fn signature(value: &Value) -> Result<Signature, String> {
    let member = |name| value.get(name).and_then(Value::as_str);
    let text = match (value.as_str(), member("keyName"), member("sig")) {
        (Some(text), ..) => Some(text.to_owned()),
        (None, Some(name), Some(sig)) => Some(format!("{name}:{sig}")),
        _ => None,
    };
    let signature = text.and_then(|text| Signature::parse(&text).ok());
    signature.ok_or_else(|| format!("{value} in signatures is not a signature"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OUT: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-a";
    const DRV: &str = "ml8yi5swx7sfafm72592yq5cyslh5xzr-a.drv";

    fn hash_text(output: &str) -> String {
        format!("sha256:{}!{output}", "1".repeat(64))
    }

    fn by_hash() -> RealisationId {
        RealisationId::parse_hash_form(&hash_text("out")).unwrap()
    }

    fn by_derivation() -> RealisationId {
        RealisationId::parse_derivation_form(DRV, "out").unwrap()
    }

    fn sig() -> String {
        format!("k-1:{}==", "A".repeat(86))
    }

    #[test]
    fn both_forms_are_parsed() {
        let id = hash_text("out");
        let document = json!({
            "dependentRealisations": { hash_text("dev"): OUT },
            "id": id, "outPath": OUT, "signatures": [sig()],
        });
        let new = parse(&by_hash(), document.to_string().as_bytes()).unwrap();
        assert_eq!(new.key, format!("realisations/{id}.doi"));
        assert_eq!(new.key_prefix, format!("realisations/{}", hash_text("")));
        assert_eq!(new.out_path.base_name(), OUT);
        assert_eq!(new.signatures.len(), 1);
        let body = format!(
            "{{\"dependentRealisations\":{{\"{}\":\"{OUT}\"}},\"id\":\"{id}\",\
             \"outPath\":\"{OUT}\"}}",
            hash_text("dev")
        );
        assert_eq!(new.body, body);

        let of_object = json!({ "keyName": "k-1", "sig": &sig()[4..] });
        let document = json!({ "outPath": OUT, "signatures": [of_object, sig()] });
        let new = parse(&by_derivation(), document.to_string().as_bytes()).unwrap();
        assert_eq!(new.key, format!("build-trace-v2/{DRV}/out.doi"));
        assert_eq!(new.key_prefix, format!("build-trace-v2/{DRV}/"));
        assert_eq!(new.signatures[0], new.signatures[1]);
    }

    #[test]
    fn a_fault_is_named() {
        let with = |name: &str, value: Value| {
            let mut document = json!({ "id": hash_text("out"), "outPath": OUT });
            document[name] = value;
            document
        };
        let many = |count| Value::from(vec![sig(); count]);
        for (document, part) in [
            (json!([]), "not a JSON object"),
            (json!({ "id": hash_text("out") }), "outPath"),
            (with("outPath", json!("/nix/store/x")), "outPath"),
            (with("outPath", json!(1)), "outPath"),
            (with("id", json!(hash_text("dev"))), "!dev"),
            (json!({ "outPath": OUT }), "id is missing"),
            (with("signatures", json!({})), "signatures is not an array"),
            (with("signatures", json!(["x"])), "\"x\" in signatures"),
            (with("signatures", many(33)), "33 entries"),
            (with("dependentRealisations", json!([])), "not an object"),
            (with("dependentRealisations", json!({ "x": OUT })), "\"x\""),
            (
                with("dependentRealisations", json!({ hash_text("a"): "x" })),
                "dependentRealisations is not",
            ),
            (with("extra", json!(1)), "\"extra\""),
        ] {
            let fault = parse(&by_hash(), document.to_string().as_bytes()).unwrap_err();
            assert!(fault.contains(part), "{fault}");
        }
        assert!(parse(&by_hash(), b"{").is_err());
        let document = with("signatures", many(32)).to_string();
        assert!(parse(&by_hash(), document.as_bytes()).is_ok());
        let fault = parse(&by_derivation(), document.as_bytes()).unwrap_err();
        assert!(fault.contains("unknown member \"id\""), "{fault}");
    }
}
