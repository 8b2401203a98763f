//! Checks of the storage for uploads.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use rustix::fs::{StatFs, statfs, statvfs};
use samovar_nix::StorePath;
use samovar_storage::check::fsck::Kind;
use samovar_storage::metadata::CacheSummary;
use samovar_storage::token::{Token, now};
use samovar_storage::{
    Foreign, Inspection, Location, RootKind, StorageError, has_room, inspect, inspect_remote,
    is_full,
};
use samovar_text::{counted, human};

use super::{Findings, tempfile_in};
use crate::config::Configuration;
use crate::server::unserved;

const SUBJECT: &str = "storage";

/// Maximum remaining time of a token, in seconds, at which its expiry is reported: 14 days.
const RENEWAL_TIME: i64 = 14 * 86_400;

/// Number of seconds by which a time in the database may be later than the clock.
const CLOCK_TOLERANCE: i64 = 60;

/// Number of free inodes below which a finding states them.
const FEW_INODES: u64 = 1000;

/// Maximum number of paths that a finding names.
const NAMED_COUNT_MAX: usize = 3;

/// Start of 2025, in seconds since 1970. A clock that shows an earlier time was never set.
const EARLIEST: i64 = 1_735_689_600;

/// Types of file systems, from `statfs(2)` and `linux/magic.h`.
const NETWORK: [(u32, &str); 7] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB 2"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x0102_1997, "9P"),
];
const FUSE: u32 = 0x6573_5546;
const TMPFS: u32 = 0x0102_1994;

/// Checks the storage directory with the rights of the server's user. Returns the newest uploaded
/// path of each cache, by the cache's name in the storage.
pub(super) fn examine(
    config: &Configuration,
    findings: &mut Findings,
) -> HashMap<String, StorePath> {
    let Some(directory) = &config.storage else {
        return HashMap::new();
    };
    clock(now(), None, findings);
    // A relative path ends at the working directory, not at the root.
    let directory = &std::path::absolute(directory).unwrap_or_else(|_| directory.clone());
    let existing = directory.ancestors().find(|path| path.exists());
    let existing = existing.unwrap_or(Path::new("/"));
    let is_usable = directory_is_usable(directory, existing, findings);
    space(directory, existing, findings);
    if !is_usable {
        return HashMap::new();
    }
    if let Ok(found) = statfs(existing) {
        file_system(directory, &found, findings);
    }
    match config.location() {
        Ok(Some(location)) if !location.is_directory() => {
            return remote(config, &location, findings);
        }
        Ok(_) => {}
        Err(error) => {
            let fix = "correct the configuration";
            findings.error(SUBJECT, error.to_string(), fix);
            return HashMap::new();
        }
    }
    // Without a database, a new storage is the only kind of directory that the server opens.
    let inspected = RootKind::of(directory).and_then(|kind| match kind {
        RootKind::Storage | RootKind::New => inspect(directory),
        RootKind::WithoutDatabase => Err(StorageError::DatabaseMissing),
        RootKind::BinaryCache => Err(StorageError::NotImported),
    });
    match inspected {
        Ok(None) => findings.warning(
            SUBJECT,
            format!("{directory:?} has no database yet; the server makes it"),
            format!(
                "none needed for a new storage; for uploads, make a token: samovar token create \
                 --storage {} --name NAME",
                directory.display()
            ),
        ),
        Ok(Some(found)) => {
            owners(directory, found.foreign.as_ref(), findings);
            database(directory, &found, findings);
            let named = format!("--storage {}", directory.display());
            caches(config, &named, found.caches, findings);
            return found.newest;
        }
        Err(error) => failed(directory, &error, findings),
    }
    HashMap::new()
}

/// Checks a storage in a bucket. Returns the newest uploaded path of each cache.
fn remote(
    config: &Configuration,
    location: &Location,
    findings: &mut Findings,
) -> HashMap<String, StorePath> {
    super::remote::bucket(location, findings);
    let found = match inspect_remote(location) {
        Ok(found) => found,
        Err(error) => {
            failed(location.directory(), &error, findings);
            return HashMap::new();
        }
    };
    if let Some(fault) = &found.bucket_fault {
        super::remote::wrong_bucket(fault, findings);
    }
    if let Some(server) = &found.server {
        super::remote::database(location, server, findings);
        super::remote::nodes(&found.nodes, findings);
    }
    let file = config.files.first();
    let named = file.map_or_else(String::new, |file| format!("--config {}", file.display()));
    tokens(&found.tokens, now(), &named, findings);
    caches(config, &named, found.caches, findings);
    found.newest
}

