//! [`CacheUpstreams`]: the upstreams of one cache, and the responses about their paths.

use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_http::http::Method;
use samovar_http::{Head, Inline, Reply, Responder, Response};
use samovar_nix::narinfo::{Compression, NarCoding, NarInfo};
use samovar_nix::{HashPart, NarHash, PathInfo};
use samovar_storage::StoredCache;
use samovar_upstream::local::localized;
use samovar_upstream::look_up::BUDGET;
use samovar_upstream::settings::{Resign, WhenDown};
use samovar_upstream::via::Pseudonym;

use crate::answer::nar::Part;
use crate::known::row::Row;
use crate::known::sharded::{MemoryLen, Sharded};
use crate::narinfo::form::NarinfoForm;
use crate::narinfo::narinfos::{Answer, Narinfos};
use crate::narinfo::rendered::{Narinfo, Rendered};
use crate::prepared::may_go_inline;
use crate::reader::Reader;
use crate::refusal::{Absence, Fixed, Refusal};
use crate::route::Route;
use crate::upstream::all::Upstreams;
use crate::upstream::hidden;
use crate::upstream::message::{Ask, Done, LookedUp, Miss, Wanted};
use crate::upstream::misses::Misses;
use crate::upstream::nar_head::info_of;
use crate::upstream::of_client::{BEYOND, Request};
use crate::upstream::one::{FOUND_TIME, Found, Upstream};
use crate::upstream::references::References;
use crate::upstream::request::Failed;
use crate::upstream::transfer::{Joined, Places, Transfer};

/// Number of shards of the table of known paths.
const SHARD_COUNT: usize = 16;

/// Memory of the table of known paths, in bytes: about 15,000 narinfos.
const MEMORY_LEN: usize = 16 << 20;

/// Value of `Cache-Control` in a request for a NAR that must not come from the NAR cache.
const NO_CACHE: &[u8] = b"no-cache";

/// The configuration of the upstreams of one cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// Names of the upstreams that are asked; `None`: all.
    pub names: Option<Vec<String>>,
    /// Maximum duration of a look-up.
    pub budget: Duration,
    /// What is answered if no upstream has said in time whether it has the path.
    pub when_down: WhenDown,
    /// Time for which an answer that a path is absent is remembered.
    pub negative_ttl: Duration,
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        Self {
            names: None,
            budget: BUDGET,
            when_down: WhenDown::Miss,
            negative_ttl: Duration::from_secs(60),
        }
    }
}

/// The upstreams of one cache.
#[derive(Debug)]
pub(crate) struct CacheUpstreams {
    pub(super) upstreams: Arc<Upstreams>,
    /// Numbers of the upstreams that this cache asks.
    pub(super) ids: Arc<[usize]>,
    /// Those of them to whose paths uploads may refer, and the thread that keeps these paths.
    pub(super) references: References,
    config: UpstreamConfig,
    narinfos: Arc<Narinfos>,
    pub(super) uploads: Option<StoredCache>,
    known: Sharded<Fact>,
    /// The responses about paths that no upstream has.
    pub(super) misses: Misses,
}

/// What is known about a path that is neither in the store nor uploaded.
#[derive(Debug, Clone)]
enum Known {
    Found(Arc<Narinfo>),
    Absent,
}

#[derive(Debug, Clone)]
struct Fact {
    known: Known,
    until: Instant,
    /// [`Upstreams::changes`] when this was found.
    changes: u64,
}

impl MemoryLen for Fact {
    fn memory_len(&self) -> usize {
        let of_entry = 2 * (size_of::<HashPart>() + size_of::<Self>());
        of_entry
            + match &self.known {
                Known::Absent => 0,
                Known::Found(narinfo) => {
                    size_of::<Narinfo>()
                        + narinfo.row.path.base_name().len()
                        + narinfo.prepared.memory_len()
                }
            }
    }
}

