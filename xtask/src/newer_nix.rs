//! Newer versions of Nix than this machine's, for tests: packages of later Debian releases,
//! unpacked below `.samovar/nix`.
//!
//! apt downloads them with lists of its own and checks their signatures with Debian's keys. They
//! are not installed: tests run them with the dynamic loader and the libraries beside them. Their
//! versions are those of the releases; a pinned version disappears from Debian's servers with the
//! next one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::command::{output, progress, repository, run};

/// The Debian releases whose versions of Nix the tests use.
const RELEASES: [&str; 2] = ["trixie", "sid"];

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Unpacks the versions that are missing. An error is only printed: without these versions, the
/// tests report what they do not test.
pub(crate) fn unpack() {
    for release in missing() {
        let dir = folder().join(release);
        progress(&format!(
            "unpacking the Nix of Debian {release} for tests (half a minute, once)"
        ));
        let started = Instant::now();
        match unpack_release(release, &dir) {
            Ok(()) => progress(&format!(
                "unpacked in {:.0} s",
                started.elapsed().as_secs_f64()
            )),
            Err(error) => progress(&format!("tests will not use this version: {error:#}")),
        }
    }
}

/// Returns the directory of the unpacked versions.
fn folder() -> PathBuf {
    repository().join(".samovar/nix")
}

/// Returns the releases whose versions are not unpacked.
fn missing() -> Vec<&'static str> {
    missing_in(&folder())
}

fn missing_in(folder: &Path) -> Vec<&'static str> {
    let is_missing = |release: &&str| !folder.join(release).join("root/usr/bin/nix").exists();
    RELEASES.into_iter().filter(is_missing).collect()
}

/// Returns a line about the versions that tests leave out; `None` if all are unpacked.
pub(crate) fn left_out() -> Option<String> {
    line_about(&missing())
}

fn line_about(missing: &[&str]) -> Option<String> {
    let (count, all) = (missing.len(), RELEASES.len());
    (count > 0).then(|| {
        format!(
            "NOT TESTED with {count} of {all} newer versions of Nix: Debian {}; `xtask setup \
             --test` unpacks them",
            missing.join(", ")
        )
    })
}

fn unpack_release(release: &str, dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    let (downloads, unfinished) = (dir.join("apt"), dir.join("unfinished"));
    for sub in ["lists/partial", "archives/partial"] {
        fs::create_dir_all(downloads.join(sub))?;
    }
    fs::create_dir_all(&unfinished)?;
    let source = format!("deb [signed-by={KEYRING}] {} {release} main\n", site()?);
    fs::write(downloads.join("sources.list"), source)?;
    // No package is installed, so all dependencies are downloaded.
    fs::write(downloads.join("status"), "")?;
    run(apt_get(&downloads).arg("update"))?;
    run(apt_get(&downloads).args(["--yes", "--download-only", "install", "nix-bin"]))?;
    for entry in fs::read_dir(downloads.join("archives"))? {
        let package = entry?.path();
        if package.extension().is_some_and(|suffix| suffix == "deb") {
            run(Command::new("dpkg-deb")
                .arg("-x")
                .arg(&package)
                .arg(&unfinished))?;
        }
    }
    ensure!(
        unfinished.join("usr/bin/nix").exists(),
        "nix-bin of {release} contains no nix"
    );
    fs::remove_dir_all(&downloads)?;
    Ok(fs::rename(unfinished, dir.join("root"))?)
}

/// Returns the address of the Debian archive that this machine uses.
fn site() -> Result<String> {
    let mut command = Command::new("apt-get");
    let sites = output(command.args(["indextargets", "--format", "$(SITE)"]))?;
    let site = sites.lines().find(|site| site.ends_with("/debian"));
    let site = site.context("apt has no Debian archive in its sources")?;
    Ok(site.to_owned())
}

/// Returns `apt-get` with its whole state in `dir`.
fn apt_get(dir: &Path) -> Command {
    let option = |name: &str, path: PathBuf| format!("{name}={}", path.display());
    let mut command = Command::new("apt-get");
    command.args(["-qq", "--no-install-recommends"]);
    for option in [
        option("Dir::Etc::SourceList", dir.join("sources.list")),
        option("Dir::Etc::SourceParts", PathBuf::from("/dev/null")),
        option("Dir::State", dir.to_owned()),
        option("Dir::State::Status", dir.join("status")),
        option("Dir::Cache", dir.to_owned()),
        // Keep downloaded packages, which the configuration of Docker images deletes.
        "Binary::apt-get::APT::Keep-Downloaded-Packages=true".to_owned(),
        "Acquire::Languages=none".to_owned(),
        "Acquire::Retries=0".to_owned(),
        "Acquire::http::Timeout=10".to_owned(),
        "APT::Sandbox::User=".to_owned(),
        "Debug::NoLocking=true".to_owned(),
    ] {
        command.arg("-o").arg(option);
    }
    command
}