/// Checks that the server can create files in the storage directory. Returns whether it can.
fn directory_is_usable(directory: &Path, existing: &Path, findings: &mut Findings) -> bool {
    let shown = directory.display();
    let own = directory.join(".samovar");
    let tried = if directory.exists() {
        [directory, &own]
            .into_iter()
            .filter(|path| path.symlink_metadata().is_ok())
            .try_for_each(|path| tempfile_in(path).map_err(|error| (path, error)))
    } else {
        tempfile_in(existing).map_err(|error| (existing, error))
    };
    match tried {
        Ok(()) => {
            let text = match directory.exists() {
                true => format!("{shown} is writable"),
                false => format!("{shown} does not exist yet; the server can create it"),
            };
            findings.ok(SUBJECT, text);
            true
        }
        // The check of the space reports it.
        Err((_, error)) if is_full(&error) => false,
        Err((path, error)) => {
            findings.error(
                SUBJECT,
                format!("the server cannot write to {path:?}: {error}"),
                format!(
                    "mkdir -p {shown} && chown -R USER {shown}, with the server's user; under \
                     systemd, use a directory below the unit's StateDirectory"
                ),
            );
            false
        }
    }
}

fn file_system(directory: &Path, found: &StatFs, findings: &mut Findings) {
    // `f_type` is signed: the kernel may have extended the sign of a 32-bit value.
    let kind = u32::try_from(found.f_type & 0xffff_ffff).unwrap_or_default();
    if let Some((_, name)) = NETWORK.iter().find(|(magic, _)| *magic == kind) {
        findings.error(
            SUBJECT,
            format!(
                "{directory:?} is on a network file system ({name}), where the locks of SQLite are \
                 not reliable"
            ),
            "move the storage to a local disk while the server is stopped",
        );
    } else if kind == TMPFS {
        findings.warning(
            SUBJECT,
            format!("{directory:?} is in memory (tmpfs): a restart of the machine deletes uploads"),
            "move the storage to a disk while the server is stopped",
        );
    } else if kind == FUSE {
        findings.warning(
            SUBJECT,
            format!("{directory:?} is on a FUSE file system, which may lose acknowledged uploads"),
            "use a local file system, such as ext4, XFS, Btrfs or ZFS",
        );
    } else {
        findings.ok(SUBJECT, "it is on a local file system");
    }
}

fn space(directory: &Path, existing: &Path, findings: &mut Findings) {
    let Ok(disk) = statvfs(existing) else { return };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let all = disk.f_blocks.saturating_mul(disk.f_frsize);
    // Some file systems have no fixed number of inodes, and state 0.
    let inodes = Some(disk.f_favail).filter(|_| disk.f_files > 0);
    let few = inodes.filter(|inodes| *inodes < FEW_INODES);
    let few = few.map_or_else(String::new, |inodes| {
        format!(", and {}", counted(inodes, "inode"))
    });
    let text = format!("{} of {} are free{few}", human(free), human(all));
    if free == 0 || inodes == Some(0) || !has_room(existing) {
        findings.error(
            SUBJECT,
            format!("the disk of {directory:?} is full: {text}; uploads are refused"),
            "delete other files, or use a larger disk; samovar gc --now, with the configuration of \
             the server, deletes what nothing keeps; then set uploads.retention-size",
        );
    } else if free < all / 10 {
        findings.warning(
            SUBJECT,
            format!("the disk of {directory:?} is nearly full: {text}"),
            "set or lower uploads.retention or uploads.retention-size, or use a larger disk",
        );
    } else {
        findings.ok(SUBJECT, text);
    }
}

fn failed(directory: &Path, error: &StorageError, findings: &mut Findings) {
    let message = error.to_string();
    let (fault, fix) = message.split_once("; ").unwrap_or((
        &message,
        "let the server's user read and write all files of the storage, and check that its disk \
         has free space and no faults",
    ));
    let fix = match error {
        StorageError::SchemaTooNew { .. } => "run the version of Samovar that wrote the database",
        _ => fix,
    };
    findings.error(SUBJECT, format!("{directory:?}: {fault}"), fix);
}

