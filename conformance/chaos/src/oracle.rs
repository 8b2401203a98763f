//! Oracle: decides whether a response can be correct.
//!
//! A response is correct if its content was true at some moment between the first byte of the
//! request and the last byte of the response. A failure (503, a broken connection) is correct if a
//! cause of it existed in that time, or shortly before.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::ask::{Ask, End, LOG_TEXT, Outcome, What};
use crate::client::connection::NARROW;
use crate::content::Version;
use crate::timeline::Moment;
use crate::world::{ANSWER_TIME, Cause, Facts, World, seconds};

/// Causes that excuse a 503.
const UNAVAILABLE: [Cause; 4] = [
    Cause::Unreadable,
    Cause::Replaced,
    Cause::FewDescriptors,
    Cause::Slowed,
];
const GONE: [Cause; 2] = [Cause::Down, Cause::Stopping];
/// Time after TERM in which responses may continue, less a margin for a loaded machine.
const STOP_TIME: Moment = 8_000_000;

/// Maximum length of NARs whose hash the server verifies on every request (COMPAT.md). Longer ones
/// are verified on the first request, and again after their root was replaced.
const CHECKED_LEN: usize = 64 * 1024;

/// Minimum length of NARs whose registration the server must check again before it sends the last
/// bytes. Their files bypass the NAR cache, and half of such a NAR exceeds the socket buffers
/// (usually 4 MB on the sending side).
const LONG_LEN: usize = 12_000_000;

type Judgement = Result<(), String>;

/// Judges and counts a response; reports a finding if it is wrong.
pub(crate) fn check(world: &World, ask: &Ask, outcome: &Outcome) {
    check_pipelined(world, ask, &[], outcome);
}

/// Judges and counts a response as [`check`] does. `later`: the requests sent after this one on the
/// same connection. If the response to one of them fails, the server resets the connection, which
/// discards all bytes that the client has not received, those of this response too.
pub(crate) fn check_pipelined(world: &World, ask: &Ask, later: &[Ask], outcome: &Outcome) {
    let kind = ask.kind();
    let how = match &outcome.end {
        End::Whole | End::Left => outcome.status.to_string(),
        End::Cut(_) => format!("{} cut", outcome.status),
        End::Silent(_) => "none".to_owned(),
    };
    world.count(&format!("{kind} {how}"));
    world.count(&format!("by {}", outcome.via));
    if let Err(wrong) = judge(world, ask, later, outcome) {
        let text = String::from_utf8_lossy(&outcome.body[..outcome.body.len().min(300)]);
        world.finding(format_args!(
            "{wrong}{}\n  request: {} {} {:?} by {}\n  answer: {how} {:?}, {} bytes, {:?}\n  \
             times: sent {:.6}, head {:.6}, end {:.6}\n  body: {text:?}",
            ask.facts().map(Facts::history).unwrap_or_default(),
            ask.method(),
            ask.target(),
            ask.fields(),
            outcome.via,
            outcome.fields,
            outcome.body.len(),
            outcome.end,
            seconds(outcome.sent),
            seconds(outcome.head_at),
            seconds(outcome.end_at),
        ));
    }
}