impl CacheUpstreams {
    /// Returns the upstreams of a cache; `None` if it has none.
    pub(crate) fn new(
        upstreams: &Arc<Upstreams>,
        config: UpstreamConfig,
        narinfos: &Arc<Narinfos>,
        uploads: Option<StoredCache>,
    ) -> Option<Self> {
        let numbered = upstreams.list().iter().enumerate();
        let is_asked = |name: &String| config.names.as_ref().is_none_or(|all| all.contains(name));
        let asked = numbered.filter(|(_, one)| is_asked(&one.settings.name));
        let (ids, names): (Vec<usize>, Vec<&str>) =
            asked.map(|(id, one)| (id, &*one.settings.name)).unzip();
        if ids.is_empty() {
            return None;
        }
        let of_references = ids.iter().copied().filter(|id| {
            let upstream = upstreams.list().get(*id);
            upstream.is_some_and(|one| one.settings.has_references)
        });
        let references = References::new(of_references.collect());
        Some(Self {
            misses: Misses::new(&names, config.when_down),
            upstreams: Arc::clone(upstreams),
            ids: ids.into(),
            references,
            config,
            narinfos: Arc::clone(narinfos),
            uploads,
            known: Sharded::new(SHARD_COUNT, MEMORY_LEN, Arc::default()),
        })
    }