/// Reports files that the owner of the storage cannot use.
fn owners(directory: &Path, found: Option<&Foreign>, findings: &mut Findings) {
    let Some(first) = found else {
        return findings.ok(SUBJECT, "its owner can use all files");
    };
    findings.error(
        SUBJECT,
        format!(
            "{} of {directory:?} cannot be used by its owner, user {}: {:?} belongs to user {}",
            counted(first.count, "file"),
            first.user,
            first.path,
            first.owner
        ),
        format!(
            "chown -R {}:{} {}",
            first.user,
            first.group,
            directory.display()
        ),
    );
}

fn database(directory: &Path, found: &Inspection, findings: &mut Findings) {
    let shown = directory.display();
    if let Some(first) = found.damage.first() {
        let count = found.damage.len();
        let reason = match count {
            1 => first.clone(),
            _ => format!("{first}, and {} more", count - 1),
        };
        failed(directory, &StorageError::Damaged(reason), findings);
        return;
    }
    let schema = found.schema;
    match found.is_check_complete {
        true => findings.ok(SUBJECT, format!("the database is intact, schema {schema}")),
        false => findings.ok(
            SUBJECT,
            format!("no damage of the database was found in 10 s, schema {schema}"),
        ),
    }
    if !found.has_own_database {
        findings.error(
            SUBJECT,
            "the directory and its database belong to different storages",
            "restore both from the same backup",
        );
    }
    if let Some(user) = found.user {
        findings.ok(
            SUBJECT,
            format!(
                "process {user} uses {directory:?}; a second server cannot use the directory \
                     at the same time"
            ),
        );
    }
    clock(now(), found.newest_at, findings);
    files(found, findings);
    tokens(
        &found.tokens,
        now(),
        &format!("--storage {shown}"),
        findings,
    );
}

/// Reports files that are missing or left over.
fn files(found: &Inspection, findings: &mut Findings) {
    if found.lost_count > 0 {
        findings.warning(
            SUBJECT,
            format!(
                "lost and not served: {}{}",
                counted(found.lost_count, "NAR"),
                named(&found.lost)
            ),
            "push these paths again; samovar fsck names all of them",
        );
    }
    let of = |is_of: fn(Kind) -> bool| found.faults.iter().filter(move |fault| is_of(fault.kind));
    let missing: BTreeSet<&str> = of(|kind| matches!(kind, Kind::Missing | Kind::Damaged))
        .flat_map(|fault| fault.paths.iter().map(|(_, path)| &**path))
        .collect();
    if !missing.is_empty() {
        findings.error(
            SUBJECT,
            format!(
                "the file of {} is missing or has a wrong length{}",
                counted(missing.len(), "path"),
                named(&Vec::from_iter(missing))
            ),
            "mount the disk of nar/ if it is not mounted; otherwise push these paths again",
        );
    }
    if let Some(first) = of(|kind| kind == Kind::Unreadable).next() {
        let reason = first.reason.split("; ").next().unwrap_or_default();
        findings.error(
            SUBJECT,
            format!("a file cannot be examined: {reason}"),
            "let the server's user read all files of the storage",
        );
    }
    match of(|kind| kind == Kind::Narinfo).count() {
        0 if !found.is_mirror_checked => {}
        0 => findings.ok(SUBJECT, "the directory has the narinfos of the first cache"),
        count => findings.warning(
            SUBJECT,
            format!("{count} of the newest 1000 narinfos are missing in the directory or wrong"),
            "reload or start the server, which writes missing narinfos; samovar fsck --repair \
             rewrites wrong narinfos",
        ),
    }
    if found.left_over_count > 0 {
        findings.warning(
            SUBJECT,
            format!(
                ".samovar/tmp has {} older than a day, {} in all",
                counted(found.left_over_count, "unfinished file"),
                human(found.left_over_bytes)
            ),
            "restart the server, which removes them",
        );
    }
}

/// Returns the beginning of a list of names, as a part of a sentence.
fn named(names: &[impl AsRef<str>]) -> String {
    let mut shown = names
        .iter()
        .take(NAMED_COUNT_MAX)
        .fold(String::new(), |mut shown, name| {
            shown += if shown.is_empty() { ": " } else { ", " };
            shown + name.as_ref()
        });
    if names.len() > NAMED_COUNT_MAX {
        shown += ", …";
    }
    shown
}

/// Reports caches of the storage that the configuration does not name.
fn caches(config: &Configuration, named: &str, stored: Vec<CacheSummary>, findings: &mut Findings) {
    for (name, text) in unserved(&config.caches, stored) {
        findings.warning(
            SUBJECT,
            text,
            format!(
                "name it in [caches.{name}], or delete it: samovar cache delete {named} {name}"
            ),
        );
    }
}