// Long: the rules of the oracle, to be read from top to bottom.
fn judge(world: &World, ask: &Ask, later: &[Ask], outcome: &Outcome) -> Judgement {
    let (from, until) = (outcome.sent, outcome.end_at);
    let had = |causes: &[Cause]| world.had(causes, from, until);
    let may_fail =
        |ask: &Ask| excuses(ask, from, until) || members_changed(ask, world, from, until);
    let was_discarded = || later.iter().any(may_fail);
    if let End::Silent(how) = &outcome.end {
        // RFC 9112, 9.3.1: a request on an idle connection may be lost because the server closes it
        // at the same time. On a new connection this cannot happen.
        let was_idle = had(&[Cause::Upgrading]) && outcome.via != "connect";
        return need(
            had(&GONE) || had(&[Cause::FewDescriptors]) || was_idle || was_discarded(),
            &format!("no response without a cause: {how}"),
        );
    }
    let time = u64::try_from(ANSWER_TIME.as_micros()).unwrap_or(Moment::MAX);
    let delays = [
        Cause::Halted,
        Cause::Unreadable,
        Cause::FewDescriptors,
        Cause::Slowed,
    ];
    if outcome.head_at - outcome.sent > time && !had(&delays) && !had(&GONE) {
        return Err("the response took too long".to_owned());
    }
    if outcome.status == 503 {
        need(
            outcome.field("retry-after") == Some("1"),
            "503 without Retry-After",
        )?;
        let is_excused = had(&UNAVAILABLE) || may_fail(ask) || world.may_be_unsure();
        return need(is_excused, "503 without a cause");
    }
    if let End::Cut(how) = &outcome.end {
        let after_term = world.had(&[Cause::Stopping], from.saturating_sub(STOP_TIME), until);
        let is_late = outcome.is_slow || until - outcome.sent > STOP_TIME;
        let is_excused = had(&[Cause::Down])
            || had(&UNAVAILABLE)
            || world.may_be_unsure()
            || (after_term && is_late)
            || may_fail(ask)
            || was_discarded();
        need(is_excused, &format!("cut without a cause: {how}"))?;
    }
    let is_whole = outcome.end == End::Whole && !ask.is_head;
    match (&ask.what, outcome.status) {
        (What::Info, 200) => fixed(
            outcome,
            is_whole,
            "StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 30\n",
        ),
        (What::Log, 200) => fixed(outcome, is_whole, LOG_TEXT),
        (What::Nowhere, 404) => fixed(outcome, is_whole, "File not found.\n"),
        (What::Narinfo(facts), 200) => {
            if is_whole {
                narinfo(world, facts, &outcome.body, from, outcome.end_at)
            } else {
                need(
                    some(facts, from, until).next().is_some(),
                    "200 for a path that was not registered",
                )
            }
        }
        (What::Nar(facts, hash), 200) => whole_nar(world, facts, hash.as_deref(), ask, outcome),
        (What::Nar(facts, hash), 206) => part(facts, hash.as_deref(), ask, outcome),
        (What::Nar(facts, _), 416) => {
            let first = ask.range.map_or(0, |(first, _)| first);
            let beyond = some(facts, from, until).any(|version| first >= version.nar.len() as u64);
            need(beyond, "416 for a satisfiable range")
        }
        (What::Listing(facts), 200) => listing(facts, outcome, is_whole),
        (What::Closure(facts), 200) if is_whole => closure(world, facts, outcome),
        (What::Narinfos(paths), 200) if is_whole => narinfos(world, paths, outcome),
        (What::Closure(_) | What::Narinfos(_), 200) => Ok(()),
        (What::Nar(facts, hash), 404) => {
            let other = |hash: &str| some(facts, from, until).any(|one| one.nar_hash != hash);
            let is_other = hash.as_deref().is_some_and(other);
            match text(outcome) {
                "Incorrect NAR hash. Maybe the path has been recreated.\n" => {
                    need(is_other, "the only registered NAR hash was refused")
                }
                // A response to HEAD has no body, so the two kinds of 404 cannot be told apart.
                "" if ask.is_head && is_other => Ok(()),
                _ => absent(facts, outcome, is_whole),
            }
        }
        (What::Narinfo(facts) | What::Listing(facts) | What::Closure(facts), 404) => {
            absent(facts, outcome, is_whole)
        }
        (_, status) => Err(format!("status {status} is never correct for this URL")),
    }
}

fn need(holds: bool, otherwise: &str) -> Judgement {
    match holds {
        true => Ok(()),
        false => Err(otherwise.to_owned()),
    }
}

/// Returns whether the requested path excuses a failure: it was damaged, or its registration
/// changed.
fn excuses(ask: &Ask, from: Moment, until: Moment) -> bool {
    let (What::Narinfo(facts) | What::Nar(facts, _) | What::Listing(facts)) = &ask.what else {
        return false;
    };
    facts.is_damaged(from, until) || facts.change_count(from, until) > 0
}

/// Returns whether a path in the requested closure was damaged or may have changed, which breaks
/// the response.
fn members_changed(ask: &Ask, world: &World, from: Moment, until: Moment) -> bool {
    let What::Closure(facts) = &ask.what else {
        return false;
    };
    let members = members(world, facts, from, until);
    members.iter().any(|path| {
        let facts = world.facts(&path["/nix/store/".len()..][..32]);
        facts.is_some_and(|facts| {
            facts.change_count(from, until) > 0 || facts.is_damaged(from, until)
        })
    })
}

