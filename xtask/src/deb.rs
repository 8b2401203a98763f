//! `deb DIR`: builds a Debian package of both programs with `dpkg-deb`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{build_as_tested, build_release, output, repository, run};

/// Builds the programs and writes the package to `out`. Fails if something cannot be built, or
/// `dpkg-deb` is missing.
pub(crate) fn make(out: &Path) -> Result<()> {
    let programs = build_release(&["nix-serve", "samovar"])?;
    let package = package(&repository(), &programs, out, "xz")?;
    println!("{}", package.display());
    Ok(())
}

/// Packages the programs that the tests run, and tests the package under a real systemd, in
/// namespaces of its own.
pub(crate) fn try_package() -> Result<()> {
    let programs = build_as_tested(&["--bin=nix-serve", "--bin=samovar"])?;
    let dir = tempfile::tempdir()?;
    // Compressing programs with debug information would take minutes.
    let package = package(&repository(), &programs, dir.path(), "none")?;
    run(Command::new(repository().join("contrib/systemd/try.sh")).arg(package))
}

/// Packages the programs in `programs`. `compression` is a name that `dpkg-deb -Z` takes.
// Long: a list of the files of the package.
fn package(repository: &Path, programs: &Path, out: &Path, compression: &str) -> Result<PathBuf> {
    let version = env!("CARGO_PKG_VERSION");
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let name = format!("samovar_{version}_{architecture}");
    let tree = out.join(&name);
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    let put = |to: &str, content: &[u8], mode: u32| -> Result<()> {
        let path = tree.join(to);
        fs::create_dir_all(path.parent().context("it lies in a folder")?)?;
        fs::write(&path, content).with_context(|| format!("cannot write {path:?}"))?;
        Ok(fs::set_permissions(&path, Permissions::from_mode(mode))?)
    };
    let read = |from: &str| {
        fs::read_to_string(repository.join(from)).with_context(|| format!("cannot read {from}"))
    };
    for program in ["nix-serve", "samovar"] {
        let from = programs.join(program);
        let bytes = fs::read(&from).with_context(|| format!("cannot read {from:?}"))?;
        put(&format!("usr/bin/{program}"), &bytes, 0o755)?;
        if bytes.starts_with(b"\x7fELF") {
            // Remove debug information, which is most of the size. The names of functions stay.
            let mut strip = Command::new("strip");
            run(strip
                .arg("--strip-debug")
                .arg(tree.join("usr/bin").join(program)))?;
        }
    }
    let samovar = tree.join("usr/bin/samovar");
    let pages = tree.join("usr/share/man/man1");
    fs::create_dir_all(&pages)?;
    run(Command::new(&samovar).arg("man").arg(&pages))?;
    for (shell, to) in [
        ("bash", "usr/share/bash-completion/completions/samovar"),
        ("fish", "usr/share/fish/vendor_completions.d/samovar.fish"),
        ("zsh", "usr/share/zsh/vendor-completions/_samovar"),
    ] {
        let text = output(Command::new(&samovar).args(["completions", shell]))?;
        put(to, text.as_bytes(), 0o644)?;
    }
    let service = service(&read("contrib/systemd/nix-serve.service")?);
    put(
        "lib/systemd/system/samovar.service",
        service.as_bytes(),
        0o644,
    )?;
    for (from, to) in [
        (
            "contrib/systemd/nix-serve.socket",
            "lib/systemd/system/samovar.socket",
        ),
        ("contrib/debian/samovar.toml", "etc/samovar/samovar.toml"),
        ("LICENSE", "usr/share/doc/samovar/copyright"),
        (
            "contrib/nix-serve/nix-serve.1",
            "usr/share/man/man1/nix-serve.1",
        ),
        (
            "contrib/nix-serve/nix-serve.bash",
            "usr/share/bash-completion/completions/nix-serve",
        ),
        (
            "contrib/nix-serve/nix-serve.fish",
            "usr/share/fish/vendor_completions.d/nix-serve.fish",
        ),
        (
            "contrib/nix-serve/nix-serve.zsh",
            "usr/share/zsh/vendor-completions/_nix-serve",
        ),
    ] {
        put(to, read(from)?.as_bytes(), 0o644)?;
    }
    put("DEBIAN/conffiles", b"/etc/samovar/samovar.toml\n", 0o644)?;
    for script in ["postinst", "prerm", "postrm"] {
        let text = read(&format!("contrib/debian/{script}"))?;
        put(&format!("DEBIAN/{script}"), text.as_bytes(), 0o755)?;
    }
    // The C library is the only dynamic dependency.
    let libc = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let libc = libc.rsplit(' ').next().unwrap_or_default();
    let control = format!(
        "Package: samovar\nVersion: {version}\nArchitecture: {architecture}\nSection: net\n\
         Priority: optional\nMaintainer: Samovar <samovar@example.org>\n\
         Depends: libc6 (>= {libc}), libgcc-s1\nSuggests: nix-bin\n\
         Conflicts: nix-serve\nProvides: nix-serve\n\
         Description: Nix binary cache server\n \
         Serves the Nix store of a machine over HTTP and HTTPS, in place of nix-serve.\n"
    );
    put("DEBIAN/control", control.as_bytes(), 0o644)?;
    let file = out.join(format!("{name}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", &format!("-Z{compression}"), "--build"]);
    run(build.arg(&tree).arg(&file))?;
    fs::remove_dir_all(&tree)?;
    Ok(file)
}

