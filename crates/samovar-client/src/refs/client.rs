//! [`Refs`]: requests for the refs of a cache (`docs/pins.md`).

use std::fmt::Write as _;

use anyhow::{Context as _, anyhow, ensure};
use samovar_nix::{PublicKey, StorePath};
use samovar_protocol::names::{Lineage, PinName};
use samovar_protocol::percent::encode;
use samovar_protocol::pins::{
    self, Generations, LINEAGES, Newest, Pinned, Put, Tags, Version, Weak, parse_removed,
};

use ureq::http::HeaderValue;

use crate::cache::{Cache, INFO_PATH};
use crate::failed::Failed;
use crate::http::{Http, Payload, read_body};
use crate::trust::Trust;

/// Maximum length of a response, in bytes: a ref may have 10,000 generations.
const ANSWER_LEN_MAX: u64 = 64 << 20;

/// The refs of a cache.
#[derive(Debug, Clone)]
pub struct Refs {
    /// Client for the URL to which stock Nix clients push.
    http: Http,
    /// `None`: no signature is required.
    trust: Option<Trust>,
}

/// A generation of a ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// Number of the generation, from 1.
    pub number: u64,
    /// Store path of the manifest.
    pub manifest: StorePath,
    /// Time of the push, in seconds since 1970.
    pub created_at: i64,
    /// Time of expiry, in seconds since 1970. `None`: it never expires.
    pub expires_at: Option<i64>,
    /// Name of the token that set the generation.
    pub token: Option<String>,
    /// Name of the machine that set the generation.
    pub host: Option<String>,
    /// What the user has written about the generation.
    pub message: Option<String>,
    /// `None`: the server does not state it.
    pub lineage: Option<Lineage>,
}

/// The generations of a ref, the newest first.
#[derive(Debug, Default)]
pub struct Log {
    /// The generations, the newest first.
    pub generations: Vec<Generation>,
}

/// The state of a ref that an update requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The ref does not exist.
    Absent,
    /// This is the newest generation.
    Generation(Version),
    /// Any state.
    Any,
}

/// A new generation of a ref.
#[derive(Debug)]
pub struct Update<'a> {
    /// Store path of the manifest.
    pub manifest: &'a StorePath,
    /// The state without which nothing is changed.
    pub expected: Expected,
    /// Number of generations to keep. `None`: all.
    pub keep: Option<u32>,
    /// Name of this machine.
    pub host: Option<&'a str>,
    /// What the user writes about the generation.
    pub message: Option<&'a str>,
}

/// The outcome of an update.
#[derive(Debug, PartialEq, Eq)]
pub enum Updated {
    /// The snapshot has this generation.
    Done(Version),
    /// Another client has changed the ref. The text is the server's sentence.
    Conflict(String),
}

impl From<pins::Generation> for Generation {
    fn from(one: pins::Generation) -> Self {
        Self {
            number: one.number,
            manifest: one.path,
            created_at: one.created_at,
            expires_at: one.expires_at,
            token: one.token,
            host: one.host,
            message: one.message,
            lineage: None,
        }
    }
}

impl Generation {
    /// Returns the generation as an entity tag has it.
    pub const fn version(&self) -> Version {
        Version {
            number: self.number,
            lineage: self.lineage,
        }
    }
}

impl Log {
    /// Returns whether a generation is one of this ref, or an older one that is not kept any more.
    pub fn follows(&self, version: Version) -> bool {
        let mut lineages = self.generations.iter().filter_map(|one| one.lineage);
        // Without lineages, only the numbers can be compared.
        let is_known = version.lineage.is_some() && lineages.next().is_some();
        let mut all = self.generations.iter();
        all.any(|one| version.number <= one.number && (!is_known || one.lineage == version.lineage))
    }

    /// Sets the lineages of the generations. `oldest`: the oldest generation of each lineage,
    /// newest first.
    fn set_lineages(&mut self, oldest: &[Version]) {
        for generation in &mut self.generations {
            let mut all = oldest.iter();
            let its = all.find(|oldest| oldest.number <= generation.number);
            generation.lineage = its.and_then(|oldest| oldest.lineage);
        }
    }

    /// Returns one generation of the ref. `number`: `None` for the newest one.
    ///
    /// # Errors
    ///
    /// There is no such generation.
    pub fn generation(mut self, name: &PinName, number: Option<u64>) -> anyhow::Result<Generation> {
        let oldest = self.generations.last().map(|oldest| oldest.number);
        let mut all = self.generations.drain(..);
        let found = match number {
            None => all.next(),
            Some(number) => all.find(|one| one.number == number),
        };
        found.ok_or_else(|| {
            Failed::Refused.because(anyhow!(
                "the ref {name} has no generation {}: the oldest that it keeps is {}",
                number.unwrap_or_default(),
                oldest.unwrap_or_default()
            ))
        })
    }
}