/// Returns the versions that may have been registered in an interval.
fn some(facts: &Facts, from: Moment, until: Moment) -> impl Iterator<Item = Arc<Version>> {
    facts.possible(from, until).into_iter().flatten()
}

fn text(outcome: &Outcome) -> &str {
    std::str::from_utf8(&outcome.body).unwrap_or_default()
}

fn fixed(outcome: &Outcome, is_whole: bool, expected: &str) -> Judgement {
    need(
        !is_whole || text(outcome) == expected,
        "not the body expected for this URL",
    )
}

/// Judges a 404, which clients cache for an hour: the path must have been absent at some moment.
fn absent(facts: &Facts, outcome: &Outcome, is_whole: bool) -> Judgement {
    let (from, until) = (outcome.sent, outcome.end_at);
    let is_possible = facts.possible(from, until).iter().any(Option::is_none);
    need(
        is_possible || facts.is_damaged(from, until),
        "404 for a path that was valid all the time",
    )?;
    if facts.is_damaged(from, until) {
        return Ok(());
    }
    fixed(outcome, is_whole, "No such path.\n")
}

/// Renders a narinfo without its signature.
fn unsigned(facts: &Facts, version: &Version) -> String {
    let (part, hash) = (facts.hash_part(), &version.nar_hash);
    let mut text = format!(
        "StorePath: {}\nURL: nar/{part}-{hash}.nar\nCompression: none\nNarHash: sha256:{hash}\n\
         NarSize: {}\n",
        facts.store_path,
        version.nar.len()
    );
    if !version.references.is_empty() {
        let names = version.references.iter();
        let names: Vec<&str> = names.map(|path| &path["/nix/store/".len()..]).collect();
        text.push_str(&format!("References: {}\n", names.join(" ")));
    }
    text
}

fn narinfo(world: &World, facts: &Facts, body: &[u8], from: Moment, until: Moment) -> Judgement {
    let body = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    let Some((facts_said, _)) = body.split_once("Sig: ") else {
        return Err("a narinfo without a signature".to_owned());
    };
    let version = some(facts, from, until).find(|one| unsigned(facts, one) == facts_said);
    let Some(version) = version else {
        return Err("a narinfo of content that was not registered at that time".to_owned());
    };
    let fingerprint = format!(
        "1;{};sha256:{};{};{}",
        facts.store_path,
        version.nar_hash,
        version.nar.len(),
        version.references.join(",")
    );
    let is_signed = world.is_signed(body, &fingerprint, (from, until));
    need(is_signed, "a signature of a key that was not in use")
}

/// Returns the versions that a NAR response may have, restricted to the hash in the URL if there is
/// one.
fn candidates(facts: &Facts, hash: Option<&str>, outcome: &Outcome) -> Vec<Arc<Version>> {
    some(facts, outcome.sent, outcome.end_at)
        .filter(|version| hash.is_none_or(|hash| hash == version.nar_hash))
        .collect()
}

fn whole_nar(
    world: &World,
    facts: &Facts,
    hash: Option<&str>,
    ask: &Ask,
    outcome: &Outcome,
) -> Judgement {
    let versions = candidates(facts, hash, outcome);
    need(
        !versions.is_empty(),
        "a NAR of content that was not registered",
    )?;
    if let Some(len) = outcome.field("content-length") {
        let is_right = versions.iter().any(|one| one.nar.len().to_string() == len);
        need(is_right, "a NAR of another length than registered")?;
    }
    if ask.is_head || outcome.end != End::Whole {
        return Ok(());
    }
    let version = versions.iter().find(|one| one.nar == outcome.body);
    let is_right = version.is_some();
    if let (Some(version), Some(half_at)) = (version, outcome.half_at)
        && version.nar.len() >= LONG_LEN
        && outcome.via == NARROW
    {
        // The last bytes cannot have been sent before the client had read half of the body.
        let mut still = some(facts, half_at, outcome.end_at);
        let is_still = still.any(|one| one == *version)
            // If the store was unavailable, the server could not check the registration again, and
            // need not abort.
            || world.had(&UNAVAILABLE, half_at, outcome.end_at);
        need(
            is_still,
            "a long NAR of content that was no longer registered",
        )?;
    }
    let is_unchecked = outcome.body.len() > CHECKED_LEN;
    need(
        is_right || (is_unchecked && facts.is_hidden(outcome.sent, outcome.end_at)),
        "a whole NAR of other bytes than registered",
    )
}