/// Returns the unit of `contrib/systemd` adapted to `samovar serve`. It has no signing key, because
/// the operator must add one.
fn service(unit: &str) -> String {
    let mut text = String::new();
    let is_key = |line: &str| line.starts_with("LoadCredential=") || line.contains("KEY_FILE=");
    // The comment above `[Unit]` explains manual installation.
    let lines = unit.lines().skip_while(|line| *line != "[Unit]");
    for line in lines.filter(|line| !is_key(line)) {
        let line = match line.strip_prefix("ExecStart=") {
            Some(_) => {
                "ExecStart=/usr/bin/samovar serve --config /etc/samovar/samovar.toml".to_owned()
            }
            None if line.starts_with("Documentation=") => {
                "Documentation=man:samovar-serve(1)".to_owned()
            }
            None => line.replace("nix-serve", "samovar"),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that systemd accepts the units. That requires that their programs exist.
    fn is_understood(units: &Path, scratch: &Path) {
        let unit = fs::read_to_string(units.join("samovar.service")).expect("reads");
        let service = scratch.join("samovar.service");
        let unit = unit.replace("/usr/bin/samovar", "/usr/bin/true");
        fs::write(&service, unit).expect("writes");
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]).arg(&service);
        let Ok(verified) = verify.arg(units.join("samovar.socket")).output() else {
            println!("skipped: there is no systemd-analyze here");
            return;
        };
        let complaints = String::from_utf8_lossy(&verified.stderr);
        let is_clean = !complaints.lines().any(|line| line.contains("samovar"));
        assert!(verified.status.success() && is_clean, "{complaints}");
    }

    /// Returns a copy of a package with a later version.
    fn later(file: &Path, dir: &Path) -> PathBuf {
        let (tree, copy) = (dir.join("later"), dir.join("later.deb"));
        output(Command::new("dpkg-deb").arg("-R").arg(file).arg(&tree)).expect("unpacks");
        let control = tree.join("DEBIAN/control");
        let text = fs::read_to_string(&control).expect("reads");
        let version = format!("Version: {}", env!("CARGO_PKG_VERSION"));
        let text = text.replace(&version, &format!("{version}+later"));
        fs::write(&control, text).expect("writes");
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "-Znone", "--build"]);
        output(build.arg(&tree).arg(&copy)).expect("packs");
        copy
    }

    /// Installs the package below a folder, upgrades it and removes it again. systemd does not run
    /// there. Stub programs stand in for the real ones.
    #[test]
    fn the_package_is_installed_upgraded_and_removed() {
        if Command::new("dpkg-deb").arg("--version").output().is_err() {
            println!("skipped: there is no dpkg-deb here");
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let programs = dir.path().join("programs");
        fs::create_dir(&programs).expect("makes it");
        for program in ["nix-serve", "samovar"] {
            let path = programs.join(program);
            let script = "#!/bin/sh\nif [ \"$1\" = man ]; then echo > \"$2/samovar.1\"; fi\n";
            fs::write(&path, script).expect("writes");
            fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("sets");
        }
        let file = package(&repository(), &programs, dir.path(), "none").expect("packs");

        let root = dir.path().join("root");
        for folder in ["var/lib/dpkg/updates", "var/lib/dpkg/info"] {
            fs::create_dir_all(root.join(folder)).expect("makes it");
        }
        fs::write(root.join("var/lib/dpkg/status"), "").expect("writes");
        let dpkg = |arguments: &[&str]| {
            let mut dpkg = Command::new("dpkg");
            // The installation root contains neither a shell nor libraries, so dpkg must run the
            // package's scripts outside it.
            dpkg.args([
                "--force-script-chrootless",
                "--force-not-root",
                "--force-depends",
            ]);
            dpkg.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
            dpkg.arg("--root").arg(&root).args(arguments);
            output(&mut dpkg).expect("succeeds");
        };
        dpkg(&["--install", &file.display().to_string()]);
        for path in [
            "usr/bin/nix-serve",
            "usr/bin/samovar",
            "usr/share/man/man1/samovar.1",
            "usr/share/man/man1/nix-serve.1",
            "usr/share/bash-completion/completions/nix-serve",
            "lib/systemd/system/samovar.socket",
            "etc/samovar/samovar.toml",
        ] {
            assert!(root.join(path).is_file(), "{path}");
        }
        let unit = root.join("lib/systemd/system/samovar.service");
        let unit = fs::read_to_string(unit).expect("reads");
        assert!(unit.contains("ExecStart=/usr/bin/samovar serve --config /etc/samovar/"));
        assert!(unit.contains("Requires=samovar.socket") && !unit.contains("LoadCredential"));
        is_understood(&root.join("lib/systemd/system"), dir.path());
        let config = root.join("etc/samovar/samovar.toml");
        fs::write(&config, "priority = 7\n").expect("writes");
        dpkg(&["--install", &later(&file, dir.path()).display().to_string()]);
        let mut query = Command::new("dpkg-query");
        query.arg(format!(
            "--admindir={}",
            root.join("var/lib/dpkg").display()
        ));
        let state = output(query.args(["-W", "-f=${Status} ${Version}", "samovar"]));
        let expected = format!("install ok installed {}+later", env!("CARGO_PKG_VERSION"));
        assert_eq!(state.expect("answers"), expected);
        let kept = fs::read_to_string(&config).expect("reads");
        assert_eq!(kept, "priority = 7\n", "an upgrade keeps the configuration");
        dpkg(&["--remove", "samovar"]);
        assert!(!root.join("usr/bin/samovar").exists());
        assert!(config.exists(), "what an operator has written stays");
        dpkg(&["--purge", "samovar"]);
        assert!(!config.exists());
    }
}
