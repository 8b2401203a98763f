//! What a cache says about itself: its settings for clients, its public keys, and the version of
//! the program. The responses are prepared when the cache is created.

use samovar_http::http::Status;
use samovar_http::{Prepared, Response};
use samovar_nix::StoreDir;
use samovar_nix::narinfo::NarCoding;
use samovar_protocol::push;
use serde_json::json;

use crate::prepared::AnswerHead;
use crate::refusal::TEXT;
use crate::route::AboutRoute;

/// Version of the JSON object. Further members do not change it.
const VERSION: u32 = 1;

const TEXT_HEAD: AnswerHead = AnswerHead {
    status: Status::OK,
    fields: &[TEXT],
};

const JSON_HEAD: AnswerHead = AnswerHead {
    status: Status::OK,
    fields: &[("Content-Type", "application/json")],
};

const NO_KEY_HEAD: AnswerHead = AnswerHead {
    status: Status::NOT_FOUND,
    fields: &[TEXT],
};

const NO_KEY: &str = "This cache does not sign: trust the keys of the builders of its paths.\n";

/// The settings of a cache that concern its clients.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) store_dir: &'a StoreDir,
    pub(super) priority: u32,
    /// The keys with which the cache signs.
    pub(super) public_keys: Vec<String>,
    /// The keys that clients must trust, too, to use paths of upstreams.
    pub(super) upstream_keys: Vec<String>,
    /// The compression of NARs of the store.
    pub(super) coding: NarCoding,
    pub(super) has_uploads: bool,
    /// Version of the program.
    pub(super) program: &'a str,
}

/// The responses of one cache about itself.
#[derive(Debug)]
pub(super) struct About {
    cache_info: Answer,
    json: Answer,
    public_keys: Answer,
    version: Answer,
}

/// A response in the forms that I/O threads and workers send.
#[derive(Debug)]
struct Answer {
    head: AnswerHead,
    prepared: Prepared,
}

impl Answer {
    fn new(head: AnswerHead, body: &str) -> Self {
        Self {
            head,
            prepared: head.prepared(body.as_bytes()),
        }
    }
}

impl About {
    pub(super) fn new(facts: &Facts<'_>) -> Self {
        let (dir, priority) = (facts.store_dir, facts.priority);
        let cache_info = format!("StoreDir: {dir}\nWantMassQuery: 1\nPriority: {priority}\n");
        let keys = facts.public_keys.iter().chain(&facts.upstream_keys);
        let keys: String = keys.map(|key| format!("{key}\n")).collect();
        let public_keys = match &*keys {
            "" => Answer::new(NO_KEY_HEAD, NO_KEY),
            keys => Answer::new(TEXT_HEAD, keys),
        };
        Self {
            cache_info: Answer::new(TEXT_HEAD, &cache_info),
            json: Answer::new(JSON_HEAD, &json(facts)),
            public_keys,
            version: Answer::new(TEXT_HEAD, &format!("{}\n", facts.program)),
        }
    }

    fn answer(&self, route: AboutRoute) -> &Answer {
        match route {
            AboutRoute::Json => &self.json,
            AboutRoute::PublicKeys => &self.public_keys,
            AboutRoute::Version => &self.version,
        }
    }

    /// Returns the response that I/O threads send.
    pub(super) fn prepared(&self, route: AboutRoute) -> &Prepared {
        &self.answer(route).prepared
    }

    /// Returns the response that workers send.
    pub(super) fn response(&self, route: AboutRoute) -> Response {
        let answer = self.answer(route);
        answer.head.response(answer.prepared.body().to_vec().into())
    }

    /// Returns the response to `nix-cache-info` that I/O threads send.
    pub(super) fn cache_info(&self) -> &Prepared {
        &self.cache_info.prepared
    }
}

/// Returns the text of `cache-info.json`.
fn json(facts: &Facts<'_>) -> String {
    let compression = match facts.coding {
        NarCoding::Identity => "none",
        NarCoding::Zstd => "zstd",
    };
    // The base of this reference is the URL of the JSON object, so it is right behind any proxy.
    let upload_url = facts.has_uploads.then_some("upload");
    let push_protocol = facts.has_uploads.then_some(push::VERSION);
    let value = json!({
        "version": VERSION,
        "storeDir": facts.store_dir.as_str(),
        "wantMassQuery": true,
        "priority": facts.priority,
        "compression": compression,
        "publicKeys": facts.public_keys,
        "upstreamPublicKeys": facts.upstream_keys,
        "uploadUrl": upload_url,
        "pushProtocol": push_protocol,
    });
    format!("{value}\n")
}