fn part(facts: &Facts, hash: Option<&str>, ask: &Ask, outcome: &Outcome) -> Judgement {
    let versions = candidates(facts, hash, outcome);
    let Some((first, end)) = ask.range else {
        return Err("206 without a range".to_owned());
    };
    let said = outcome.field("content-range").unwrap_or_default();
    let is_right = versions.iter().any(|version| {
        let len = version.nar.len() as u64;
        let end = end.unwrap_or(len).min(len);
        let slice = version.nar.get(first as usize..end as usize);
        said == format!("bytes {first}-{}/{len}", end - 1)
            && (outcome.end != End::Whole
                || slice == Some(&*outcome.body)
                // A client that resumes a download verifies the hash of the whole NAR itself, so
                // damaged bytes are allowed here.
                || facts.is_wrong(outcome.sent, outcome.end_at))
    });
    need(is_right, "a range of other bytes than registered")
}

fn listing(facts: &Facts, outcome: &Outcome, is_whole: bool) -> Judgement {
    let mut versions = some(facts, outcome.sent, outcome.end_at).peekable();
    need(
        versions.peek().is_some(),
        "a listing of a path that was not registered",
    )?;
    if !is_whole {
        return Ok(());
    }
    let said: Value = serde_json::from_slice(&outcome.body).map_err(|error| error.to_string())?;
    // The server makes a listing from the plan of the NAR. It may have read the sizes while a file
    // was longer or shorter within its padding, and the file may have been repaired in place.
    let was_hidden = facts.is_hidden(0, outcome.end_at);
    let is_right = versions.any(|version| {
        version.listing == said || was_hidden && padded(&version.listing) == padded(&said)
    });
    need(
        is_right || facts.is_damaged(outcome.sent, outcome.end_at),
        "a listing of another tree",
    )
}

/// Returns a listing whose sizes are rounded up to multiples of eight, like the contents in a NAR.
fn padded(listing: &Value) -> Value {
    match listing {
        Value::Object(fields) => {
            let pad = |(name, value): (&String, &Value)| {
                let value = match value.as_u64().filter(|_| name == "size") {
                    Some(size) => size.next_multiple_of(8).into(),
                    None => padded(value),
                };
                (name.clone(), value)
            };
            Value::Object(fields.iter().map(pad).collect())
        }
        other => other.clone(),
    }
}

/// One record of a bulk response.
struct Record<'a> {
    hash_part: &'a str,
    said: Said<'a>,
}

#[derive(PartialEq)]
enum Said<'a> {
    Narinfo(&'a [u8]),
    Absent,
    /// A `failed` record: the server suspects damage but has not confirmed it.
    Failed,
}

/// Parses a bulk response in the format of docs/bulk-queries.md.
fn records(body: &[u8]) -> Result<Vec<Record<'_>>, String> {
    let mut rest = body;
    let first = words(&mut rest)?;
    let ["narinfos", "1", count] = first[..] else {
        return Err(format!("not a first line: {first:?}"));
    };
    let count: usize = count.parse().map_err(|_error| "no count".to_owned())?;
    let mut records = Vec::new();
    loop {
        let line = words(&mut rest)?;
        match line[..] {
            ["path", hash_part, len] => {
                let len: usize = len.parse().map_err(|_error| "no length".to_owned())?;
                let narinfo = rest.get(..len).ok_or("a record is cut")?;
                rest = &rest[len..];
                records.push(Record {
                    hash_part,
                    said: Said::Narinfo(narinfo),
                });
            }
            ["absent", hash_part] => records.push(Record {
                hash_part,
                said: Said::Absent,
            }),
            ["failed", hash_part] => records.push(Record {
                hash_part,
                said: Said::Failed,
            }),
            ["end", found, absent, failed] => {
                let of = |said: Said<'_>| {
                    let some = records.iter().filter(|record| record.said == said);
                    some.count().to_string()
                };
                let without = (of(Said::Absent), of(Said::Failed));
                let is_right = rest.is_empty()
                    && records.len() == count
                    && (without.0.as_str(), without.1.as_str()) == (absent, failed)
                    && [found, absent, failed]
                        .iter()
                        .try_fold(0, |sum, number| Some(sum + number.parse::<usize>().ok()?))
                        == Some(count);
                return match is_right {
                    true => Ok(records),
                    false => Err(format!("the end line does not add up: {line:?}")),
                };
            }
            _ => return Err(format!("a record of no known kind: {line:?}")),
        }
    }
}

