//! What the credentials may do, and what the engine can do, found out by trying it.
//!
//! Everything is done below `.samovar/probe/` and a random name, and is deleted again.

use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::sync::Arc;

use rusty_s3::Method;

use crate::error::{BucketError, Fault};
use crate::put::PutOptions;
use crate::stat::head;
use crate::wire::{Request, Wire};
use crate::xml::{element, elements};
use crate::{delete, download, list, multipart, put};

/// A right of the credentials, or a property of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Right {
    /// Writing objects (`s3:PutObject`).
    Put,
    /// Reading objects (`s3:GetObject`).
    Get,
    /// Reading ranges of objects.
    Range,
    /// Asking for the length of objects, and learning that one is absent (`s3:ListBucket`).
    Head,
    /// Listing objects (`s3:ListBucket`).
    List,
    /// Writing objects in parts, and removing parts (`s3:AbortMultipartUpload`).
    Multipart,
    /// Refusing to replace an object (`If-None-Match: *`). Nothing depends on it.
    Conditional,
    /// Deleting objects (`s3:DeleteObject`).
    Delete,
    /// A clock that agrees with the engine's.
    Clock,
    /// No rule of the bucket that deletes or moves objects below the prefix.
    Lifecycle,
}

/// What came out when a right was tried.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// It is as it should be.
    Good,
    /// It works, and the operator should know this sentence.
    Remark(String),
    /// It is missing, or does not work.
    Bad(BucketError),
}

/// A right, and what came out when it was tried.
#[derive(Debug)]
#[non_exhaustive]
pub struct RightFinding {
    /// Which right.
    pub right: Right,
    /// What came out.
    pub outcome: Outcome,
}

/// Difference of clocks from which on there is a remark, in seconds. Engines refuse 900.
const SKEW_REMARK_S: i64 = 60;

const CONTENT: &[u8] = b"samovar tries what it may do in this bucket";

pub(crate) fn try_all(wire: &Arc<Wire>) -> Vec<RightFinding> {
    let probe = Probe::new(wire);
    let mut findings = vec![finding(Right::Put, probe.put())];
    // Without an object there is nothing more to be tried.
    let is_written = matches!(findings[0].outcome, Outcome::Good);
    if is_written {
        findings.push(finding(Right::Get, probe.get()));
        findings.push(finding(Right::Range, probe.range()));
        findings.push(finding(Right::Head, probe.head()));
        findings.push(finding(Right::List, probe.list()));
        findings.push(finding(Right::Multipart, probe.multipart()));
        findings.push(finding(Right::Conditional, probe.conditional()));
        findings.push(finding(Right::Clock, probe.clock()));
        findings.push(finding(Right::Delete, probe.delete()));
    }
    findings.push(finding(Right::Lifecycle, probe.lifecycle()));
    findings
}

fn finding(right: Right, tried: Result<Outcome, BucketError>) -> RightFinding {
    let outcome = tried.unwrap_or_else(Outcome::Bad);
    RightFinding { right, outcome }
}

/// The objects that are written and deleted again.
struct Probe<'p> {
    wire: &'p Arc<Wire>,
    small: String,
    large: String,
}

impl<'p> Probe<'p> {
    fn new(wire: &'p Arc<Wire>) -> Self {
        let name = fastrand::u64(..);
        Self {
            wire,
            small: format!(".samovar/probe/{name:016x}"),
            large: format!(".samovar/probe/{name:016x}-parts"),
        }
    }

    fn put(&self) -> Result<Outcome, BucketError> {
        put::bytes(self.wire, &self.small, CONTENT, &PutOptions::default())?;
        Ok(Outcome::Good)
    }

    fn get(&self) -> Result<Outcome, BucketError> {
        self.read(None, CONTENT)
    }

    fn range(&self) -> Result<Outcome, BucketError> {
        self.read(Some(8..13), &CONTENT[8..13])
    }

