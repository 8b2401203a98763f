//! The deployment in `nix/` and `rig/` is valid as far as this can be checked without NixOS and
//! containers:
//! the modules evaluate to `nix/stand-in/network.json`, systemd accepts the units, Prometheus
//! accepts its configurations, and the server accepts its command lines.
//!
//! `UPDATE=1` updates `network.json`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../nix/stand-in/home.rs"]
mod home;

use std::fs;
use std::path::Path;
use std::process::Command;

use home::{Home, repository, verify};
use serde_json::{Value, json};

/// Evaluates the configuration of each machine in the network.
fn network(home: &Home) -> Value {
    let file = repository().join("nix/network.nix");
    let stand_in = repository().join("nix/stand-in/lib.nix");
    let modules = format!("(import {}).${{name}}", file.display());
    let machine = format!(
        "(import {}).evaluateAll [ ({modules}) ]",
        stand_in.display()
    );
    let names = r#"[ "app" "locust" ]"#;
    let argument = format!("{names} (name: {machine})");
    home.call("lib.genAttrs", &argument).unwrap()
}

/// Evaluates the application machine with additional configuration, given in Nix.
fn app_with(home: &Home, more: &str) -> Result<Value, String> {
    let kettles = repository().join("nix/kettles.nix");
    home.call(
        "evaluateAll",
        &format!("[ {} {{ {more} }} ]", kettles.display()),
    )
}

/// Removes the hashes of store paths, which change with the contents.
fn without_hashes(text: &str) -> String {
    let mut parts = text.split("/nix/store/");
    let mut whole = parts.next().unwrap().to_owned();
    for part in parts {
        whole.push_str("/nix/store/HASH");
        whole.push_str(part.get(32..).unwrap());
    }
    whole
}

#[track_caller]
fn promtool(config: &Path) {
    let mut command = Command::new("promtool");
    let output = command.args(["check", "config"]).arg(config).output();
    let output = output.expect("there is promtool: run `make setup-test`");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_evaluated_network_equals_network_json() {
    let machines = network(&Home::new());
    let text = serde_json::to_string_pretty(&machines).unwrap();
    let text = without_hashes(&text) + "\n";
    let golden = repository().join("nix/stand-in/network.json");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&golden, &text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(golden).unwrap());
}

#[test]
fn systemd_accepts_the_units_and_the_server_its_command_line() {
    let home = Home::new();
    let token = r#"services.kettles.adminTokenFile = "/etc/token";"#;
    let enable = r#"services.kettles.enable = true;"#;
    let several = r#"services.kettles.processes = 2;"#;
    let alone = app_with(&home, &format!("{enable} {token}")).unwrap();
    let several = app_with(&home, &format!("{enable} {several}")).unwrap();
    let machines = network(&home);
    let units = home.0.path().join("units");
    let mut files = Vec::new();
    for (place, machine, name) in [
        ("alone", &alone, "kettles"),
        ("several", &several, "kettles"),
        ("network", &machines["app"], "kettles"),
        ("network", &machines["locust"], "locust"),
    ] {
        let text = machine["units"]["services"][name].as_str().unwrap();
        let started = text
            .lines()
            .find_map(|it| it.strip_prefix("ExecStart=/stand-in/"));
        let (_, words) = started.unwrap().split_once(" ").unwrap();
        // systemd requires that the program and all required units exist.
        let text = text.replace(&format!("/stand-in/{name}/bin/{name}"), "/bin/true");
        let folder = units.join(place);
        fs::create_dir_all(&folder).unwrap();
        let mut lines: Vec<_> = text.lines().collect();
        lines.retain(|it| !it.ends_with("=postgresql.service"));
        let file = folder.join(format!("{name}.service"));
        fs::write(&file, lines.join("\n")).unwrap();
        files.push(file);
        if name == "kettles" {
            let mut kettles = Command::new(env!("CARGO_BIN_EXE_kettles"));
            let words = words.replace("%d", home.0.path().to_str().unwrap());
            // The server parses the options, and then `--help` prevents a start.
            let output = kettles
                .args(words.split(' '))
                .arg("--help")
                .output()
                .unwrap();
            assert!(output.status.success(), "{words}: {output:?}");
        }
    }
    for file in files {
        verify(&[file]);
    }
    let unit = alone["units"]["services"]["kettles"].as_str().unwrap();
    for line in [
        "LimitNOFILE=21024",
        "LoadCredential=admin-token:/etc/token",
        "DynamicUser=true",
    ] {
        assert!(unit.lines().any(|it| it == line), "{line}: {unit}");
    }
    assert!(unit.contains("--admin-token %d/admin-token"));
    // PostgreSQL is enabled only on request.
    assert_eq!(alone["services"]["postgresql"], Value::Null);
    assert_eq!(machines["app"]["services"]["postgresql"]["enable"], true);
}