impl Refs {
    /// `http`: client for the URL of the cache, without `/upload`.
    pub fn new(http: &Http) -> Self {
        Self::below(http.at(format!("{}/upload", http.remote())))
    }

    /// `http`: client for the URL to which stock Nix clients push.
    pub fn below(http: Http) -> Self {
        Self { http, trust: None }
    }

    /// Like [`new`](Self::new), but requires that one of `keys`, which a workspace remembers, has
    /// signed the newest generation of each ref. Without keys, requires no signature. With keys,
    /// requests the store directory, which is a part of what is signed.
    ///
    /// # Errors
    ///
    /// The cache cannot be reached, or refuses the login.
    pub fn trusting(http: &Http, keys: &[PublicKey]) -> anyhow::Result<Self> {
        let refs = Self::new(http);
        if keys.is_empty() {
            return Ok(refs);
        }
        let response = refs.http.get(INFO_PATH)?;
        let cache = Cache::with_info(refs.http.clone(), response)?;
        Ok(refs.with_trust(Trust::new(keys, cache.store_dir()).remembered()))
    }

    /// Requires signatures of all refs that are read.
    pub fn with_trust(self, trust: Trust) -> Self {
        Self {
            trust: Some(trust),
            ..self
        }
    }

    /// Returns the generations of a ref, the newest first. Returns `None` if there is no such ref.
    ///
    /// # Errors
    ///
    /// The cache is unavailable, or the ref lacks a required signature.
    pub fn get(&self, name: &PinName) -> anyhow::Result<Option<Log>> {
        let url = url(name);
        let response = self.http.get(&url)?;
        match response.status().as_u16() {
            200 => {}
            404 => return Ok(None),
            _ => return Err(self.http.refused("to read the ref", response)),
        }
        let lineages = tags(response.headers().get(LINEAGES));
        let text = read_body(response, ANSWER_LEN_MAX)?;
        let text = String::from_utf8_lossy(&text);
        let answer = Generations::parse(&text)
            .with_context(|| format!("invalid answer from {}", self.http.url(&url)))?;
        if let Some(trust) = &self.trust {
            trust.check_ref(name.as_str(), &answer)?;
        }
        let generations = answer.generations.into_iter().map(Generation::from);
        let mut log = Log {
            generations: generations.collect(),
        };
        log.set_lineages(&lineages);
        Ok(Some(log))
    }

    /// Returns the generations of a ref.
    ///
    /// # Errors
    ///
    /// There is no such ref.
    pub fn log(&self, name: &PinName) -> anyhow::Result<Log> {
        self.get(name)?.ok_or_else(|| {
            Failed::Refused.because(anyhow!(
                "there is no ref {name} at {}: see samovar ref list, or push a first snapshot",
                self.http.remote().url().trim_end_matches("/upload")
            ))
        })
    }

    /// Adds a generation to a ref.
    ///
    /// # Errors
    ///
    /// The cache is unavailable or refuses the update.
    pub fn put(&self, name: &PinName, update: &Update<'_>) -> anyhow::Result<Updated> {
        let mut url = url(name);
        if let Some(keep) = update.keep {
            // Writing to a `String` never fails.
            write!(url, "?keep={keep}").ok();
        }
        let [host, message] =
            [update.host, update.message].map(|text| text.filter(|text| !text.is_empty()));
        let body = Put::text_of(update.manifest, host, message) + "\n";
        let http = conditional(&self.http, update.expected);
        let response = http.put(&url, "text/plain", Payload::Bytes(body.as_bytes()))?;
        match response.status().as_u16() {
            200 => {}
            412 => return Ok(Updated::Conflict(sentence(&self.http, response))),
            _ => {
                return Err(self
                    .http
                    .refused(format!("to set the ref {name}"), response));
            }
        }
        let tag = tags(response.headers().get("ETag"));
        let text = read_body(response, ANSWER_LEN_MAX)?;
        let text = String::from_utf8_lossy(&text);
        let number = generation(&text, update.manifest)
            .with_context(|| format!("invalid answer from {}", self.http.url(&url)))?;
        let version = tag.into_iter().find(|version| version.number == number);
        Ok(Updated::Done(version.unwrap_or(Version {
            number,
            lineage: None,
        })))
    }

