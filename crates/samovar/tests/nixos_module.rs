//! The files in `nix/` are valid without nixpkgs: they parse; the modules evaluate with a stub of
//! nixpkgs' library, to the same result as with nixpkgs' own; systemd accepts the units, nginx and
//! `samovar serve` accept their configuration.
//!
//! `NIXPKGS=DIR UPDATE=1` writes `nix/stand-in/module.json` with the library of a checkout of
//! nixpkgs.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../nix/stand-in/home.rs"]
mod home;

use std::fs;
use std::process::Command;

use home::{Home, repository, verify};
use serde_json::Value;
use testkit::nix::Nix;
use testkit::process::output;

/// Maximum exposure that `systemd-analyze security` may report, times ten. `contrib/` has the same
/// limit.
const EXPOSURE_MAX: &str = "12";

/// Evaluates a module with option values, which are given as Nix code.
fn evaluate(home: &Home, module: &str, given: &str) -> Result<Value, String> {
    let module = repository().join("nix").join(module);
    let arguments = format!("module = {}; given = {given};", module.display());
    home.call("evaluate", &format!("{{ {arguments} }}"))
}

/// Returns the value of the line `name=` in a systemd unit.
#[track_caller]
fn value<'a>(unit: &'a Value, name: &str) -> &'a str {
    let lines = unit.as_str().unwrap().lines();
    let mut values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.next().unwrap()
}

#[test]
fn every_file_parses() {
    let home = Home::new();
    let mut count = 0;
    let nix = repository().join("nix");
    for directory in [
        repository(),
        nix.clone(),
        nix.join("stand-in"),
        nix.join("tests"),
    ] {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "nix") {
                let mut parse = home.command("nix-instantiate");
                let parsed = parse.arg("--parse").arg(&path).output().unwrap();
                assert!(parsed.status.success(), "{path:?}: {parsed:?}");
                count += 1;
            }
        }
    }
    assert_eq!(count, 14);
}

/// Returns the results of `facts.nix` as `module.json` has them.
fn json(facts: &Value) -> String {
    serde_json::to_string_pretty(facts).unwrap() + "\n"
}

/// Returns an expression for the facts about the module, with `arguments`.
fn facts(arguments: &str) -> String {
    let file = repository().join("nix/tests/facts.nix");
    format!("import {} {{ {arguments} }}", file.display())
}

/// The stand-in's results equal those that were written with the library of nixpkgs.
#[test]
fn the_module_evaluates_as_with_nixpkgs() {
    let home = Home::new();
    let golden = repository().join("nix/stand-in/module.json");
    if let Ok(nixpkgs) = std::env::var("NIXPKGS") {
        let real = home.evaluate(&facts(&format!("nixpkgs = {nixpkgs};")));
        let real = json(&real.unwrap());
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&golden, &real).unwrap();
        }
        assert_eq!(real, fs::read_to_string(&golden).unwrap());
    }
    let made = home.evaluate(&facts("")).unwrap();
    assert_eq!(json(&made), fs::read_to_string(golden).unwrap());
}

#[test]
fn newer_versions_of_nix_evaluate_the_same() {
    let golden = fs::read_to_string(repository().join("nix/stand-in/module.json")).unwrap();
    for nix in Nix::newer() {
        let home = Home::new();
        let mut command = nix.command("nix-instantiate", home.0.path());
        command.env("NIX_STATE_DIR", home.0.path());
        command.args(["--eval", "--strict", "--json", "--read-write-mode"]);
        command.arg("--store").arg(home.0.path());
        let made = output(command.args(["-E", &facts("")]));
        assert_eq!(
            json(&serde_json::from_str(&made).unwrap()),
            golden,
            "{nix:?}"
        );
    }
}

#[test]
fn units_and_configuration_are_valid() {
    let home = Home::new();
    let key = home.0.path().join("credentials");
    fs::create_dir(&key).unwrap();
    let key = key.join("key0");
    let mut generate = home.command("nix-store");
    generate.args([
        "--store",
        "dummy://",
        "--generate-binary-cache-key",
        "cache.example.org-1",
    ]);
    let public = home.0.path().join("public");
    let generated = generate.arg(&key).arg(public).output().unwrap();
    assert!(generated.status.success(), "{generated:?}");
    // The check of the configuration opens the store.
    let init = home.command("nix-store").arg("--init").output().unwrap();
    assert!(init.status.success(), "{init:?}");
    let given = r#"{
        enable = true;
        openFirewall = true;
        port = 5007;
        secretKeyFiles = [ "/etc/nix/cache.secret" ];
        settings = { priority = 20; connections.idle-time = "10 s"; };
        nginx.hostName = "cache.example.org";
    }"#;
    let made = evaluate(&home, "module.nix", given).unwrap();
    assert_eq!(made["ports"], serde_json::json!([5007]));
    assert_eq!(value(&made["socket"], "ListenStream"), "127.0.0.1:5007");
    let load = value(&made["service"], "LoadCredential");
    assert_eq!(load, "key0:/etc/nix/cache.secret");
    let proxied = &made["nginx"]["virtualHosts"]["cache.example.org"]["locations"]["/"];
    assert_eq!(proxied["proxyPass"], "http://samovar");

    let start = value(&made["service"], "ExecStart");
    let (program, file) = start.split_once(" serve --config ").unwrap();
    assert_eq!(program, "/stand-in/samovar/bin/samovar");
    let mut check = home.command(env!("CARGO_BIN_EXE_samovar"));
    check.args(["serve", "--check-config", "--config"]);
    check.arg(home.real(file));
    check.env("CREDENTIALS_DIRECTORY", key.parent().unwrap());
    let checked = check.output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let said = String::from_utf8(checked.stdout).unwrap();
    assert!(said.contains("priority = 20"), "{said}");

    let units = home.0.path().join("units");
    fs::create_dir(&units).unwrap();
    let service = made["service"].as_str().unwrap();
    let service = service.replace(program, env!("CARGO_BIN_EXE_samovar"));
    let service = service.replace("/stand-in/coreutils", "/usr");
    fs::write(units.join("samovar.service"), service).unwrap();
    fs::write(
        units.join("samovar.socket"),
        made["socket"].as_str().unwrap(),
    )
    .unwrap();
    if !verify(&["samovar.service", "samovar.socket"].map(|name| units.join(name))) {
        return;
    }
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager", "--threshold"]);
    let security = security
        .arg(EXPOSURE_MAX)
        .arg(units.join("samovar.service"));
    let output = security.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Certificate, users and tokens are credentials, so that only root needs to read their files.
