//! The forms in which clients request a narinfo: its text, or JSON.
//!
//! The JSON is made from the text, after policies and signatures, so both say the same.
//!
//! # Source
//!
//! Nix 2.36, `doc/manual/source/protocols/json/schema/store-object-info-v3.yaml`: the variant
//! `narInfo`. harmonia 3.2 sends the same, without the field `path`.

use std::sync::Arc;

use samovar_http::{Head, Response};
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{ContentAddress, Method, StoreDir, StorePath};
use serde_json::{Value, json};

use crate::narinfo::rendered::{self, Narinfo};
use crate::refusal::Fixed;

/// Version of the JSON format. Nix changes it with the meaning of a field.
const VERSION: u32 = 3;

/// The form in which a client requests a narinfo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NarinfoForm {
    /// The text that Nix reads.
    Text,
    /// JSON.
    Json,
}

impl NarinfoForm {
    /// Returns the form that a request for a narinfo asks for: JSON if its query has the parameter
    /// `json`, whatever the value.
    pub(crate) fn of(head: Head<'_>) -> Self {
        match head.query() {
            Some(query) if has_flag(query) => Self::Json,
            _ => Self::Text,
        }
    }

    /// Returns the response that a worker sends.
    pub(crate) fn response(self, dir: &StoreDir, narinfo: Arc<Narinfo>) -> Response {
        match self {
            Self::Text => narinfo.response(),
            Self::Json => json_response(dir, narinfo.text()),
        }
    }

    /// Returns the response with a narinfo that is not in memory.
    pub(crate) fn response_of(self, dir: &StoreDir, text: Vec<u8>) -> Response {
        match self {
            Self::Text => rendered::HEAD.response(text.into()),
            Self::Json => json_response(dir, &text),
        }
    }
}

fn has_flag(query: &[u8]) -> bool {
    let mut parameters = query.split(|byte| *byte == b'&');
    parameters.any(|parameter| parameter == b"json" || parameter.starts_with(b"json="))
}

fn json_response(dir: &StoreDir, text: &[u8]) -> Response {
    match NarInfo::parse(dir, text) {
        Ok(narinfo) => Response::json(rendered::HEAD.status, value(dir, &narinfo).to_string()),
        // The database has a name that no client could read from the text, either.
        Err(_) => Fixed::Unavailable.response(),
    }
}

/// Returns a narinfo as JSON. The two hashes that a narinfo may lack are left out then.
fn value(dir: &StoreDir, narinfo: &NarInfo) -> Value {
    let base_name = StorePath::base_name;
    let signatures = narinfo.signatures.iter().map(|signature| {
        let sig = String::from_utf8_lossy(&signature.base64()).into_owned();
        json!({ "keyName": signature.key_name(), "sig": sig })
    });
    let mut value = json!({
        "version": VERSION,
        "path": narinfo.store_path.base_name(),
        "storeDir": dir.as_str(),
        "url": narinfo.url,
        "compression": narinfo.compression.name(),
        "narHash": narinfo.nar_hash.to_hash().sri(),
        "narSize": narinfo.nar_size,
        "references": narinfo.references.iter().map(base_name).collect::<Vec<_>>(),
        "deriver": narinfo.deriver.as_ref().map(base_name),
        "signatures": signatures.collect::<Vec<_>>(),
        "ca": narinfo.content_address.as_ref().map(content_address),
        // A narinfo does not have these two.
        "registrationTime": null,
        "ultimate": false,
    });
    if let Some(hash) = &narinfo.file_hash {
        value["downloadHash"] = hash.sri().into();
    }
    if let Some(len) = narinfo.file_size {
        value["downloadSize"] = len.into();
    }
    value
}

fn content_address(address: &ContentAddress) -> Value {
    let method = match address.method() {
        Method::Text => "text",
        Method::Flat => "flat",
        Method::Git => "git",
        _ => "nar",
    };
    json!({ "method": method, "hash": address.hash().sri() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_by_a_parameter() {
        for query in ["json", "json=1", "json=", "a=b&json", "json&a"] {
            assert!(has_flag(query.as_bytes()), "{query}");
        }
        for query in ["", "jsonp", "a=json", "JSON", "x=1"] {
            assert!(!has_flag(query.as_bytes()), "{query}");
        }
    }

    /// The example of Nix, `src/libstore-tests/data/nar-info/json-3/impure.json`, without the
    /// fields that a narinfo does not have.
    #[test]
    fn a_narinfo_has_the_fields_of_nix() {
        let signature = "A".repeat(86) + "==";
        let text = format!(
            "StorePath: /nix/store/n5wkd9frr45pa74if5gpz9j7mifg27fh-foo\n\
             URL: nar/1w1fff338fvdw53sqgamddn1b2xgds473pv6y13gizdbqjv4i5p3.nar.xz\n\
             Compression: xz\n\
             FileHash: sha256-FePFYIlMuycIXPZbWi7LGEiMmZSX9FMbaQenWBzm1Sc=\n\
             FileSize: 4029176\n\
             NarHash: sha256-FePFYIlMuycIXPZbWi7LGEiMmZSX9FMbaQenWBzm1Sc=\n\
             NarSize: 34878\n\
             References: g1w7hy3qg1w7hy3qg1w7hy3qg1w7hy3q-bar \
             n5wkd9frr45pa74if5gpz9j7mifg27fh-foo\n\
             Deriver: g1w7hy3qg1w7hy3qg1w7hy3qg1w7hy3q-bar.drv\n\
             Sig: asdf:{signature}\n\
             CA: fixed:r:sha256:EMIJ+giQ/gLIWoxmPKjno3zHZrxbGymgzGGyZvZBIdM=\n"
        );
        let dir = StoreDir::default();
        let narinfo = NarInfo::parse(&dir, text.as_bytes()).expect("it is valid");
        let expected = json!({
            "ca": {
                "hash": "sha256-EMIJ+giQ/gLIWoxmPKjno3zHZrxbGymgzGGyZvZBIdM=",
                "method": "nar",
            },
            "compression": "xz",
            "deriver": "g1w7hy3qg1w7hy3qg1w7hy3qg1w7hy3q-bar.drv",
            "downloadHash": "sha256-FePFYIlMuycIXPZbWi7LGEiMmZSX9FMbaQenWBzm1Sc=",
            "downloadSize": 4_029_176,
            "narHash": "sha256-FePFYIlMuycIXPZbWi7LGEiMmZSX9FMbaQenWBzm1Sc=",
            "narSize": 34878,
            "path": "n5wkd9frr45pa74if5gpz9j7mifg27fh-foo",
            "references": [
                "g1w7hy3qg1w7hy3qg1w7hy3qg1w7hy3q-bar",
                "n5wkd9frr45pa74if5gpz9j7mifg27fh-foo",
            ],
            "registrationTime": null,
            "signatures": [{ "keyName": "asdf", "sig": signature }],
            "storeDir": "/nix/store",
            "ultimate": false,
            "url": "nar/1w1fff338fvdw53sqgamddn1b2xgds473pv6y13gizdbqjv4i5p3.nar.xz",
            "version": 3,
        });
        assert_eq!(value(&dir, &narinfo), expected);
    }
}
