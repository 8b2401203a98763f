//! `/search?q=…`: finds paths by name, by the start of their hash, or by anything that contains
//! their hash.
//!
//! # Theory of operation
//!
//! A whole hash part is looked up like a request for its narinfo. The words of any other text are
//! compared with all names of the store, a few thousand rows per transaction, because the database
//! has no index on parts of names. That takes about half a second for a million paths, so the time
//! and the number of scans at once are limited.
//!
//! Only paths that the client may read count as found. So neither the results nor the statement
//! that there are more depend on a path that a policy hides. Nor does the time: rules about names
//! and roots are decided without a look-up. For other rules, the number of look-ups, in the Nix
//! store and among uploaded paths, is rounded up to a multiple of [`LOOKUP_COUNT_STEP`]. All
//! matches are counted only if there is no policy, which would have to decide about each of them.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | results | 50; on request 1000 | memory, and the length of the page |
//! | words | 16 | each is compared with each name |
//! | time of a scan | 2 s | a scan occupies a worker |
//! | scans at once | as for large closures in bulk queries | processors |

use std::cell::Cell;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use maud::{Markup, html};
use samovar_http::http::Status;
use samovar_http::{Head, Response};
use samovar_nix::{HashPart, StorePath};
use samovar_storage::metadata::overview;

use super::frame::redirect;
use super::text::{Count, Date, Size, path_name};
use super::url::{encode, parameter};
use super::visible::{details_of, failed, has_page, is_there, is_uploaded};
use super::{PagedCache, View};
use crate::refusal::Refusal;

/// Number of results on the first page.
const RESULT_COUNT: usize = 50;

/// Maximum number of results.
const RESULT_COUNT_MAX: usize = 1000;

/// Under a policy that depends on rows, the number of look-ups is a multiple of this. Otherwise the
/// time would tell how many hidden paths match.
const LOOKUP_COUNT_STEP: usize = 64;

/// Maximum duration of a scan.
const SCAN_TIME_MAX: Duration = Duration::from_secs(2);

/// Minimum length of the start of a hash. Shorter texts match too many paths by accident.
const HASH_START_LEN_MIN: usize = 4;

/// Maximum length of a store path's name.
const NAME_LEN_MAX: usize = 211;

/// Maximum number of words of a search. Further ones are ignored.
const WORD_COUNT_MAX: usize = 16;

/// A search for a text that contains no whole hash part.
struct Search {
    /// The words of the text, in lower case. A path must match all of them.
    words: Vec<String>,
}

/// The order of results: the best match first, then by name, then the newest path.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    found: Match,
    name: NaturalName,
    age: Reverse<i64>,
    path: StorePath,
}

/// How a path matches, the best first. Derivations come after all other paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Match {
    is_derivation: bool,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    WholeName,
    StartOfName,
    StartOfHash,
    PartOfName,
}

/// A name in the order that people expect: numbers in it are compared as numbers.
#[derive(Debug, PartialEq, Eq)]
struct NaturalName(String);

/// The paths found.
#[derive(Default)]
struct Found {
    /// The best results: one more than are shown, to know whether there are more.
    best: BTreeSet<Key>,
    /// The number of matches in the Nix store.
    match_count: usize,
    /// The uploaded paths that match.
    uploaded: HashSet<StorePath>,
    /// Whether the time ended before all paths were compared.
    is_cut: bool,
}

/// Numbers of paths that were looked up.
#[derive(Default)]
struct Lookups {
    in_store: Cell<usize>,
    /// Each among the uploaded paths and in the Nix store.
    uploaded: Cell<usize>,
}

impl Search {
    fn new(asked: &str, store_dir: &str) -> Self {
        let asked = asked.to_ascii_lowercase();
        let words = asked.split_whitespace().map(|word| {
            let rest = word.strip_prefix(store_dir);
            rest.map_or(word, |rest| rest.trim_matches('/')).to_owned()
        });
        Self {
            words: words.take(WORD_COUNT_MAX).collect(),
        }
    }

    /// Returns the first word that may be the start of a hash.
    fn hash_start(&self) -> Option<&str> {
        let mut words = self.words.iter().map(String::as_str);
        words.find(|word| is_hash_start(word))
    }