#[cfg(test)]
mod tests {
    use testkit::nix::Nix;

    use super::*;

    /// Returns major and minor version.
    fn numbers(version: &str) -> (u32, u32) {
        let (major, rest) = version.split_once('.').unwrap();
        let minor = rest.split('.').next().unwrap();
        (major.parse().unwrap(), minor.parse().unwrap())
    }

    /// The README and COMPAT.md state the versions that the tests run. The version of sid changes
    /// at any time: the stated one must not be newer than it.
    #[test]
    fn the_stated_versions_are_those_of_the_tests() {
        let read = |file: &str| fs::read_to_string(repository().join(file)).unwrap();
        let (readme, compat) = (read("README.md").replace('\n', " "), read("COMPAT.md"));
        let (_, table) = compat.split_once("| Nix | Debian | tested |\n").unwrap();
        let rows = table
            .lines()
            .skip(1)
            .take_while(|line| line.starts_with("| "));
        let stated: Vec<(&str, &str)> = rows
            .map(|row| {
                let mut cells = row.split('|').map(str::trim);
                (cells.nth(1).unwrap(), cells.next().unwrap())
            })
            .collect();
        assert_eq!(stated.len(), 1 + RELEASES.len(), "{stated:?}");
        for (version, release) in &stated {
            let debian = release.split(' ').next().unwrap();
            let text = format!("{version} (Debian {debian})");
            assert!(readme.contains(&text), "README.md does not state {text}");
        }
        let of_release = |name: &str| {
            let found = stated.iter().find(|(_, release)| release.contains(name));
            found
                .unwrap_or_else(|| panic!("COMPAT.md does not state the Nix of {name}"))
                .0
        };
        for release in RELEASES {
            of_release(release);
        }
        for nix in Nix::newer() {
            let (release, found) = (nix.release().unwrap(), nix.version());
            let stated = of_release(release);
            match release {
                "sid" => assert!(numbers(&found) >= numbers(stated), "{found} of {release}"),
                _ => assert_eq!(numbers(&found), numbers(stated), "{found} of {release}"),
            }
        }
        let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
        if system.contains("VERSION_CODENAME=bookworm") {
            let found = Nix::INSTALLED.version();
            assert_eq!(numbers(&found), numbers(of_release("bookworm")), "{found}");
        }
    }

    #[test]
    fn missing_versions_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let unpack = |release: &str| {
            let programs = dir.path().join(release).join("root/usr/bin");
            fs::create_dir_all(&programs).unwrap();
            fs::write(programs.join("nix"), "").unwrap();
        };
        assert_eq!(missing_in(dir.path()), RELEASES);
        unpack(RELEASES[0]);
        // An interrupted setup has left the other one.
        fs::create_dir_all(dir.path().join(RELEASES[1]).join("unfinished")).unwrap();
        let missing = missing_in(dir.path());
        assert_eq!(missing, [RELEASES[1]]);
        let line = line_about(&missing).unwrap();
        assert!(
            line.starts_with("NOT TESTED with 1 of 2 newer versions"),
            "{line}"
        );
        assert!(line.contains(RELEASES[1]), "{line}");
        unpack(RELEASES[1]);
        assert_eq!(line_about(&missing_in(dir.path())), None);
    }

    /// Keys can be made without a store, as all documents show.
    #[test]
    fn every_version_makes_keys_without_a_store() {
        for nix in Nix::all() {
            let dir = tempfile::tempdir().unwrap();
            let mut command = nix.command("nix-store", dir.path());
            command.args(["--store", "dummy://", "--generate-binary-cache-key", "a-1"]);
            command.args([dir.path().join("secret"), dir.path().join("public")]);
            run(&mut command).unwrap();
            let public = fs::read_to_string(dir.path().join("public")).unwrap();
            assert!(public.starts_with("a-1:"), "{public}");
        }
        for file in ["README.md", "docs/book/start.md", "docs/book/keys.md"] {
            let text = fs::read_to_string(repository().join(file)).unwrap();
            let mut commands = text.lines().filter(|line| line.starts_with("nix-store "));
            let makes_keys = |line: &&str| line.contains("--generate-binary-cache-key");
            let all: Vec<&str> = commands.by_ref().filter(makes_keys).collect();
            let has_dummy = |line: &&str| line.starts_with("nix-store --store dummy:// ");
            assert!(
                !all.is_empty() && all.iter().all(has_dummy),
                "{file}: {all:?}"
            );
        }
    }
}
