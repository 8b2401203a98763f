//! Checks of the bucket and the database server of a storage.

use samovar_bucket::{Bucket, BucketError, Outcome, Right};
use samovar_storage::nodes::NodeState;
use samovar_storage::{DatabaseServer, Location};

use super::Findings;

const BUCKET: &str = "bucket";

const DATABASE: &str = "database";

const NODES: &str = "nodes";

/// Difference of clocks above which there is a warning, in seconds.
const CLOCK_TOLERANCE_S: i64 = 60;

/// Tries what the server needs to be permitted in its bucket.
pub(super) fn bucket(location: &Location, findings: &mut Findings) {
    let Some(place) = location.bucket() else {
        return;
    };
    let bucket = match Bucket::open(&place.settings) {
        Ok(bucket) => bucket,
        Err(error) => return refused(&error, findings),
    };
    let mut good = Vec::new();
    for finding in bucket.try_rights() {
        let right = name(finding.right);
        match finding.outcome {
            Outcome::Good => good.push(right),
            Outcome::Remark(text) => remark(finding.right, &text, findings),
            Outcome::Bad(error) => refused(&error, findings),
            _ => {}
        }
    }
    if !good.is_empty() {
        findings.ok(BUCKET, format!("{place}: tried {}", good.join(", ")));
    }
}

/// Returns the words for what was tried.
fn name(right: Right) -> &'static str {
    match right {
        Right::Put => "writing",
        Right::Get => "reading",
        Right::Range => "reading ranges",
        Right::Head => "asking for lengths",
        Right::List => "listing",
        Right::Multipart => "writing in parts",
        Right::Conditional => "writing if absent",
        Right::Delete => "deleting",
        Right::Clock => "the clock",
        Right::Lifecycle => "lifecycle rules",
        _ => "more",
    }
}

fn remark(right: Right, text: &str, findings: &mut Findings) {
    let (fault, fix) = text.split_once("; ").unwrap_or((text, "none needed"));
    match right {
        // Nothing depends on these.
        Right::Conditional | Right::List => findings.ok(BUCKET, text.to_owned()),
        _ => findings.warning(BUCKET, fault.to_owned(), fix.to_owned()),
    }
}

fn refused(error: &BucketError, findings: &mut Findings) {
    let text = error.to_string();
    let (fault, fix) = text.rsplit_once(": ").unwrap_or((
        &text,
        "check bucket.url, bucket.credentials-file and the network",
    ));
    findings.error(BUCKET, fault.to_owned(), fix.to_owned());
}

/// Reports which nodes share the database, and which of them have no lease.
pub(super) fn nodes(nodes: &[NodeState], findings: &mut Findings) {
    let with_lease = nodes.iter().filter(|node| node.has_lease);
    let names: Vec<&str> = with_lease.map(|node| &*node.name).collect();
    if !names.is_empty() {
        findings.ok(NODES, format!("with a lease: {}", names.join(", ")));
    }
    for node in nodes.iter().filter(|node| !node.has_lease) {
        let host = node.host.as_deref().unwrap_or("an unknown machine");
        findings.warning(
            NODES,
            format!(
                "{:?} on {host} has no lease: it has ended without leaving, hangs, or does not \
                 reach the database",
                node.name
            ),
            "start it again or let it reach the database; it is listed for a day",
        );
    }
    let is_twice = |pair: &&[&str]| pair.first() == pair.last();
    for pair in names.windows(2).filter(is_twice) {
        findings.warning(
            NODES,
            format!("two nodes have the name {:?}", pair.first().unwrap_or(&"")),
            "set node.name to another name on one of them",
        );
    }
}

/// Reports that the bucket is not that of the database. `fault` has what to do after a semicolon.
pub(super) fn wrong_bucket(fault: &str, findings: &mut Findings) {
    let (fault, fix) = fault
        .split_once("; ")
        .unwrap_or((fault, "correct bucket.url or database.url"));
    findings.error(BUCKET, fault.to_owned(), fix.to_owned());
}

/// Reports what a database server says about itself.
pub(super) fn database(location: &Location, server: &DatabaseServer, findings: &mut Findings) {
    let DatabaseServer {
        version,
        clock_ahead_s,
        standby_count,
        synchronous_standbys,
        synchronous_commit,
    } = server;
    let place = location.database().map(ToString::to_string);
    let place = place.unwrap_or_default();
    findings.ok(
        DATABASE,
        format!("PostgreSQL {version} at {place} accepts writes"),
    );
    if clock_ahead_s.abs() > CLOCK_TOLERANCE_S {
        let way = if *clock_ahead_s < 0 {
            "behind"
        } else {
            "ahead of"
        };
        findings.warning(
            DATABASE,
            format!(
                "its clock is {} s {way} that of this machine",
                clock_ahead_s.abs()
            ),
            "let NTP keep both clocks: timedatectl set-ntp true",
        );
    }
    let waits =
        !synchronous_standbys.is_empty() && !matches!(&**synchronous_commit, "off" | "local");
    match (standby_count, waits) {
        (_, true) => findings.ok(
            DATABASE,
            format!(
                "commits wait for standbys ({synchronous_standbys}, synchronous_commit = \
                 {synchronous_commit}): a failover loses nothing"
            ),
        ),
        (0, false) => findings.ok(DATABASE, "it has no standby that this user sees"),
        (_, false) => findings.warning(
            DATABASE,
            "commits do not wait for a standby: a failover can lose acknowledged uploads",
            "set synchronous_standby_names, and synchronous_commit = on, in PostgreSQL",
        ),
    }
}