#[test]
fn files_are_handed_over_as_credentials() {
    let home = Home::new();
    let given = r#"{
        enable = true;
        secretKeyFiles = [ "/etc/nix/cache.secret" ];
        tls = { certificateFile = "/etc/ssl/cache.pem"; keyFile = "/etc/ssl/cache.key"; };
        usersFile = "/etc/samovar/users";
        tokensFile = "/etc/samovar/tokens";
        settings = { access.realm = "cache"; };
    }"#;
    let made = evaluate(&home, "module.nix", given).unwrap();
    let start = value(&made["service"], "ExecStart");
    let (_, file) = start.split_once(" serve --config ").unwrap();
    let settings = fs::read_to_string(home.real(file)).unwrap();
    let service = made["service"].as_str().unwrap();
    for (option, name, source) in [
        ("secret-key-files", "key0", "/etc/nix/cache.secret"),
        ("certificate", "certificate", "/etc/ssl/cache.pem"),
        ("key", "tls-key", "/etc/ssl/cache.key"),
        ("users-file", "users", "/etc/samovar/users"),
        ("tokens-file", "tokens", "/etc/samovar/tokens"),
    ] {
        assert!(service.contains(&format!("{name}:{source}")), "{service}");
        let reference = format!("\"credential:{name}\"");
        let is_set = |line: &str| line.contains(option) && line.contains(&reference);
        assert!(settings.lines().any(is_set), "{settings}");
        assert!(!settings.contains(source), "{settings}");
    }
    // Settings of the same tables are kept.
    assert!(settings.contains("realm"), "{settings}");
}

#[test]
fn uploads_are_configured_below_the_state_directory() {
    let home = Home::new();
    let given = r#"{
        enable = true;
        uploads = { enable = true; retention = "90d"; quota = "600 GiB";
          retentionRules = [ "*-debug=30d" ]; };
        nginx.hostName = "cache.example.org";
    }"#;
    let made = evaluate(&home, "module.nix", given).unwrap();
    let proxied = &made["nginx"]["virtualHosts"]["cache.example.org"]["locations"]["/"];
    let extra = proxied["extraConfig"].as_str().unwrap();
    assert!(extra.contains("proxy_request_buffering off;"), "{extra}");
    assert_eq!(value(&made["service"], "StateDirectory"), "samovar");
    let start = value(&made["service"], "ExecStart");
    let (_, file) = start.split_once(" serve --config ").unwrap();
    // The check opens the store.
    let made = home.command("nix-store").arg("--init").output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let mut check = home.command(env!("CARGO_BIN_EXE_samovar"));
    check.args(["serve", "--check-config", "--config"]);
    let checked = check.arg(home.real(file)).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let text = String::from_utf8(checked.stdout).unwrap();
    for line in [
        "storage = \"/var/lib/samovar/storage\"",
        "uploads.retention = ",
        "uploads.retention-rules = [\"*-debug=30d\"]",
        "uploads.quota = ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("uploads.retention-size = \""), "{text}");
}

#[test]
fn optional_parts_are_off_and_invalid_values_refused() {
    let home = Home::new();
    assert_eq!(evaluate(&home, "module.nix", "{ }").unwrap(), Value::Null);
    let made = evaluate(&home, "module.nix", "{ enable = true; }").unwrap();
    assert_eq!(made["ports"], serde_json::json!([]));
    assert_eq!(made["nginx"], Value::Null);
    assert_eq!(value(&made["socket"], "ListenStream"), "[::]:5000");
    assert!(!made["service"].as_str().unwrap().contains("LoadCredential"));
    for (given, message) in [
        (
            "{ enable = true; port = 99999; }",
            "services.samovar.port is no port",
        ),
        (
            "{ enable = true; prot = 1; }",
            "there is no services.samovar.prot",
        ),
        (
            "{ enable = true; tls.certificateFile = \"/c\"; }",
            "set both certificateFile and keyFile",
        ),
        (
            "{ enable = true; settings.listen = [ \"127.0.0.1:5000\" ]; }",
            "set services.samovar.address, port",
        ),
        (
            "{ enable = true; uploads.quota = \"1 GiB\"; }",
            "services.samovar.uploads: set enable as well",
        ),
    ] {
        let error = evaluate(&home, "module.nix", given).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn launchd_starts_the_same() {
    let home = Home::new();
    let made = evaluate(&home, "darwin.nix", "{ enable = true; }").unwrap();
    let started = &made["launchd"]["daemons"]["samovar"]["serviceConfig"]["ProgramArguments"];
    assert_eq!(started[1], "serve");
    assert_eq!(started[2], "--config");
}