/// Checks the clock. `newest`: the latest time in the database.
fn clock(now: i64, newest: Option<i64>, findings: &mut Findings) {
    const FIX: &str =
        "set the clock of this machine, and let NTP keep it: timedatectl set-ntp true";
    if now < EARLIEST {
        findings.error(SUBJECT, "the clock of this machine is before 2025", FIX);
    } else if let Some(newest) = newest
        && newest > now + CLOCK_TOLERANCE
    {
        let text = format!(
            "the newest upload is {} s in the future: the clock is slow now, or was fast then",
            newest - now
        );
        findings.error(SUBJECT, text, FIX);
    }
}

fn tokens(tokens: &[Token], now: i64, named: &str, findings: &mut Findings) {
    let create = format!("samovar token create {named}");
    let valid: Vec<&Token> = tokens.iter().filter(|token| token.is_valid(now)).collect();
    let can_push = |token: &&&Token| token.rights.push;
    if valid.iter().find(can_push).is_none() {
        findings.warning(
            SUBJECT,
            "no valid token has the right to push, so no client can upload",
            format!("{create} --name NAME"),
        );
        return;
    }
    let expires_soon = |token: &&&Token| {
        // Another token with the same name and right replaces this one if it is valid for longer.
        let lasts = |other: &&&Token| {
            (&other.name, &other.cache, &other.names) == (&token.name, &token.cache, &token.names)
                && other.rights.push == token.rights.push
                && other.expires_at.is_none_or(|at| at > now + RENEWAL_TIME)
        };
        token.expires_at.is_some_and(|at| at <= now + RENEWAL_TIME)
            && valid.iter().find(lasts).is_none()
    };
    let mut expiring = 0;
    for token in valid.iter().filter(expires_soon) {
        expiring += 1;
        let days = token.expires_at.map_or(0, |at| (at - now) / 86_400);
        findings.warning(
            SUBJECT,
            format!(
                "the token {:?} expires in {}",
                token.name,
                counted(days, "day")
            ),
            format!("{create} {}, and give it to the client", token.options()),
        );
    }
    if expiring == 0 {
        findings.ok(SUBJECT, counted(valid.len(), "valid token"));
    }
}

#[cfg(test)]
mod tests {
    use samovar_storage::token::Rights;

    use super::*;
    use crate::checkup::Severity;

    fn worst(check: impl FnOnce(&mut Findings)) -> Severity {
        let mut findings = Findings::default();
        check(&mut findings);
        findings.worst()
    }

    fn token(name: &str, expires_at: Option<i64>) -> Token {
        Token {
            id: 1,
            name: name.to_owned(),
            cache: None,
            names: None,
            rights: Rights {
                read: true,
                push: true,
                pin: false,
            },
            created_at: 0,
            expires_at,
            revoked_at: None,
        }
    }

    #[test]
    fn a_clock_that_is_behind_the_newest_upload_is_wrong() {
        let at = EARLIEST + 1000;
        let of = |now, newest| worst(|findings| clock(now, newest, findings));
        assert_eq!(of(EARLIEST - 1, None), Severity::Error);
        assert_eq!(of(EARLIEST, None), Severity::Ok);
        assert_eq!(of(at, Some(at + CLOCK_TOLERANCE)), Severity::Ok);
        assert_eq!(of(at, Some(at + CLOCK_TOLERANCE + 1)), Severity::Error);
    }

    #[test]
    fn tokens_that_expire_within_14_days_are_reported_unless_replaced() {
        let now = EARLIEST;
        let of = |all: &[Token]| worst(|findings| tokens(all, now, "--storage /s", findings));
        assert_eq!(of(&[]), Severity::Warning);
        assert_eq!(of(&[token("a", Some(now))]), Severity::Warning);
        let soon = token("a", Some(now + RENEWAL_TIME));
        let later = token("a", Some(now + RENEWAL_TIME + 1));
        assert_eq!(of(std::slice::from_ref(&soon)), Severity::Warning);
        assert_eq!(of(std::slice::from_ref(&later)), Severity::Ok);
        assert_eq!(of(&[soon.clone(), later]), Severity::Ok);
        assert_eq!(of(&[soon, token("b", None)]), Severity::Warning);
    }
}
