//! [`Cache`]: the client side of a binary cache.

use std::collections::HashSet;
use std::io::BufReader;
use std::sync::OnceLock;

use anyhow::{Context as _, anyhow, bail, ensure};
use samovar_nix::narinfo::NarInfo;
use samovar_nix::{HashPart, StoreDir};
use samovar_protocol::bulk::{CONTENT_TYPE, NARINFO_LEN_MAX, Record, Records};
use ureq::Body;
use ureq::http::Response;

use crate::failed::Failed;
use crate::http::{Http, Patience, first_line, read_body};
use crate::private::Private;
use crate::remote::Remote;
use crate::walk::{self, Found};

/// Maximum number of paths in one bulk query. Servers accept ten times as many.
const ASK_COUNT: usize = 10_000;

/// URL path of the document that describes a cache.
pub const INFO_PATH: &str = "/nix-cache-info";
const NARINFOS_PATH: &str = "/narinfos";

const CACHE_INFO_LEN_MAX: u64 = 64 << 10;

/// A client of a binary cache.
#[derive(Debug)]
pub struct Cache {
    http: Http,
    store_dir: StoreDir,
    /// Whether the server supports bulk queries; unset until the first query.
    supports_bulk: OnceLock<bool>,
}

impl Cache {
    /// Opens the cache at `url`: requests its `nix-cache-info`.
    ///
    /// # Errors
    ///
    /// The URL is invalid, the server cannot be reached or refuses, or it is no binary cache.
    pub fn open(url: &str) -> anyhow::Result<Self> {
        Self::over(Http::new(Remote::of_folder(url)?, Patience::QUERY)?)
    }

    /// Opens the cache that `http` reaches: requests its `nix-cache-info`.
    ///
    /// # Errors
    ///
    /// The server cannot be reached or refuses, or it is no binary cache.
    pub fn over(http: Http) -> anyhow::Result<Self> {
        let response = http.get(INFO_PATH)?;
        Self::with_info(http, response)
    }

    /// Opens the cache that `http` reaches. `response`: the response to a request for
    /// `nix-cache-info`.
    ///
    /// # Errors
    ///
    /// The server refuses, or it is no binary cache.
    pub fn with_info(http: Http, response: Response<Body>) -> anyhow::Result<Self> {
        let url = http.remote();
        let info_url = http.url(INFO_PATH);
        let status = response.status();
        if matches!(status.as_u16(), 401 | 403) {
            let refused = format!("{info_url} answered {status}");
            let private = match url.login_source() {
                None => Private::NoLogin(refused),
                Some(source) => {
                    let reason = first_line(response).map(|line| format!(" ({line})"));
                    let reason = reason.unwrap_or_default();
                    Private::WrongLogin(format!("{refused}: {source} was refused{reason}"))
                }
            };
            return Err(private.into());
        }
        if status != 200 {
            if status == 400 && !url.is_secure() && is_about_https(response) {
                let secure = url.origin_with("https");
                let error = anyhow!("{} speaks only HTTPS: use {secure}", url.origin());
                return Err(Failed::Unavailable.because(error));
            }
            let failed = match status.is_server_error() {
                true => Failed::Unavailable,
                false => Failed::Refused,
            };
            let error = anyhow!("{info_url} answered {status}: is {url} a binary cache?");
            return Err(failed.because(error));
        }
        let text = read_body(response, CACHE_INFO_LEN_MAX)
            .with_context(|| format!("cannot read {info_url}"))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let store_dir = text
            .lines()
            .find_map(|line| line.strip_prefix("StoreDir:"))
            .with_context(|| format!("{info_url} has no StoreDir: is {url} a binary cache?"))?;
        let store_dir = StoreDir::new(store_dir.trim())
            .with_context(|| format!("the StoreDir in {info_url} is invalid"))?;
        Ok(Self::with_store_dir(http, store_dir))
    }

    /// Opens a cache whose store directory is already known, without a request.
    pub fn with_store_dir(http: Http, store_dir: StoreDir) -> Self {
        Self {
            http,
            store_dir,
            supports_bulk: OnceLock::new(),
        }
    }

    /// Returns the HTTP client for the cache's URL.
    pub fn http(&self) -> &Http {
        &self.http
    }

    /// Returns the URL of the cache, without a login.
    pub fn url(&self) -> &str {
        self.http.remote().url()
    }

    /// Returns the store directory of the cache's paths, such as `/nix/store`.
    pub fn store_dir(&self) -> &StoreDir {
        &self.store_dir
    }

    /// Requests the narinfos of these paths. Returns them in the same order, with `None` for each
    /// path that the cache does not have.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or its answer is invalid.
    pub fn narinfos(&self, hash_parts: &[HashPart]) -> anyhow::Result<Vec<Option<NarInfo>>> {
        let mut narinfos = Vec::with_capacity(hash_parts.len());
        for some in hash_parts.chunks(ASK_COUNT) {
            match self.many(some)? {
                Some(answers) => narinfos.extend(answers),
                None => narinfos.extend(walk::each(some, |hash_part| self.one(hash_part))?),
            }
        }
        Ok(narinfos)
    }