    fn read(
        &self,
        range: Option<std::ops::Range<u64>>,
        expected: &[u8],
    ) -> Result<Outcome, BucketError> {
        let download = download::begin(self.wire, &self.small, range)?;
        let mut download = download.ok_or_else(|| self.wrong("the object is absent"))?;
        let mut bytes = Vec::new();
        let read = download.read_to_end(&mut bytes);
        read.map_err(|error| self.failed(Fault::Unreachable(error)))?;
        if bytes == expected {
            Ok(Outcome::Good)
        } else {
            Err(self.wrong("other bytes were read than written"))
        }
    }

    fn head(&self) -> Result<Outcome, BucketError> {
        let stat = head(self.wire, &self.wire.whole(&self.small)?)?;
        let stat = stat.ok_or_else(|| self.wrong("the object is absent"))?;
        if usize::try_from(stat.len) != Ok(CONTENT.len()) {
            return Err(self.wrong("it has another length"));
        }
        let absent = self.wire.whole(&format!("{}-absent", self.small))?;
        match head(self.wire, &absent) {
            Ok(None) => Ok(Outcome::Good),
            Ok(Some(_)) => Err(self.wrong("an object is there that was never written")),
            Err(error) => Err(error),
        }
    }

    fn list(&self) -> Result<Outcome, BucketError> {
        let mut is_listed = false;
        list::list(self.wire, &self.small, &mut |entry| {
            is_listed = entry.key == self.small;
            if is_listed {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if is_listed {
            return Ok(Outcome::Good);
        }
        Ok(Outcome::Remark(
            "a new object is not listed at once; nothing depends on it".to_owned(),
        ))
    }

    fn multipart(&self) -> Result<Outcome, BucketError> {
        let len = multipart::WHOLE_LEN_MAX + 1;
        let unwritten = |error| self.failed(Fault::File(error));
        let file = tempfile(len).map_err(unwritten)?;
        multipart::put(self.wire, &self.large, &file, len, &PutOptions::default())?;
        let stat = head(self.wire, &self.wire.whole(&self.large)?)?;
        if stat.is_none_or(|stat| stat.len != len) {
            return Err(self.wrong("it has another length"));
        }
        Ok(Outcome::Good)
    }

    fn conditional(&self) -> Result<Outcome, BucketError> {
        let put = PutOptions {
            if_absent: true,
            ..PutOptions::default()
        };
        match put::bytes(self.wire, &self.small, b"another", &put) {
            Err(error) if error.is_taken() => Ok(Outcome::Good),
            Ok(()) => Ok(Outcome::Remark(
                "the engine ignores If-None-Match; nothing depends on it".to_owned(),
            )),
            Err(error) => Err(error),
        }
    }

    fn clock(&self) -> Result<Outcome, BucketError> {
        let request = Request::object(Method::Head, &self.wire.whole(&self.small)?);
        let answer = self.wire.send(&request)?;
        let date = answer.date();
        answer.finish();
        let Some(date) = date else {
            return Ok(Outcome::Remark(
                "the engine does not say its time".to_owned(),
            ));
        };
        let skew_s = date - crate::clock::unix_now_s();
        if skew_s.abs() < SKEW_REMARK_S {
            return Ok(Outcome::Good);
        }
        let way = if skew_s < 0 { "ahead of" } else { "behind" };
        Ok(Outcome::Remark(format!(
            "the clock of this machine is {} s {way} the engine's: requests are signed with the \
             engine's time, but temporary credentials may expire early; synchronise the clock",
            skew_s.abs()
        )))
    }

    fn delete(&self) -> Result<Outcome, BucketError> {
        delete::delete(self.wire, &[&self.small])?;
        delete::delete(self.wire, &[&self.small, &self.large])?;
        if head(self.wire, &self.wire.whole(&self.large)?)?.is_some() {
            return Err(self.wrong("the object is still there"));
        }
        Ok(Outcome::Good)
    }

    /// Looks for rules that delete or move objects below the prefix.
    fn lifecycle(&self) -> Result<Outcome, BucketError> {
        let request = Request::bucket(Method::Get).query("lifecycle", "");
        let text = match self.wire.send_within(&request, 2) {
            Ok(answer) => answer.text().map_err(|fault| self.failed(fault))?,
            Err(error) => return unknown_rules(error),
        };
        let harmful = elements(&text, "Rule")
            .into_iter()
            .filter(|rule| is_harmful(rule, self.wire.prefix()));
        let names: Vec<String> = harmful
            .map(|rule| element(rule, "ID").unwrap_or_else(|| "without a name".to_owned()))
            .collect();
        if names.is_empty() {
            return Ok(Outcome::Good);
        }
        Ok(Outcome::Remark(format!(
            "lifecycle rules of the bucket delete or move our objects: {}; exclude the prefix {:?} \
             from them",
            names.join(", "),
            self.wire.prefix()
        )))
    }

    fn failed(&self, fault: Fault) -> BucketError {
        self.wire.error(format!("trying {}", self.small), fault)
    }

    fn wrong(&self, what: &'static str) -> BucketError {
        self.failed(Fault::Damaged { what })
    }
}

/// Many engines have no rules, and credentials need not be allowed to read them.
fn unknown_rules(error: BucketError) -> Result<Outcome, BucketError> {
    match error.fault() {
        // No rules: Amazon's code is NoSuchLifecycleConfiguration. Engines without rules refuse the
        // request, or take it for another one.
        Fault::Refused { .. } | Fault::Unavailable { .. } | Fault::Answer { .. } => {
            Ok(Outcome::Good)
        }
        Fault::Denied { .. } => Ok(Outcome::Remark(
            "lifecycle rules of the bucket cannot be read (s3:GetLifecycleConfiguration): see that \
             none deletes or moves objects"
                .to_owned(),
        )),
        _ => Err(error),
    }
}

/// Whether a rule concerns objects below the prefix, and does more than removing unfinished
/// uploads.
fn is_harmful(rule: &str, prefix: &str) -> bool {
    let is_on = element(rule, "Status").is_none_or(|status| status == "Enabled");
    // The prefix of the rule is in its filter, or, in old rules, beside it.
    let its_prefix = element(rule, "Prefix").unwrap_or_default();
    let concerns_us = prefix.starts_with(&its_prefix) || its_prefix.starts_with(prefix);
    let deletes = rule.contains("<Expiration>") && !is_only_of_markers(rule);
    is_on && concerns_us && (deletes || rule.contains("<Transition>"))
}

/// Whether the expiry of a rule is that of deletion markers, which are no objects.
fn is_only_of_markers(rule: &str) -> bool {
    let has_time = rule.contains("<Days>") || rule.contains("<Date>");
    rule.contains("<ExpiredObjectDeleteMarker>") && !has_time
}

/// Returns a file without a name.
fn tempfile(len: u64) -> std::io::Result<std::fs::File> {
    let name = format!("samovar-probe-{:016x}", fastrand::u64(..));
    let path = std::env::temp_dir().join(name);
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    file.seek(SeekFrom::Start(len - 1))?;
    file.write_all(&[0])?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRES: &str = "<ID>old</ID><Filter><Prefix>cache/</Prefix></Filter>\
                           <Status>Enabled</Status><Expiration><Days>30</Days></Expiration>";

    #[test]
    fn a_rule_that_deletes_our_objects_is_harmful() {
        assert!(is_harmful(EXPIRES, "cache/"));
        assert!(is_harmful(EXPIRES, "cache/prod/"));
        assert!(is_harmful(EXPIRES, ""));
        assert!(!is_harmful(EXPIRES, "other/"));
        assert!(!is_harmful(
            &EXPIRES.replace("Enabled", "Disabled"),
            "cache/"
        ));
        let moves = "<Filter/><Status>Enabled</Status><Transition><Days>1</Days></Transition>";
        assert!(is_harmful(moves, "cache/"));
    }

    #[test]
    fn a_rule_for_unfinished_uploads_is_welcome() {
        let aborts = "<Prefix></Prefix><Status>Enabled</Status><AbortIncompleteMultipartUpload>\
                      <DaysAfterInitiation>7</DaysAfterInitiation>\
                      </AbortIncompleteMultipartUpload>";
        assert!(!is_harmful(aborts, ""));
        let markers = "<Status>Enabled</Status><Expiration><ExpiredObjectDeleteMarker>true\
                       </ExpiredObjectDeleteMarker></Expiration>";
        assert!(!is_harmful(markers, ""));
    }
}