/// Removes a line from the start of `bytes` and returns its words.
fn words<'a>(bytes: &mut &'a [u8]) -> Result<Vec<&'a str>, String> {
    let at = bytes.iter().position(|byte| *byte == b'\n');
    let (line, rest) = bytes.split_at(at.ok_or("a line without an end")?);
    *bytes = &rest[1..];
    let line = std::str::from_utf8(line).map_err(|error| error.to_string())?;
    Ok(line.split(' ').collect())
}

fn narinfos(world: &World, asked: &[Arc<Facts>], outcome: &Outcome) -> Judgement {
    let records = records(&outcome.body)?;
    need(
        records.len() == asked.len(),
        "another number of records than requested",
    )?;
    for (record, facts) in records.iter().zip(asked) {
        need(
            record.hash_part == facts.hash_part(),
            "records in another order than requested",
        )?;
        let judged = match record.said {
            Said::Narinfo(text) => narinfo(world, facts, text, outcome.sent, outcome.end_at),
            Said::Absent => absent(facts, outcome, false),
            Said::Failed => need(
                facts.is_damaged(outcome.sent, outcome.end_at),
                "a record `failed` for an undamaged path",
            ),
        };
        judged.map_err(|wrong| wrong + &facts.history())?;
    }
    Ok(())
}

/// Returns the union of all closures that the path may have had in the interval.
fn members(world: &World, facts: &Facts, from: Moment, until: Moment) -> BTreeSet<String> {
    let mut found = BTreeSet::from([facts.store_path.clone()]);
    let mut open: Vec<Arc<Version>> = some(facts, from, until).collect();
    while let Some(version) = open.pop() {
        for path in &version.references {
            if found.insert(path.clone())
                && let Some(facts) = world.facts(&path["/nix/store/".len()..][..32])
            {
                open.extend(some(&facts, from, until));
            }
        }
    }
    found
}

fn closure(world: &World, asked: &Facts, outcome: &Outcome) -> Judgement {
    let records = records(&outcome.body)?;
    let (from, until) = (outcome.sent, outcome.end_at);
    let mut seen = BTreeSet::new();
    for record in &records {
        let facts = world.facts(record.hash_part);
        let facts = facts.ok_or("a member that is not a path of the store")?;
        let judged = match record.said {
            Said::Narinfo(text) => narinfo(world, &facts, text, from, until),
            Said::Failed if facts.is_damaged(from, until) => Ok(()),
            _ => Err("a member that is absent".to_owned()),
        };
        judged.map_err(|wrong| wrong + &facts.history())?;
        let has_all = some(&facts, from, until).any(|version| {
            let mut references = version.references.iter();
            references.all(|path| seen.contains(path) || *path == facts.store_path)
        });
        need(has_all, "a member before its references")?;
        seen.insert(facts.store_path.clone());
    }
    need(
        seen == members(world, asked, from, until) && records.len() == seen.len(),
        "not the members of the closure",
    )?;
    let last = records.last().map(|record| record.hash_part);
    need(
        last == Some(asked.hash_part()),
        "the requested path is not the last record",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn listings_that_differ_within_the_padding_are_equal_after_padding() {
        let of = |size: u64, at: u64| {
            json!({"version": 1, "root": {"type": "directory", "entries": {
                "size": {"type": "regular", "size": size, "narOffset": at},
            }}})
        };
        assert_eq!(padded(&of(4041, 232)), padded(&of(4048, 232)));
        assert_ne!(padded(&of(4040, 232)), padded(&of(4041, 232)));
        assert_ne!(padded(&of(4041, 232)), padded(&of(4041, 233)));
    }
}
