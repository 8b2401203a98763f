//! `macos`: checks that the engine, `nix-serve` and the client side compile for macOS.
//!
//! Nothing is linked and nothing runs: there is no machine with macOS here. rustup's hosts, which
//! have the standard library for macOS, may be out of reach. So the compiler is Debian's, unpacked
//! below `.samovar/macos`, and the standard library is *checked* from Debian's sources of it. For
//! `cargo check`, the metadata that this yields are enough.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{output, progress, repository, run};

/// The processor and system for which crates are checked.
const TARGET: &str = "aarch64-apple-darwin";

/// Packages that are checked, with all that they depend on. That is everything except mounts, the
/// program `samovar`, which has mounts, and tools of this repository.
const CHECKED: [&str; 4] = ["nix-serve", "samovar-client", "samovar-http", "samovar-web"];

/// Debian's packages of the compiler, and of the sources of the standard library. What they depend
/// on is the compiler's own library, LLVM, and what every machine with Rust has.
const PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];

/// Checks the packages. Fails if one does not compile. If the compiler is not there, it only says
/// so, except in CI.
pub(crate) fn check() -> Result<()> {
    let root = folder().join("root");
    if !is_unpacked(&root) {
        let message = "macOS: NOT CHECKED: Debian's packages rustc-web and rust-web-src are not \
                       unpacked; `xtask setup --test` does that";
        if std::env::var_os("CI").is_some() {
            bail!(message);
        }
        progress(message);
        return Ok(());
    }
    let started = Instant::now();
    add_std(&root)?;
    let packages = CHECKED.iter().flat_map(|package| ["--package", package]);
    run(cargo_check(&root, "")
        .args(packages)
        .args(["--target-dir", "target/macos"])
        .current_dir(repository()))?;
    progress(&format!(
        "{} compile for {TARGET} ({:.0} s)",
        CHECKED.join(", "),
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Returns the directory of the compiler.
fn folder() -> PathBuf {
    repository().join(".samovar/macos")
}

fn is_unpacked(root: &Path) -> bool {
    root.join("usr/bin/rustc").exists() && library(root).is_some()
}

/// Returns the sources of the standard library; `None` if they are missing.
fn library(root: &Path) -> Option<PathBuf> {
    let sources = fs::read_dir(root.join("usr/src")).ok()?;
    let mut libraries = sources.flatten().map(|entry| entry.path().join("library"));
    libraries.find(|library| library.join("sysroot/Cargo.toml").exists())
}

/// Returns `cargo check` for the target, with the unpacked compiler.
fn cargo_check(root: &Path, rustflags: &str) -> Command {
    let mut command = Command::new("cargo");
    command
        .args(["check", "--quiet", "--locked", "--target", TARGET])
        // Only macros and build scripts are compiled, and run for a moment.
        .args(["--config", "profile.dev.package.\"*\".opt-level=0"])
        .env("RUSTC", root.join("usr/bin/rustc"))
        .env("LD_LIBRARY_PATH", root.join("usr/lib/x86_64-linux-gnu"))
        .env("RUSTFLAGS", rustflags)
        .env("CARGO_INCREMENTAL", "0");
    // Objects of C sources are not used, because nothing is linked. So their compiler is a program
    // that does nothing.
    for tool in ["CC", "CXX", "AR"] {
        command.env(format!("{tool}_{}", TARGET.replace('-', "_")), "true");
    }
    command
}

/// Adds the standard library for the target to the compiler, unless it is there.
fn add_std(root: &Path) -> Result<()> {
    let destination = root.join("usr/lib/rustlib").join(TARGET).join("lib");
    if destination.exists() {
        return Ok(());
    }
    progress("checking the standard library for macOS (half a minute, once)");
    let library = library(root).context("the sources of the standard library are missing")?;
    let built = folder().join("std");
    // The flag is what marks a crate as part of the standard library.
    run(
        cargo_check(root, "-Zforce-unstable-if-unmarked --cap-lints=allow")
            .arg("--manifest-path")
            .arg(library.join("sysroot/Cargo.toml"))
            .args(["--features", "backtrace,panic-unwind"])
            .arg("--target-dir")
            .arg(&built)
            // The standard library needs features of an unstable compiler; its crates must not be
            // taken for crates of the same name and version that a program uses.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("__CARGO_DEFAULT_LIB_METADATA", "std"),
    )?;
    let unfinished = folder().join("unfinished-std");
    fs::create_dir_all(&unfinished)?;
    for entry in fs::read_dir(built.join(TARGET).join("debug/deps"))? {
        let file = entry?.path();
        if let (Some("rmeta"), Some(name)) = (
            file.extension().and_then(|suffix| suffix.to_str()),
            file.file_name(),
        ) {
            fs::copy(&file, unfinished.join(name))?;
        }
    }
    fs::remove_dir_all(&built)?;
    if let Some(parent) = destination.parent() {
        fs::create_dir_all(parent)?;
    }
    Ok(fs::rename(unfinished, destination)?)
}

/// Unpacks the compiler, unless it is there. An error is only printed: the check reports that it
/// could not be made.
pub(crate) fn unpack() {
    if is_unpacked(&folder().join("root")) {
        return;
    }
    progress("unpacking a Rust compiler that checks code for macOS (half a minute, once)");
    if let Err(error) = unpack_packages(&folder()) {
        progress(&format!("nothing will be checked for macOS: {error:#}"));
    }
}

fn unpack_packages(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    let (downloads, unfinished) = (dir.join("packages"), dir.join("unfinished"));
    fs::create_dir_all(&downloads)?;
    fs::create_dir_all(&unfinished)?;
    let listed = output(
        Command::new("apt-cache")
            .args(["depends", "--recurse", "--important"])
            .args(PACKAGES),
    )?;
    let packages = of_compiler(&listed);
    run(Command::new("apt-get")
        // apt would drop the rights of root for the download, and could not write here.
        .args(["-qq", "-o", "APT::Sandbox::User=root", "download"])
        .args(&packages)
        .current_dir(&downloads))
    .with_context(|| format!("cannot download {}", packages.join(" ")))?;
    for entry in fs::read_dir(&downloads)? {
        run(Command::new("dpkg-deb")
            .arg("-x")
            .arg(entry?.path())
            .arg(&unfinished))?;
    }
    ensure!(
        is_unpacked(&unfinished),
        "the packages contain no compiler, or no sources of the standard library"
    );
    fs::remove_dir_all(&downloads)?;
    Ok(fs::rename(unfinished, dir.join("root"))?)
}

/// Returns the packages of the compiler from a list of all packages on which it depends.
fn of_compiler(listed: &str) -> Vec<&str> {
    let is_part = |name: &&str| {
        PACKAGES.contains(name)
            || name.starts_with("libstd-rust-web-")
            || name.starts_with("libllvm")
    };
    listed.lines().filter(is_part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packages_of_the_compiler_are_unpacked() {
        let listed = "rustc-web\n  Depends: libc6\nlibstd-rust-web-1.96\nlibllvm22\nlibc6\ngcc";
        let packages = ["rustc-web", "libstd-rust-web-1.96", "libllvm22"];
        assert_eq!(of_compiler(listed), packages);
    }
}