    /// Returns the public keys that clients must trust to use paths of the upstreams, each once:
    /// the keys of each upstream whose paths this cache does not sign.
    pub(crate) fn client_keys(&self) -> Vec<String> {
        let theirs = self
            .asked(&self.ids)
            .filter(|one| one.settings.resign == Resign::No);
        let mut keys: Vec<String> = Vec::new();
        for key in theirs.flat_map(|one| &one.settings.public_keys) {
            let key = key.to_string();
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// Returns the upstreams with these numbers.
    pub(super) fn asked(&self, ids: &[usize]) -> impl Iterator<Item = &Arc<Upstream>> {
        let all = self.upstreams.list();
        ids.iter().filter_map(|id| all.get(*id))
    }

    /// Whether uploads may refer to paths that only upstreams have.
    pub(crate) fn has_references(&self) -> bool {
        !self.references.ids().is_empty()
    }

    /// Answers a request on an I/O thread from memory, or dispatches it. The path is neither in the
    /// store nor uploaded.
    pub(crate) fn inline(&self, route: &Route, hash_part: &HashPart, reply: Reply<'_>) -> Inline {
        match (route, self.known(hash_part)) {
            (Route::Narinfo(_), Some(Known::Absent)) => reply.prepared(self.misses.prepared()),
            (Route::Narinfo(_), Some(Known::Found(narinfo)))
                if may_go_inline(&narinfo.prepared) =>
            {
                reply.prepared(&narinfo.prepared)
            }
            _ if self.may_keep(hash_part) => reply.dispatch_slow(),
            _ => reply.dispatch(),
        }
    }

    /// Answers a GET or HEAD, after neither the store nor the uploads had the path; `None` if no
    /// upstream has anything with such a URL. `own`: what the server answers without upstreams.
    pub(crate) fn find(
        self: &Arc<Self>,
        head: Head<'_>,
        route: &Route,
        own: Absence,
        is_private: bool,
    ) -> Option<Response> {
        let (hash_part, nar_hash, compression) = match route {
            Route::Narinfo(hash_part) => {
                return Some(self.narinfo(head, *hash_part, false, own, is_private));
            }
            Route::UpstreamNar {
                hash_part,
                nar_hash,
                compression,
            } => (*hash_part, *nar_hash, *compression),
            Route::Nar {
                hash_part,
                nar_hash: Some(nar_hash),
                coding,
            } => {
                let compression = match coding {
                    NarCoding::Identity => Compression::None,
                    NarCoding::Zstd => Compression::Zstd,
                };
                (*hash_part, *nar_hash, compression)
            }
            _ => return None,
        };
        Some(self.nar(head, hash_part, (nar_hash, compression), own, is_private))
    }

    /// Returns what is known about a path, unless a policy must decide about it first.
    fn known(&self, hash_part: &HashPart) -> Option<Known> {
        if !self.reader().policy.is_open_to_foreign() {
            return None;
        }
        let fact = self.known.find(hash_part)?;
        (fact.changes == self.changes() && Instant::now() < fact.until).then_some(fact.known)
    }

    fn changes(&self) -> u64 {
        self.upstreams.changes()
    }

    /// Remembers a fact about a path until this time.
    fn remember(&self, hash_part: HashPart, known: Known, until: Instant) {
        let fact = Fact {
            known,
            until,
            changes: self.changes(),
        };
        self.known.insert(hash_part, fact);
    }

    pub(super) fn reader(&self) -> &Reader {
        &self.narinfos.reader
    }

    /// Answers a request for a narinfo, after neither the store nor the uploads had the path. With
    /// `is_push`, asks the upstreams to whose paths uploads may refer, for a client that pushes.
    pub(super) fn narinfo(
        self: &Arc<Self>,
        head: Head<'_>,
        hash_part: HashPart,
        is_push: bool,
        own: Absence,
        is_private: bool,
    ) -> Response {
        let request = match self.request(head, own, is_private) {
            Ok(request) => request,
            Err(response) => return response,
        };
        let ids = match is_push {
            true => self.references.ids(),
            false => &self.ids,
        };
        let (responder, response) = Response::later();
        if let Some(found) = self.kept_path(hash_part, ids) {
            self.respond_found(&found, request, responder);
            return response;
        }
        let cache = Arc::clone(self);
        let via = Arc::clone(&request.via);
        let done = move |looked_up: LookedUp| {
            let response = match looked_up {
                // What is down cannot send the path that the client would not push.
                LookedUp::Found(found) if is_push && found.upstream.is_down() => {
                    cache.misses.absent(&request.own)
                }
                LookedUp::Found(found) => return cache.respond_found(&found, request, responder),
                LookedUp::Absent(since) => {
                    if request.via.is_empty() && !is_push {
                        let until = since + cache.config.negative_ttl;
                        cache.remember(hash_part, Known::Absent, until);
                    }
                    cache.misses.absent(&request.own)
                }
                LookedUp::Unknown(miss) => cache.misses.unknown(&request.own, &miss),
            };
            responder.respond(request.mark(response));
        };
        self.ask(ids, Wanted::path(hash_part), via, Box::new(done));
        response
    }

    /// Responds with the narinfo of a path that an upstream has, if the policy admits it.
    fn respond_found(self: &Arc<Self>, found: &Found, request: Request, responder: Responder) {
        match self.found(found, &request) {
            Ok(response) => responder.respond(request.mark(response)),
            Err(refusal) => {
                let hash_part = found.narinfo.store_path.hash_part();
                hidden::respond(self, hash_part, refusal, request, responder);
            }
        }
    }

    /// Answers a request for a NAR, after neither the store nor the uploads had it. `compression`:
    /// the compression of the NAR's file, as stated in the URL.
    fn nar(
        self: &Arc<Self>,
        head: Head<'_>,
        hash_part: HashPart,
        (nar_hash, compression): (NarHash, Compression),
        own: Absence,
        is_private: bool,
    ) -> Response {
        let request = match self.request(head, own, is_private) {
            Ok(request) => request,
            Err(response) => return response,
        };
        let (responder, response) = Response::later();
        match self.kept_nar(&request, hash_part, (nar_hash, compression)) {
            Some(Ok(kept)) => return request.mark(kept),
            Some(Err(refusal)) => {
                hidden::respond(self, hash_part, refusal, request, responder);
                return response;
            }
            None => {}
        }
        let wanted = Wanted {
            nar: Some((nar_hash, compression)),
            ..Wanted::path(hash_part)
        };
        self.send_nar(wanted, request, responder);
        response
    }

    /// Returns the response with the NAR of a path that an upstream has, if it is in the NAR cache.
    fn cached(&self, request: &Request, found: &Found) -> Option<Response> {
        let narinfo = &found.narinfo;
        if request.is_to_keep && found.upstream.kept.is_some() {
            return None;
        }
        let cache = self.reader().shared.nar_cache.as_ref()?;
        let cached = cache.get_upstream((narinfo.nar_hash, narinfo.compression))?;
        let part = Part::of_range(request.range.as_deref(), cached.len(), BEYOND);
        Some(match part {
            Ok(part) => part.response(cached.body((part.start, part.end))),
            Err(unsatisfiable) => unsatisfiable,
        })
    }

    /// Finds an upstream that has a NAR, and lets it send the NAR. If that upstream fails before
    /// the first byte, tries the others.
    fn send_nar(self: &Arc<Self>, wanted: Wanted, request: Request, responder: Responder) {
        let (cache, via) = (Arc::clone(self), Arc::clone(&request.via));
        let asked = wanted.clone();
        let done = move |looked_up: LookedUp| {
            let found = match looked_up {
                LookedUp::Found(found) => found,
                // A hidden path that has another NAR, too.
                LookedUp::Absent(_) => {
                    let of = wanted.hash_part;
                    return hidden::respond(&cache, of, Refusal::Absent, request, responder);
                }
                LookedUp::Unknown(miss) => {
                    let response = cache.misses.unknown(&request.own, &miss);
                    return responder.respond(request.mark(response));
                }
            };
            if let Err(refusal) = cache.info(&found) {
                let hash_part = wanted.hash_part;
                return hidden::respond(&cache, hash_part, refusal, request, responder);
            }
            if request.is_head {
                return Self::send_head(&found, request, responder);
            }
            if let Some(response) = cache.cached(&request, &found) {
                return responder.respond(request.mark(response));
            }
            // A transfer may have ended, and its copy may have been kept, since the request was
            // compared with the kept paths.
            let running = Transfer::running(&found, cache.upstreams.transfers());
            if running.is_none()
                && cache.may_keep(&wanted.hash_part)
                && let Some(nar) = wanted.nar
                && let Some(kept) = cache.kept_nar(&request, wanted.hash_part, nar)
            {
                return match kept {
                    Ok(response) => responder.respond(request.mark(response)),
                    Err(refusal) => {
                        hidden::respond(&cache, wanted.hash_part, refusal, request, responder);
                    }
                };
            }
            let (of, of_cache) = (Arc::clone(&found), Arc::clone(&cache));
            let started = move |joined: Result<Joined, Failed>| match joined {
                Ok(joined) => {
                    let response = request.nar(joined);
                    responder.respond(request.mark(response));
                }
                // The transfer has told the director, which knows that a NAR is gone or wrong.
                Err(failed) => {
                    let mut wanted = wanted;
                    if matches!(failed, Failed::Trouble(_)) {
                        wanted.excluded.push(of.upstream.id());
                    }
                    cache.send_nar(wanted, request, responder);
                }
            };
            let nar_cache = of_cache.reader().shared.nar_cache.as_ref();
            let places = Places {
                transfers: of_cache.upstreams.transfers(),
                nar_cache,
                is_needed: false,
            };
            Transfer::join(&found, places, Box::new(started));
            drop(running);
        };
        self.ask(&self.ids, asked, via, Box::new(done));
    }

    /// Returns the narinfo of a path that an upstream has, for a bulk response.
    pub(super) fn answer(&self, found: &Found) -> Answer {
        let info = self.info(found)?;
        let text = self.text(found, &info).ok_or(Refusal::Unreadable)?;
        Ok(Rendered::uploaded(&info, &text))
    }

    pub(super) fn when_down(&self) -> WhenDown {
        self.config.when_down
    }

    /// Returns the `Via` field of a request that another Samovar passes on, empty for any other
    /// request; `None` if the request has come from this server, so that no upstream is asked.
    pub(super) fn via(&self, head: Head<'_>) -> Option<Arc<[u8]>> {
        let via = head.header("Via").unwrap_or_default();
        match Pseudonym::is_of_server(via) {
            _ if self.upstreams.pseudonym().ends(via) => None,
            true => Some(via.into()),
            false => Some(Arc::default()),
        }
    }

    pub(super) fn ask(
        self: &Arc<Self>,
        ids: &Arc<[usize]>,
        wanted: Wanted,
        via: Arc<[u8]>,
        done: Done,
    ) {
        let cache = Arc::clone(self);
        self.upstreams.ask(Ask {
            ids: Arc::clone(ids),
            wanted,
            via,
            budget: self.config.budget,
            negative_ttl: self.config.negative_ttl,
            done: Some(done),
            is_local: Arc::new(move |hash_part| cache.is_local(hash_part)),
        });
    }

    /// Whether a path is in the store, was uploaded or is kept, as far as memory tells.
    fn is_local(&self, hash_part: &HashPart) -> bool {
        self.is_own(hash_part) || self.may_keep(hash_part)
    }

    /// Whether a path is in the store or was uploaded, as far as memory tells.
    pub(super) fn is_own(&self, hash_part: &HashPart) -> bool {
        let uploads = self.uploads.as_ref();
        let catalog = self.reader().store().catalog();
        uploads.is_some_and(|uploads| uploads.may_contain(*hash_part))
            || !self.reader().policy.rules_out(hash_part)
                && catalog.is_some_and(|catalog| catalog.current().may_contain(hash_part))
    }

    /// Returns the parts of a request that matter later. The error is the response to a request
    /// that must not be passed on, because it has come from this server.
    fn request(&self, head: Head<'_>, own: Absence, is_private: bool) -> Result<Request, Response> {
        let Some(via) = self.via(head) else {
            let miss = Miss {
                reasons: vec!["the upstreams ask each other in a circle".to_owned()],
            };
            return Err(Misses::missing(&own, "circle", &miss));
        };
        Ok(Request {
            is_head: head.method() == Method::Head,
            form: NarinfoForm::of(head),
            range: head
                .header("Range")
                .filter(|_| head.header("If-Range").is_none() && head.method() == Method::Get)
                .map(Vec::from),
            is_to_keep: head
                .header("Cache-Control")
                .is_some_and(|value| value == NO_CACHE),
            via,
            is_private,
            own,
        })
    }

    /// Returns the response with the narinfo of a path that an upstream has.
    fn found(&self, found: &Found, request: &Request) -> Result<Response, Refusal> {
        let info = self.info(found)?;
        let Some(text) = self.text(found, &info) else {
            return Ok(Fixed::Unavailable.response());
        };
        let narinfo = Arc::new(Narinfo::new(Row::from(&info), &text, 0));
        if request.via.is_empty() {
            let known = Known::Found(Arc::clone(&narinfo));
            let until = found.received_at + FOUND_TIME;
            self.remember(info.path.hash_part(), known, until);
        }
        self.reader().note_name(&info.path);
        let dir = self.reader().store().store_dir();
        Ok(request.form.response(dir, narinfo))
    }

    /// Returns the narinfo to serve; `None` if it cannot be written, because an old field of it has
    /// a blank.
    fn text(&self, found: &Found, info: &PathInfo) -> Option<Vec<u8>> {
        let dir = self.reader().store().store_dir();
        let resign = found.upstream.settings.resign;
        let own = match resign {
            Resign::No => Vec::new(),
            Resign::Add | Resign::Only => self.narinfos.signing.by_all_keys(info, dir),
        };
        let mut text = Vec::with_capacity(1024);
        let written = localized(&found.narinfo, resign, own).write(dir, &mut text);
        written.is_ok().then_some(text)
    }

    /// Returns the metadata of a path that an upstream has, if the policy admits it.
    fn info(&self, found: &Found) -> Result<PathInfo, Refusal> {
        self.admit(&found.narinfo)
    }

    /// Returns the metadata of a narinfo, if the policy admits it.
    pub(super) fn admit(&self, narinfo: &NarInfo) -> Result<PathInfo, Refusal> {
        let info = info_of(narinfo, self.reader().policy.now());
        if !self.reader().policy.is_open() {
            self.reader().admit_foreign(&info)?;
        }
        Ok(info)
    }
}