    /// Requests the narinfos of these paths' closures.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or its answer is invalid.
    pub fn closure(&self, roots: &[HashPart]) -> anyhow::Result<Found> {
        let mut found = Found::default();
        let mut seen = HashSet::new();
        let mut left = Vec::new();
        for (root, narinfo) in roots.iter().zip(self.narinfos(roots)?) {
            if narinfo.is_none() {
                found.missing.push(*root);
            } else {
                left.push(*root);
            }
        }
        while let Some(root) = left.first().copied() {
            if seen.contains(&root) {
                left.remove(0);
                continue;
            }
            let Some(narinfos) = self.whole_closure(root)? else {
                break;
            };
            left.remove(0);
            let new = narinfos
                .into_iter()
                .filter(|narinfo| seen.insert(narinfo.store_path.hash_part()));
            found.narinfos.extend(new);
        }
        if !left.is_empty() {
            let walked = walk::closure(&left, &seen, |hash_part| self.one(hash_part))?;
            found.narinfos.extend(walked.narinfos);
            found.missing.extend(walked.missing);
        }
        Ok(found)
    }

    /// Requests the narinfo of one path. Returns `None` if the cache does not have the path.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or its answer is invalid.
    pub fn one(&self, hash_part: HashPart) -> anyhow::Result<Option<NarInfo>> {
        let path = format!("/{hash_part}.narinfo");
        let url = self.http.url(&path);
        let response = self.http.get(&path)?;
        match response.status().as_u16() {
            200 => {}
            // An S3 bucket also responds with 403 to a request for a missing object, if the client
            // may not list the objects.
            403 | 404 | 410 => return Ok(None),
            status => {
                bail!("{url} answered {status}: try later, or ask the operator of the cache")
            }
        }
        let text = read_body(response, NARINFO_LEN_MAX)
            .with_context(|| format!("cannot read {url}: try again"))?;
        self.parse(hash_part, &text).map(Some)
    }

    /// Sends one bulk query. Returns a narinfo or `None` for each path, or `None` instead of the
    /// list if the server does not support bulk queries.
    fn many(&self, hash_parts: &[HashPart]) -> anyhow::Result<Option<Vec<Option<NarInfo>>>> {
        if self.supports_bulk.get() == Some(&false) || hash_parts.is_empty() {
            return Ok(None);
        }
        let url = self.http.url(NARINFOS_PATH);
        let lines: String = hash_parts
            .iter()
            .map(|hash_part| format!("{hash_part}\n"))
            .collect();
        let response = self.http.post(NARINFOS_PATH, lines.as_bytes())?;
        let is_supported = is_records(&response);
        self.supports_bulk.get_or_init(|| is_supported);
        if !is_supported {
            return Ok(None);
        }
        let mut answers = Vec::with_capacity(hash_parts.len());
        let mut records = Records::begin(BufReader::new(response.into_body().into_reader()))
            .with_context(|| format!("invalid answer from {url}"))?;
        let mut asked = hash_parts.iter();
        while let Some(record) = records
            .read()
            .with_context(|| format!("invalid answer from {url}: try again"))?
        {
            let (hash_part, answer) = match record {
                Record::Path(hash_part, text) => (hash_part, Some(self.parse(hash_part, &text)?)),
                Record::Absent(hash_part) => (hash_part, None),
                Record::Failed(hash_part) => bail!(
                    "{} cannot say whether it has {hash_part}: its upstreams are down, or its \
                     database is damaged; its log has the reason",
                    self.url()
                ),
            };
            ensure!(
                asked.next() == Some(&hash_part),
                "the answer of {url} does not match the query"
            );
            answers.push(answer);
        }
        ensure!(asked.next().is_none(), "the answer of {url} is incomplete");
        Ok(Some(answers))
    }

    /// Requests the whole closure of `root` with one query. Returns `None` if the server does not
    /// support such queries, or if this one failed.
    fn whole_closure(&self, root: HashPart) -> anyhow::Result<Option<Vec<NarInfo>>> {
        if self.supports_bulk.get() != Some(&true) {
            return Ok(None);
        }
        let response = self.http.get(&format!("/closure/{root}"))?;
        if !is_records(&response) {
            return Ok(None);
        }
        let Ok(mut records) = Records::begin(BufReader::new(response.into_body().into_reader()))
        else {
            return Ok(None);
        };
        let mut seen = HashSet::new();
        let mut narinfos = Vec::new();
        // After an error return `None`: the caller then requests each narinfo alone, and reports
        // the error of that request.
        loop {
            let (hash_part, text) = match records.read() {
                Ok(None) => break,
                Ok(Some(Record::Path(hash_part, text))) => (hash_part, text),
                Ok(Some(Record::Absent(_) | Record::Failed(_))) | Err(_) => return Ok(None),
            };
            let narinfo = self.parse(hash_part, &text)?;
            seen.insert(hash_part);
            let mut references = narinfo.references.iter();
            if !references.all(|reference| seen.contains(&reference.hash_part())) {
                return Ok(None);
            }
            narinfos.push(narinfo);
        }
        let last = narinfos.last().map(|last| last.store_path.hash_part());
        Ok((last == Some(root)).then_some(narinfos))
    }

    fn parse(&self, hash_part: HashPart, text: &[u8]) -> anyhow::Result<NarInfo> {
        let narinfo = NarInfo::parse(&self.store_dir, text).with_context(|| {
            format!(
                "the narinfo of {hash_part} at {} cannot be used",
                self.url()
            )
        })?;
        ensure!(
            narinfo.store_path.hash_part() == hash_part,
            "{} answers for {hash_part} with the narinfo of {}",
            self.url(),
            narinfo.store_path
        );
        Ok(narinfo)
    }
}

/// Returns whether an error response says that the port speaks HTTPS, as the responses of Samovar
/// and of nginx do.
fn is_about_https(response: Response<Body>) -> bool {
    let body = read_body(response, CACHE_INFO_LEN_MAX).unwrap_or_default();
    String::from_utf8_lossy(&body).contains("HTTPS")
}

fn is_records(response: &Response<Body>) -> bool {
    response.status() == 200 && response.body().mime_type() == Some(CONTENT_TYPE)
}
