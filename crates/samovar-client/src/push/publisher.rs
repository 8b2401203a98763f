//! Publishes the paths of a push by the push protocol, references first.
//!
//! A push of up to 4096 paths is published by one request: other clients see all of it or nothing.
//! A larger one becomes visible batch by batch.

use anyhow::{Context as _, bail, ensure};
use samovar_nix::StoreDir;
use samovar_protocol::push::{
    LINE_LEN_MAX, Missing, PUBLISH_COUNT_MAX, PUBLISH_LEN_MAX, is_published, write_end,
};

use super::ledger::Ledger;
use super::narinfo::push_narinfo;
use super::session::answer;
use crate::http::Http;

/// Total length in bytes of stored NARs without a narinfo at which paths are published before the
/// end of the push. Servers limit the length of unfinished uploads, usually to 100 GiB.
const WAITING_LEN_MAX: u64 = 8 << 30;

/// The outcome for the NAR of a path, which is given by its index.
#[derive(Debug)]
pub(super) enum Event {
    /// The server has the NAR of this path.
    Stored(usize),
    /// The NAR of this path cannot be sent, or the server refused it, for this reason.
    Failed(usize, String),
}

/// Publishes the paths of a push as soon as their NARs are on the server.
#[derive(Debug)]
pub(super) struct Publisher<'a, 'l> {
    http: &'a Http,
    /// URL path of the requests that publish.
    url: String,
    dir: &'a StoreDir,
    ledger: Ledger<'l>,
    /// Indices of the paths that are ready to be published, references first.
    batch: Vec<usize>,
    /// Total length of the NARs stored since the last request that published paths, in bytes.
    waiting_len: u64,
}

impl<'a, 'l> Publisher<'a, 'l> {
    pub(super) fn new(http: &'a Http, url: String, dir: &'a StoreDir, ledger: Ledger<'l>) -> Self {
        Self {
            http,
            url,
            dir,
            ledger,
            batch: Vec::new(),
            waiting_len: 0,
        }
    }

    /// Records the outcome for a NAR, and publishes if enough paths are ready.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or refuses more than single paths.
    pub(super) fn take(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Stored(nar) => {
                self.ledger.stored(nar);
                self.waiting_len += self.ledger.info(nar).map_or(0, |info| info.nar_size);
            }
            Event::Failed(nar, reason) => self.ledger.nar_failed(nar, &reason),
        }
        self.collect();
        while self.batch.len() > PUBLISH_COUNT_MAX {
            self.publish_some()?;
        }
        if self.waiting_len >= WAITING_LEN_MAX {
            self.publish_all()?;
            self.waiting_len = 0;
        }
        Ok(())
    }

    /// Publishes all remaining paths. Returns the ledger with their states.
    ///
    /// # Errors
    ///
    /// See [`take`](Self::take).
    pub(super) fn finish(mut self) -> anyhow::Result<Ledger<'l>> {
        self.collect();
        self.publish_all()?;
        Ok(self.ledger)
    }

    /// Moves all ready paths from the ledger into the batch.
    fn collect(&mut self) {
        while let Some(path) = self.ledger.next() {
            self.ledger.release(path);
            self.batch.push(path);
        }
    }

    fn publish_all(&mut self) -> anyhow::Result<()> {
        while !self.batch.is_empty() {
            self.publish_some()?;
        }
        Ok(())
    }

    /// Publishes the first paths of the batch, at most `PUBLISH_COUNT_MAX`.
    fn publish_some(&mut self) -> anyhow::Result<()> {
        let count = self.batch.len().min(PUBLISH_COUNT_MAX);
        let paths: Vec<usize> = self.batch.drain(..count).collect();
        self.publish(paths)
    }

    /// Publishes these paths, with several requests if necessary. Afterwards each of them is
    /// published or failed.
    fn publish(&mut self, mut paths: Vec<usize>) -> anyhow::Result<()> {
        loop {
            let (body, sent) = self.body(&mut paths);
            if sent.is_empty() {
                return Ok(());
            }
            let (response, text) = answer(|| self.http.post(&self.url, &body))?;
            match (response.status().as_u16(), text) {
                (200, Some(text)) => {
                    if !is_published(&text, sent.len()) {
                        bail!("invalid answer from {}: {text:?}", self.http.url(&self.url));
                    }
                    for path in sent {
                        self.ledger.published(path);
                    }
                }
                (409, Some(text)) => {
                    let missing = Missing::parse(&text).with_context(|| {
                        format!("invalid answer from {}: {text:?}", self.http.url(&self.url))
                    })?;
                    self.fail_missing(missing)?;
                    // Fail, because otherwise the same request would be repeated forever.
                    ensure!(
                        sent.iter().any(|path| self.ledger.is_failed(*path)),
                        "the cache refused to publish without a reason"
                    );
                    paths.splice(..0, sent);
                }
                (422, _) => match sent[..] {
                    [path] => {
                        let refusal = self.http.refusal(response);
                        let reason = format!("the cache refused it: {refusal}");
                        self.ledger.failed(path, reason);
                    }
                    // The server refuses one of the paths. Publish each half alone to find it; the
                    // first half does not refer to the second.
                    _ => {
                        let mut first = sent;
                        let second = first.split_off(first.len() / 2);
                        self.publish(first)?;
                        paths.splice(..0, second);
                    }
                },
                _ => return Err(self.http.refused("to publish", response)),
            }
        }
    }

    /// Writes the body of a request with as many of the first paths as fit, and removes these from
    /// `paths`. Fails paths that refer to a failed one, and leaves them out. Returns the body and
    /// the paths in it.
    fn body(&mut self, paths: &mut Vec<usize>) -> (Vec<u8>, Vec<usize>) {
        let (mut body, mut sent, mut taken) = (Vec::new(), Vec::new(), 0);
        for &path in paths.iter() {
            let Some(info) = self.ledger.info(path) else {
                continue;
            };
            if !self.ledger.is_failed(path) && !self.ledger.fails_by_reference(path) {
                let len = body.len();
                if let Err(error) = push_narinfo(&mut body, info, self.dir) {
                    self.ledger.failed(path, error.to_string());
                } else if (body.len() + LINE_LEN_MAX) as u64 > PUBLISH_LEN_MAX && len > 0 {
                    body.truncate(len);
                    break;
                } else {
                    sent.push(path);
                }
            }
            taken += 1;
        }
        paths.drain(..taken);
        write_end(&mut body, sent.len());
        (body, sent)
    }

    fn fail_missing(&mut self, missing: Vec<Missing>) -> anyhow::Result<()> {
        for missing in missing {
            let hash_part = match &missing {
                Missing::Reference { path, .. } | Missing::Nar(path) => *path,
            };
            let path = self.ledger.find(hash_part);
            let path = path.context("the cache names an unknown path")?;
            match missing {
                Missing::Reference { reference, .. } => {
                    let found = self.ledger.find(reference);
                    let info = found.and_then(|found| self.ledger.info(found));
                    let text = reference.to_string();
                    let reference = info.map_or(&*text, |info| info.path.base_name());
                    let reason =
                        format!("its reference {reference} is not in the cache: push it, too");
                    self.ledger.failed(path, reason);
                }
                Missing::Nar(_) => self.ledger.lost_nar(path),
            }
        }
        Ok(())
    }
}