#[test]
fn promtool_accepts_the_prometheus_configuration() {
    let home = Home::new();
    let prometheus = &network(&home)["app"]["services"]["prometheus"];
    let rules = prometheus["ruleFiles"].as_array().unwrap();
    let rules: Vec<_> = rules
        .iter()
        .map(|it| home.real(it.as_str().unwrap()))
        .collect();
    // Combines the configuration as NixOS does.
    let config = json!({
        "global": prometheus["globalConfig"],
        "scrape_configs": prometheus["scrapeConfigs"],
        "rule_files": rules,
    });
    let file = home.0.path().join("prometheus.yml");
    fs::write(&file, config.to_string()).unwrap();
    promtool(&file);
    let rules = rules.first().unwrap();
    assert!(rules.exists(), "{rules:?}");
}

#[test]
fn prometheus_scrapes_each_process() {
    let home = Home::new();
    let monitoring = repository().join("nix/monitoring.nix");
    let more = format!("imports = [ {} ]; services.kettles", monitoring.display());
    let given = "{ enable = true; processes = 2; monitoring.enable = true; }";
    let machine = app_with(&home, &format!("{more} = {given};")).unwrap();
    let job = &machine["services"]["prometheus"]["scrapeConfigs"][0];
    let targets = &job["static_configs"][0]["targets"];
    assert_eq!(*targets, json!(["127.0.0.1:8081", "127.0.0.1:8082"]));
    let unit = machine["units"]["services"]["kettles"].as_str().unwrap();
    assert!(unit.contains("--processes 2 --own-port 8081"), "{unit}");
}

#[test]
fn compose_mounts_exist_and_the_server_accepts_its_command() {
    let rig = repository().join("rig");
    promtool(&rig.join("prometheus/prometheus.yml"));
    let compose = fs::read_to_string(rig.join("compose.yaml")).unwrap();
    let mut count = 0;
    for word in compose.split(&['"', ' ', '\n'][..]) {
        // Volumes are written as a path in the repository and its mount point.
        if let Some((ours, theirs)) = word.split_once(':')
            && ours.starts_with("./")
        {
            assert!(theirs.ends_with(":ro"), "{word}");
            assert!(rig.join(ours).exists(), "{word}");
            count += 1;
        }
    }
    assert_eq!(count, 5);
    let command = compose.lines().skip_while(|it| it.trim() != "- serve");
    let words = command.map_while(|it| it.trim().strip_prefix("- "));
    let words: Vec<_> = words.map(|it| it.replace("${DATABASE:-", "")).collect();
    assert_eq!(words.len(), 4);
    let mut kettles = Command::new(env!("CARGO_BIN_EXE_kettles"));
    let output = kettles.args(words).arg("--help").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn invalid_module_options_are_refused() {
    let home = Home::new();
    for (given, message) in [
        (
            "enable = true; port = 99999;",
            "services.kettles.port is no port",
        ),
        (
            "enable = true; prot = 1;",
            "there is no services.kettles.prot",
        ),
        (
            "enable = true; maxConnections = 0;",
            "services.kettles.maxConnections is no number above 0",
        ),
    ] {
        let error = app_with(&home, &format!("services.kettles = {{ {given} }};"));
        let error = error.unwrap_err();
        assert!(error.contains(message), "{error}");
    }
    let off = app_with(&home, "").unwrap();
    assert_eq!(off["units"]["services"], json!({}));
}
