//! `services.nix-serve` of NixOS starts Samovar: with its package, or with a module that replaces
//! the package. `default.nix` has the same as the flake.

#[path = "../../../nix/stand-in/home.rs"]
mod home;

use std::fs;
use std::path::PathBuf;

use home::{Home, repository};
use serde_json::Value;
use testkit::nix::Nix;
use testkit::process::output;

/// With the module, no other option than `enable` is needed.
#[test]
fn services_nix_serve_starts_samovar() {
    let home = Home::new();
    let file = repository().join("nix/tests/nix-serve.nix");
    let expression = format!("import {}", file.display());
    let made = home.evaluate(&expression).unwrap();
    let ours = "exec /stand-in/samovar/bin/nix-serve --listen 0.0.0.0:5000";
    for variant in ["package", "module", "module-without-flakes", "both-modules"] {
        assert_eq!(made[variant], ours, "{variant}");
    }
    let others = "exec /stand-in/perl-nix-serve/bin/nix-serve --listen 0.0.0.0:5000";
    assert_eq!(made["nixos"], others);
    let samovar = made["samovar"].as_str().unwrap();
    let start = "/stand-in/samovar/bin/samovar serve --config ";
    assert!(samovar.starts_with(start), "{samovar}");
    for nix in Nix::newer() {
        let home = Home::new();
        let mut command = nix.command("nix-instantiate", home.0.path());
        command.env("NIX_STATE_DIR", home.0.path());
        command.args(["--eval", "--strict", "--json", "--read-write-mode"]);
        command.arg("--store").arg(home.0.path());
        let text = output(command.args(["-E", &expression]));
        let newer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(newer, made, "{nix:?}");
    }
}

/// Without flakes, the packages are those of `<nixpkgs>`.
#[test]
fn packages_without_flakes() {
    let home = Home::new();
    let path = |file: &str| -> PathBuf { repository().join(file) };
    let nixpkgs = home.0.path().join("nixpkgs.nix");
    let stand_in = path("nix/stand-in/lib.nix");
    let stand_in = stand_in.display();
    let text = format!("{{ overlays }}: (import {stand_in}).packages overlays");
    fs::write(&nixpkgs, text).unwrap();
    let mut command = home.command("nix-instantiate");
    command.env("NIX_PATH", format!("nixpkgs={}", nixpkgs.display()));
    command.args(["--eval", "--strict", "--json", "-E"]);
    let made = output(command.arg(format!(
        "let all = import {}; in [ \"${{all.samovar}}\" \"${{all.kettles}}\" ]",
        path("default.nix").display()
    )));
    let expected = r#"["/stand-in/samovar","/stand-in/kettles"]"#;
    assert_eq!(made.trim(), expected);
}