    fn match_of(&self, base_name: &str) -> Option<Match> {
        let (hash, name) = base_name.split_once('-')?;
        let mut place = match &*self.words {
            [only] if name.eq_ignore_ascii_case(only) => Place::WholeName,
            _ => Place::PartOfName,
        };
        for (index, word) in self.words.iter().enumerate() {
            let here = match find(name.as_bytes(), word.as_bytes()) {
                Some(0) if index == 0 => Place::StartOfName,
                _ if is_hash_start(word) && hash.starts_with(word) => Place::StartOfHash,
                Some(_) => Place::PartOfName,
                None => return None,
            };
            place = place.min(here);
        }
        Some(Match {
            is_derivation: name.ends_with(".drv"),
            place,
        })
    }

    /// Returns the place of a path among the results; `None` if it does not match.
    fn key(&self, path: StorePath, age: i64) -> Option<Key> {
        Some(Key {
            found: self.match_of(path.base_name())?,
            name: NaturalName(path.name().to_owned()),
            age: Reverse(age),
            path,
        })
    }
}

impl Ord for NaturalName {
    fn cmp(&self, other: &Self) -> Ordering {
        let (mut one, mut two) = (self.0.as_bytes(), other.0.as_bytes());
        while let (Some(first), Some(second)) = (one.first(), two.first()) {
            let order = match (number(one), number(two)) {
                (Some(digits), Some(others)) => {
                    (one, two) = (&one[digits.len()..], &two[others.len()..]);
                    let (digits, others) = (significant(digits), significant(others));
                    digits.len().cmp(&others.len()).then(digits.cmp(others))
                }
                _ => {
                    (one, two) = (&one[1..], &two[1..]);
                    let lower = u8::to_ascii_lowercase;
                    lower(first).cmp(&lower(second))
                }
            };
            if order.is_ne() {
                return order;
            }
        }
        // Names that differ only in case or in leading zeros.
        one.len().cmp(&two.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for NaturalName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the digits at the start; `None` if there are none.
fn number(text: &[u8]) -> Option<&[u8]> {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (count > 0).then(|| &text[..count])
}

/// Returns digits without leading zeros.
fn significant(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    &digits[zeros..]
}

/// Answers a search: redirects to the page of a path if only one is found.
pub(super) fn page(view: &View<'_>, head: Head<'_>) -> Result<Response, Refusal> {
    if view.asked.trim().is_empty() {
        return Ok(view.message(
            Status::NOT_FOUND,
            "Nothing to look for",
            "Enter a name or a part of it, the start of a hash, or a store path.",
        ));
    }
    if let Some(hash_part) = hash_part_in(view.asked) {
        if details_of(&view.cache, hash_part)?.is_none() {
            view.reader().servable(hash_part)?;
        }
        return Ok(redirect(&view.base.to_path(hash_part)));
    }
    let search = Search::new(view.asked, view.reader().store().store_dir().as_str());
    let is_long = parameter(head.query(), "more").is_some();
    let count_max = if is_long {
        RESULT_COUNT_MAX
    } else {
        RESULT_COUNT
    };
    let mut found = Found::default();
    if search.words.iter().all(|word| word.len() <= NAME_LEN_MAX) {
        // Without a scan, the rest of the paths would be missing without notice.
        let Some(_slot) = view.reader().shared.closure_slots.try_acquire() else {
            return Ok(busy(view));
        };
        let lookups = Lookups::default();
        find_uploaded(&view.cache, &search, count_max, &mut found, &lookups)?;
        find_in_store(&view.cache, &search, count_max, &mut found, &lookups)?;
        look_up_others(&view.cache, &lookups)?;
    }
    if !found.is_cut
        && let (Some(only), 1) = (found.best.first(), found.best.len())
    {
        return Ok(redirect(&view.base.to_path(only.path.hash_part())));
    }
    results(view, found, count_max)
}

fn busy(view: &View<'_>) -> Response {
    let text = "Too many searches are in progress. Try again in a few seconds.";
    view.message(Status::SERVICE_UNAVAILABLE, "Busy", text)
        .header("Retry-After", "2")
}

fn find_uploaded(
    cache: &PagedCache<'_>,
    search: &Search,
    count_max: usize,
    found: &mut Found,
    lookups: &Lookups,
) -> Result<(), Refusal> {
    let Some(stored) = cache.stored else {
        return Ok(());
    };
    let accepts = |path: &StorePath| search.match_of(path.base_name()).is_some();
    let uploads = overview::recent(
        stored.metadata(),
        stored.id(),
        &accepts,
        RESULT_COUNT_MAX + 1,
    );
    for upload in uploads.map_err(|error| failed(cache.reader(), &error))? {
        let Some(key) = search.key(upload.path, upload.registered_at) else {
            continue;
        };
        found.uploaded.insert(key.path.clone());
        let policy = &cache.reader().policy;
        let may_be_shown = |path: &StorePath| {
            if policy.is_open() {
                return has_page(cache, path);
            }
            // The Nix store may have the path too, under other rules.
            match policy.decide_by_name(path, true) {
                Some(false) => Ok(false),
                Some(true) => has_page(cache, path),
                None => {
                    lookups.uploaded.set(lookups.uploaded.get() + 1);
                    look_up_uploaded(cache, path)
                }
            }
        };
        found.add(key, count_max, may_be_shown)?;
    }
    Ok(())
}

fn find_in_store(
    cache: &PagedCache<'_>,
    search: &Search,
    count_max: usize,
    found: &mut Found,
    lookups: &Lookups,
) -> Result<(), Refusal> {
    let end = Instant::now() + SCAN_TIME_MAX;
    let policy = &cache.reader().policy;
    let is_open = policy.is_open();
    let may_be_shown = |path: &StorePath| {
        if is_open || policy.decide_by_name(path, false) == Some(false) {
            return Ok(is_open);
        }
        lookups.in_store.set(lookups.in_store.get() + 1);
        is_there(cache.reader(), path)
    };
    let accepts = |base_name: &str| search.match_of(base_name).is_some();
    // The start of a hash is found first, whatever time the rest takes.
    for start in search.hash_start().into_iter().chain([""]) {
        let mut after = Some(start.to_owned());
        while let Some(from) = after {
            let scanned = cache.reader().store().scan(&from, &accepts)?;
            for (id, path) in scanned.found {
                if Instant::now() > end {
                    found.is_cut = true;
                    return Ok(());
                }
                let Some(key) = search.key(path, id) else {
                    continue;
                };
                if start.is_empty() && !found.uploaded.contains(&key.path) {
                    found.match_count += 1;
                }
                found.add(key, count_max, may_be_shown)?;
            }
            after = scanned.next.filter(|next| next.starts_with(start));
            if after.is_some() && Instant::now() > end {
                found.is_cut = true;
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Whether an uploaded path may be shown, after the same look-ups whatever the reason.
fn look_up_uploaded(cache: &PagedCache<'_>, path: &StorePath) -> Result<bool, Refusal> {
    let is_uploaded = is_uploaded(cache, path)?;
    Ok(is_there(cache.reader(), path)? || is_uploaded)
}

/// Looks up other paths until the numbers of look-ups are multiples of [`LOOKUP_COUNT_STEP`].
fn look_up_others(cache: &PagedCache<'_>, lookups: &Lookups) -> Result<(), Refusal> {
    let policy = &cache.reader().policy;
    if policy.is_open() || !policy.needs_rows() {
        return Ok(());
    }
    let missing = |count: usize| count.max(1).next_multiple_of(LOOKUP_COUNT_STEP) - count;
    if let Some(stored) = cache.stored {
        let newest = overview::recent(stored.metadata(), stored.id(), &|_path| true, 1);
        if let Some(other) = newest
            .map_err(|error| failed(cache.reader(), &error))?
            .first()
        {
            for _ in 0..missing(lookups.uploaded.get()) {
                look_up_uploaded(cache, &other.path)?;
            }
        }
    }
    if let Some(other) = cache.reader().store().newest(None, 1)?.first() {
        for _ in 0..missing(lookups.in_store.get()) {
            is_there(cache.reader(), &other.path)?;
        }
    }
    Ok(())
}

fn results(view: &View<'_>, mut found: Found, count_max: usize) -> Result<Response, Refusal> {
    let has_more = found.best.len() > count_max;
    if has_more {
        found.best.pop_last();
    }
    let count = found.best.len();
    // Of uploaded paths and of a store that was not read to its end, there may be more.
    let is_counted =
        view.reader().policy.is_open() && !found.is_cut && found.uploaded.len() <= RESULT_COUNT_MAX;
    let total = is_counted.then(|| found.match_count + found.uploaded.len());
    let mut rows = Vec::with_capacity(count);
    for key in found.best {
        rows.push(result(view, &key.path)?);
    }
    let main = html! {
        h1 {
            @if count == 0 { "No path found" } @else { "Search" }
        }
        p {
            @let text = view.asked.trim();
            @if count == 0 {
                "No path in this cache has “" (text) "” in its name, or a hash that starts "
                "with it. If you enter several words, each of them must match."
            } @else if has_more {
                "The " (Count(count as u64)) " best matches for “" (text) "”, of "
                @match total {
                    Some(total) => { (Count(total as u64).of("path")) },
                    None => { "more than " (Count(count as u64).of("path")) },
                }
                "."
            } @else {
                (Count(count as u64).of("path")) " for “" (text) "”."
            }
        }
        @if found.is_cut {
            p { strong { "Not all paths were compared" } ", because that takes too long. Enter "
                "the start of a hash, or a store path." }
        }
        @if count > 0 { table.files {
            thead { tr {
                th scope="col" { "Name" }
                th.kind scope="col" { "Hash" }
                th.number scope="col" { "NAR size" }
                th.kind.number scope="col" { "Registered" }
            } }
            tbody { @for row in rows { (row) } }
        } }
        @if has_more && count_max < RESULT_COUNT_MAX {
            ul.actions { li {
                a href={ "?q=" (encode(view.asked.as_bytes())) "&more=" } { "More results" }
            } }
        }
    };
    let status = if count == 0 {
        Status::NOT_FOUND
    } else {
        Status::OK
    };
    Ok(view.page("Search", "wide", main).response(status))
}

fn result(view: &View<'_>, path: &StorePath) -> Result<Markup, Refusal> {
    let info = view.reader().store().lookup(path.hash_part())?;
    let info = info.filter(|info| info.path == *path);
    let hash: String = path.base_name().chars().take(8).collect();
    Ok(html! { tr {
        td { (path_name(view.base, path, true)) }
        td.kind { code { (hash) "…" } }
        td.number { @if let Some(info) = &info { (Size(info.nar_size)) } }
        td.kind.number {
            @if let Some(info) = info.filter(|info| info.registration_time > 0) {
                (Date(info.registration_time))
            }
        }
    } })
}

impl Found {
    /// Adds a path if it is one of the best and may be shown.
    fn add(
        &mut self,
        key: Key,
        count_max: usize,
        may_be_shown: impl Fn(&StorePath) -> Result<bool, Refusal>,
    ) -> Result<(), Refusal> {
        let is_full = self.best.len() > count_max;
        if is_full && self.best.last().is_some_and(|last| *last < key) {
            return Ok(());
        }
        let is_known = self.best.iter().any(|known| known.path == key.path);
        if !is_known && may_be_shown(&key.path)? {
            self.best.insert(key);
            if self.best.len() > count_max + 1 {
                self.best.pop_last();
            }
        }
        Ok(())
    }
}

/// Returns the position of `part` in `name`, whatever the case of ASCII letters in `name`.
fn find(name: &[u8], part: &[u8]) -> Option<usize> {
    let mut places = name.windows(part.len().max(1));
    places.position(|place| place.eq_ignore_ascii_case(part))
}

fn is_hash_start(word: &str) -> bool {
    word.len() >= HASH_START_LEN_MIN && word.bytes().all(is_of_hash)
}

fn is_of_hash(byte: u8) -> bool {
    byte.is_ascii_digit() || byte.is_ascii_lowercase() && !b"eotu".contains(&byte)
}

/// Finds the first hash part in pasted text; `None` if there is none.
fn hash_part_in(text: &str) -> Option<HashPart> {
    let text = text.to_ascii_lowercase();
    let mut words = text.split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit());
    words.find_map(|word| HashPart::parse(word.as_bytes()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, is_found: bool) {
        let hash = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";
        let expected = is_found.then(|| HashPart::parse(hash.as_bytes()).unwrap());
        assert_eq!(hash_part_in(&text.replace("{H}", hash)), expected, "{text}");
    }

    #[test]
    fn search_finds_a_hash_part_in_any_text() {
        check("{H}", true);
        check("  {H}\n", true);
        check("/nix/store/{H}-hello-2.12/bin/hello", true);
        check("http://cache.example/{H}.narinfo", true);
        check("\"{H}-x\"", true);
        check("", false);
        check("hello", false);
        check("HTTP://X/{H}.NARINFO", true);
        check("{H}x", false);
        check("e000000000000000000000000000000u", false);
    }

    #[track_caller]
    fn check_match(asked: &str, base_name: &str, expected: Option<Place>) {
        let search = Search::new(asked, "/nix/store");
        let base_name = format!("zs83x50c7jbs0hj70ivx7ykckxh2zzl5-{base_name}");
        let found = search.match_of(&base_name).map(|found| found.place);
        assert_eq!(found, expected, "{asked}");
    }

    #[test]
    fn names_and_starts_of_hashes_match() {
        check_match("curl-8.11", "curl-8.11", Some(Place::WholeName));
        check_match(" CURL ", "curl-8.11", Some(Place::StartOfName));
        check_match("8.11", "Curl-8.11", Some(Place::PartOfName));
        check_match("zs83", "curl", Some(Place::StartOfHash));
        check_match("ZS83x50", "curl", Some(Place::StartOfHash));
        check_match("/nix/store/zs83x", "curl", Some(Place::StartOfHash));
        check_match("zs8", "curl", None);
        check_match("s83x", "curl", None);
        check_match("wget", "curl", None);
        check_match("5-curl", "curl", None);
        check_match("curl 8", "curl-8.11", Some(Place::StartOfName));
        check_match("8 curl", "curl-8.11", Some(Place::PartOfName));
        check_match("zs83 curl", "libcurl", Some(Place::StartOfHash));
        check_match("curl  wget", "curl-8.11", None);
    }

    #[test]
    fn numbers_in_names_are_compared_as_numbers() {
        let sorted = [
            "lib", "lib-3-4", "lib-03-5", "lib-3-10", "lib-31-5", "Lib-31-6", "lib-a", "libx-1",
        ];
        for pair in sorted.windows(2) {
            let [one, two] = [pair[0], pair[1]].map(|name| NaturalName(name.to_owned()));
            assert_eq!(one.cmp(&two), Ordering::Less, "{pair:?}");
            assert_eq!(two.cmp(&one), Ordering::Greater, "{pair:?}");
        }
        let [one, two] = ["a01", "a1"].map(|name| NaturalName(name.to_owned()));
        assert_ne!(one.cmp(&two), Ordering::Equal);
    }

    /// Hidden paths change neither the results nor the statement that there are more.
    #[test]
    fn hidden_paths_do_not_count() {
        let path = |number: usize| {
            let name = format!("{number:032}-x{}", number % 2);
            StorePath::from_base_name(&name.replace(['e', 'o', 't', 'u'], "a")).unwrap()
        };
        let best = Match {
            is_derivation: false,
            place: Place::PartOfName,
        };
        let key = |age: i64, number: usize| Key {
            found: best,
            name: NaturalName("x".to_owned()),
            age: Reverse(age),
            path: path(number),
        };
        let mut found = Found::default();
        let is_shown = |path: &StorePath| Ok(path.name() == "x1");
        for number in 0..13 {
            found.add(key(number as i64, number), 6, is_shown).unwrap();
        }
        assert_eq!(found.best.len(), 6);
        found.add(key(0, 15), 6, is_shown).unwrap();
        found.add(key(0, 17), 6, is_shown).unwrap();
        assert_eq!(found.best.len(), 7);
    }
}