    /// Removes a ref, or one of its generations. Returns false if there is none.
    ///
    /// # Errors
    ///
    /// The cache is unavailable or refuses the removal.
    pub fn remove(&self, name: &PinName, number: Option<u64>) -> anyhow::Result<bool> {
        let mut url = url(name);
        if let Some(number) = number {
            write!(url, "?generation={number}").ok();
        }
        let response = self.http.delete(&url)?;
        match response.status().as_u16() {
            200 => {}
            404 => return Ok(false),
            _ => {
                return Err(self
                    .http
                    .refused(format!("to remove the ref {name}"), response));
            }
        }
        let text = read_body(response, ANSWER_LEN_MAX)?;
        let text = String::from_utf8_lossy(&text);
        let count = parse_removed(&text)
            .with_context(|| format!("invalid answer from {}", self.http.url(&url)))?;
        Ok(count > 0)
    }

    /// Returns all refs of the cache, sorted by name.
    ///
    /// # Errors
    ///
    /// The cache is unavailable or refuses the list.
    pub fn list(&self) -> anyhow::Result<Vec<Newest>> {
        let response = self.http.get("/pin/")?;
        if response.status() != 200 {
            return Err(self.http.refused("to list the refs", response));
        }
        let text = read_body(response, ANSWER_LEN_MAX)?;
        let list = Newest::parse(&String::from_utf8_lossy(&text));
        list.with_context(|| format!("invalid answer from {}", self.http.url("/pin/")))
    }
}

/// Returns the URL path of a pin.
pub fn url(name: &PinName) -> String {
    format!("/pin/{}", encode(name.as_str()))
}

/// Parses the answer to a request that pins this path. Returns the generation.
///
/// # Errors
///
/// The answer is malformed, or about another path.
pub fn generation(text: &str, path: &StorePath) -> anyhow::Result<u64> {
    let pinned = Pinned::parse(text)?;
    ensure!(pinned.path == *path, "it is about the path {}", pinned.path);
    Ok(pinned.number)
}

/// Returns a client whose requests require this state of a ref.
pub fn conditional(http: &Http, expected: Expected) -> Http {
    match expected {
        Expected::Absent => http.with_header("If-None-Match", Tags::Any.text()),
        Expected::Generation(version) => http.with_header("If-Match", version.tag()),
        Expected::Any => http.clone(),
    }
}

/// Parses a list of entity tags. Omits those that are no generations.
fn tags(list: Option<&HeaderValue>) -> Vec<Version> {
    match list.and_then(|list| Tags::parse(list.as_bytes(), Weak::MatchNothing)) {
        Some(Tags::Listed(versions)) => versions,
        Some(Tags::Any) | None => Vec::new(),
    }
}

/// Returns the server's sentence in an error response.
fn sentence(http: &Http, response: ureq::http::Response<ureq::Body>) -> String {
    let refusal = http.refusal(response);
    match refusal.split_once(": ") {
        Some((_status, sentence)) => sentence.to_owned(),
        None => refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app.manifest";

    #[test]
    fn a_generation_has_the_lineage_of_those_before_it() {
        let (old, new) = ("0".repeat(32), "1".repeat(32));
        let text = format!(
            "generation 7 {PATH} 1 - - - -\ngeneration 5 {PATH} 1 - - - -\n\
             generation 4 {PATH} 1 - - - -\ngeneration 2 {PATH} 1 - - - -\nend 4\n"
        );
        let answer = Generations::parse(&text).unwrap();
        let generations = answer.generations.into_iter().map(Generation::from);
        let mut log = Log {
            generations: generations.collect(),
        };
        let list = HeaderValue::from_str(&format!("\"7-{new}\", \"4-{old}\", \"x\"")).unwrap();
        let version = |text: &str| Version::parse(text).unwrap();
        assert!(log.follows(version(&format!("6-{old}"))));
        log.set_lineages(&tags(Some(&list)));
        let texts = log.generations.iter().map(|one| one.version().text());
        let expected = [(7, &new), (5, &old), (4, &old)];
        let expected = expected.map(|(number, lineage)| format!("{number}-{lineage}"));
        let expected = expected.into_iter().chain(["2".to_owned()]);
        assert!(texts.eq(expected));
        for (text, expected) in [
            (format!("7-{new}"), true),
            (format!("8-{new}"), false),
            (format!("3-{old}"), true),
            (format!("6-{old}"), false),
            ("6".to_owned(), true),
            (format!("1-{}", "2".repeat(32)), false),
        ] {
            assert_eq!(log.follows(version(&text)), expected, "{text}");
        }
    }

    #[test]
    fn an_update_names_the_generation() {
        let path = StorePath::from_base_name(PATH).unwrap();
        let text = format!("pinned 7 {PATH}\nend 1\n");
        assert_eq!(generation(&text, &path).unwrap(), 7);
        for wrong in [text.replace("end 1\n", ""), text.replace("app", "ape")] {
            assert!(generation(&wrong, &path).is_err(), "{wrong}");
        }
    }
}
