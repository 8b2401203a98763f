//! The files in `nix/` are valid without nixpkgs: they parse; the modules evaluate with a stub of
//! nixpkgs' library, to the same result as with nixpkgs' own; systemd accepts the units, nginx and
//! `samovar serve` accept their configuration.
//!
//! With `NIXPKGS=DIR`, a checkout of nixpkgs, its library and all of NixOS's modules are used, too.
//! `NIXPKGS=DIR UPDATE=1` writes `nix/stand-in/module.json` with its library.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../nix/stand-in/home.rs"]
mod home;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use home::{Home, repository, verify};
use serde_json::{Value, json};
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
    assert_eq!(count, 19);
}

/// Returns the results of `facts.nix` as `module.json` has them.
fn pretty(facts: &Value) -> String {
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
        let real = pretty(&real.unwrap());
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&golden, &real).unwrap();
        }
        assert_eq!(real, fs::read_to_string(&golden).unwrap());
    }
    let made = home.evaluate(&facts("")).unwrap();
    assert_eq!(pretty(&made), fs::read_to_string(golden).unwrap());
}

#[test]
fn newer_versions_of_nix_evaluate_the_same() {
    let golden = fs::read_to_string(repository().join("nix/stand-in/module.json")).unwrap();
    for nix in Nix::newer() {
        assert_eq!(pretty(&newer(&nix, &facts(""))), golden, "{nix:?}");
    }
}

/// Evaluates an expression strictly with a newer version of Nix.
fn newer(nix: &Nix, expression: &str) -> Value {
    let home = Home::new();
    let mut command = nix.command("nix-instantiate", home.0.path());
    command.env("NIX_STATE_DIR", home.0.path());
    command.args(["--eval", "--strict", "--json", "--read-write-mode"]);
    command.arg("--store").arg(home.0.path());
    let made = output(command.args(["-E", expression]));
    serde_json::from_str(&made).unwrap()
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
    assert_eq!(made["ports"], json!([5007]));
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
    assert_eq!(made["ports"], json!([]));
    assert_eq!(made["nginx"], Value::Null);
    assert_eq!(value(&made["socket"], "ListenStream"), "[::]:5000");
    assert!(!made["service"].as_str().unwrap().contains("LoadCredential"));
    let listen = r#"[ "127.0.0.1:5001" ":5002" "*:5003" "unix:/run/a" "/run/b" ]"#;
    let given = format!("{{ enable = true; settings.listen = {listen}; }}");
    let made = evaluate(&home, "module.nix", &given).unwrap();
    let socket = made["socket"].as_str().unwrap();
    let streams: Vec<_> = socket
        .lines()
        .filter_map(|line| line.strip_prefix("ListenStream="))
        .collect();
    assert_eq!(
        streams,
        ["127.0.0.1:5001", "5002", "5003", "/run/a", "/run/b"]
    );
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
            "{ enable = true; settings.listen = [ \":5000\" ]; openFirewall = true; }",
            "set services.samovar.address and port instead",
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

/// Returns `NIXPKGS`, the directory of a checkout of nixpkgs with NixOS.
#[expect(clippy::print_stderr, reason = "it shows what a test leaves out")]
fn checkout() -> Option<String> {
    let nixpkgs = std::env::var("NIXPKGS").ok();
    let nixpkgs = nixpkgs.filter(|dir| Path::new(dir).join("nixos/lib/eval-config.nix").exists());
    if nixpkgs.is_none() {
        eprintln!("NOT TESTED: whole NixOS systems; NIXPKGS names no checkout of nixpkgs");
    }
    nixpkgs
}

/// Returns an expression for an attribute of `nix/tests/nixos.nix`.
fn nixos(nixpkgs: &str, attribute: &str) -> String {
    let file = repository().join("nix/tests/nixos.nix");
    let file = file.display();
    format!("(import {file} {{ nixpkgs = {nixpkgs}; }}).{attribute}")
}

/// Returns the lines of one section of a unit.
fn section<'a>(unit: &'a Value, name: &str) -> Vec<&'a str> {
    let heading = format!("[{name}]");
    let lines = unit.as_str().unwrap().lines();
    let lines = lines.skip_while(|line| *line != heading).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines.filter(|line| !line.is_empty()).collect()
}

/// The modules fit into whole systems, with all modules of NixOS.
#[test]
fn nixos_systems_evaluate() {
    let Some(nixpkgs) = checkout() else { return };
    let home = Home::new();
    let systems = home.evaluate(&nixos(&nixpkgs, "systems")).unwrap();
    for (name, system) in systems.as_object().unwrap() {
        assert_eq!(system["warnings"], json!([]), "{name}");
        assert_eq!(system["users"], json!([]), "{name}");
        let toplevel = system["toplevel"].as_str().unwrap();
        assert!(toplevel.contains("nixos-system"), "{name}: {toplevel}");
    }
    let nix_serve = &systems["nix-serve"];
    assert_eq!(nix_serve["ports"], json!([5001]));
    assert_eq!(nix_serve["allowed-users"], json!(["nix-serve"]));
    let load = value(&nix_serve["units"]["nix-serve.service"], "LoadCredential");
    assert_eq!(load, "NIX_SECRET_KEY_FILE:/var/keys/cache.secret");
    let script = nix_serve["scripts"]["nix-serve"].as_str().unwrap();
    let start = "exec /stand-in/samovar/bin/nix-serve --listen 127.0.0.1:5001 --priority 30";
    assert!(script.lines().any(|line| line == start), "{script}");

    let replaced = systems["nix-serve-replaced"]["scripts"]["nix-serve"]
        .as_str()
        .unwrap();
    let start = "exec /stand-in/samovar/bin/nix-serve --listen 0.0.0.0:5000";
    assert!(
        replaced.lines().any(|line| line.trim_end() == start),
        "{replaced}"
    );
    assert_eq!(systems["disabled"]["units"], json!({}));
    assert_eq!(systems["all-options"]["ports"], json!([5007]));
    let both = &systems["beside-nix-serve"];
    assert_eq!(both["allowed-users"], json!(["nix-serve", "samovar"]));
    assert_eq!(systems["app"]["ports"], json!([3000, 8080, 9090]));
    assert_eq!(systems["locust"]["ports"], json!([8089]));

    // The units are those of the stand-in, but for the path of the configuration. NixOS adds the
    // environment.
    let made = evaluate(&home, "module.nix", "{ enable = true; }").unwrap();
    let units = &systems["defaults"]["units"];
    for (kind, name) in [("service", "Service"), ("socket", "Socket")] {
        let mut real = section(&units[format!("samovar.{kind}")], name);
        real.retain(|line| !line.starts_with("Environment=") && !line.starts_with("ExecStart="));
        let mut stand_in = section(&made[kind], name);
        stand_in.retain(|line| !line.starts_with("ExecStart="));
        real.sort_unstable();
        stand_in.sort_unstable();
        assert_eq!(real, stand_in);
    }
    for nix in Nix::newer() {
        let made = newer(&nix, &nixos(&nixpkgs, "systems"));
        assert_eq!(made, systems, "{nix:?}");
    }
}

/// Wrong and contradictory values end the evaluation with an error that names the option.
#[test]
fn nixos_reports_invalid_options() {
    let Some(nixpkgs) = checkout() else { return };
    let home = Home::new();
    let typed = "is not of type";
    for (given, place, reason) in [
        ("port = 99999;", "port'", typed),
        ("prot = 5000;", "prot'", "does not exist"),
        ("secretKeyFiles = \"/key\";", "secretKeyFiles'", typed),
        ("secretKeyFiles = [ ./key ];", "secretKeyFiles.", typed),
        ("settings.priority = null;", "settings.priority'", typed),
        (
            "settings.listen = [ \"*:5000\" ]; openFirewall = true;",
            "settings.listen: ",
            "set services.samovar.address",
        ),
        ("tls.keyFile = \"/k\";", "tls: ", "set both"),
        (
            "tls = { keyFile = \"/k\"; certificateFile = \"/c\"; }; settings.tls.key = \"/o\";",
            "settings.tls.key'",
            "has conflicting definition values",
        ),
        (
            "tls = { keyFile = \"/k\"; certificateFile = \"/c\"; }; nginx.hostName = \"name\";",
            "nginx.hostName: ",
            "nginx proxies without TLS",
        ),
        (
            "uploads.retention = \"90d\";",
            "uploads: ",
            "set enable as well",
        ),
    ] {
        let given = format!("build {{ services.samovar = {{ enable = true; {given} }}; }}");
        let error = home.evaluate(&nixos(&nixpkgs, &given)).unwrap_err();
        let place = format!("services.samovar.{place}");
        assert!(error.contains(&place), "{given}: {error}");
        assert!(error.contains(reason), "{given}: {error}");
    }
    let both = "build { services.samovar.enable = true; services.nix-serve.enable = true; }";
    let error = home.evaluate(&nixos(&nixpkgs, both)).unwrap_err();
    let message = "services.samovar.port: services.nix-serve listens on port 5000 too";
    assert!(error.contains(message), "{error}");
}

/// The manual needs no package to show a default, and packages name their main program.
#[test]
fn nixos_documents_the_options() {
    let Some(nixpkgs) = checkout() else { return };
    let home = Home::new();
    let options = home.evaluate(&nixos(&nixpkgs, "options")).unwrap();
    for name in ["samovar", "kettles", "locust"] {
        let package = format!("services.{name}.package");
        assert_eq!(options[package], format!("pkgs.{name}"));
    }
    let packages = home.evaluate(&nixos(&nixpkgs, "packages")).unwrap();
    for (name, program) in [("samovar", "nix-serve"), ("kettles", "kettles")] {
        let package = &packages[name];
        assert_eq!(package["pname"], name);
        assert_eq!(package["meta"]["mainProgram"], program);
        assert_eq!(package["meta"]["license"]["spdxId"], "Apache-2.0");
    }
}

/// systemd, nginx and the server accept what NixOS writes for them.
#[test]
fn nixos_configures_programs() {
    let Some(nixpkgs) = checkout() else { return };
    let home = Home::new();
    let dir = home.0.path();
    let systems = home.evaluate(&nixos(&nixpkgs, "systems")).unwrap();
    credentials(&home);
    let init = home.command("nix-store").arg("--init").output().unwrap();
    assert!(init.status.success(), "{init:?}");
    for name in ["defaults", "all-options", "behind-nginx"] {
        let file = home.real(systems[name]["settings"].as_str().unwrap());
        let mut check = home.command(env!("CARGO_BIN_EXE_samovar"));
        check.env("CREDENTIALS_DIRECTORY", dir.join("credentials"));
        check.args(["serve", "--check-config", "--config"]);
        let said = output(check.arg(file));
        assert_eq!(said.contains("priority = 33"), name == "all-options");
    }
    assert_nginx_accepts(&home, systems["behind-nginx"]["nginx"].as_str().unwrap());

    for (name, system) in systems.as_object().unwrap() {
        let units = dir.join(name);
        fs::create_dir(&units).unwrap();
        let mut files = Vec::new();
        for (unit, text) in system["units"].as_object().unwrap() {
            files.push(units.join(unit));
            fs::write(files.last().unwrap(), here(text.as_str().unwrap())).unwrap();
        }
        if !files.is_empty() && !verify(&files) {
            return;
        }
    }
    let unit = dir.join("all-options/samovar.service");
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager", "--threshold"]);
    output(security.arg(EXPOSURE_MAX).arg(unit));
}

/// Returns a unit without the programs and the other units of a NixOS system.
fn here(unit: &str) -> String {
    let mut text = String::new();
    for line in unit
        .lines()
        .filter(|it| *it != "Requires=postgresql.service")
    {
        match line.split_once("=/stand-in/") {
            Some((name, command)) if name.starts_with("Exec") => {
                let arguments = command.split_once(' ').unwrap_or_default().1;
                text.push_str(&format!("{name}=/bin/true {arguments}\n"));
            }
            _ => text.push_str(&format!("{line}\n")),
        }
    }
    text
}

#[track_caller]
fn assert_nginx_accepts(home: &Home, config: &str) {
    let dir = home.0.path();
    // The location of the cache does not include NixOS's headers for proxies.
    assert_eq!(config.matches("recommended-proxy-headers").count(), 1);
    // Directories of a NixOS system, and ports that other tests do not use.
    let lines = config.lines().map(str::trim_start);
    let lines = lines.filter(|line| !line.starts_with("listen [::"));
    let lines: Vec<_> = lines.filter(|line| !line.contains("/stand-in/")).collect();
    let mut text = lines.join("\n");
    for port in [80, 443] {
        let address = format!("127.0.0.1:{}", testkit::free_port());
        text = text.replace(
            &format!("listen 0.0.0.0:{port} "),
            &format!("listen {address} "),
        );
    }
    for (from, to) in [
        ("/run/nginx", ""),
        ("/var/keys/cache.pem", "credentials/certificate"),
        ("/var/keys/cache.key", "credentials/tls-key"),
    ] {
        assert!(text.contains(from), "{text}");
        text = text.replace(from, dir.join(to).to_str().unwrap());
    }
    let file = dir.join("nginx.conf");
    fs::write(&file, text).unwrap();
    let mut nginx = Command::new("nginx");
    let tested = nginx
        .arg("-t")
        .arg("-p")
        .arg(dir)
        .arg("-c")
        .arg(file)
        .output();
    let tested = tested.expect("there is nginx: run `make setup-test`");
    assert!(tested.status.success(), "{tested:?}");
}

/// Writes the credentials of the system `all-options`.
fn credentials(home: &Home) {
    let dir = home.0.path().join("credentials");
    fs::create_dir(&dir).unwrap();
    for name in ["key0", "key1"] {
        let mut generate = home.command("nix-store");
        generate.args(["--store", "dummy://", "--generate-binary-cache-key", name]);
        output(generate.arg(dir.join(name)).arg(dir.join("public")));
    }
    let made = rcgen::generate_simple_self_signed(vec!["cache.example.org".to_owned()]).unwrap();
    fs::write(dir.join("certificate"), made.cert.pem()).unwrap();
    fs::write(dir.join("tls-key"), made.signing_key.serialize_pem()).unwrap();
    let mut password = home.command(env!("CARGO_BIN_EXE_samovar"));
    fs::write(dir.join("password"), "secret").unwrap();
    password.stdin(fs::File::open(dir.join("password")).unwrap());
    let users = output(password.args(["password", "alice"]));
    fs::write(dir.join("users"), &users).unwrap();
    fs::write(dir.join("team-a-users"), &users).unwrap();
    let mut token = home.command(env!("CARGO_BIN_EXE_samovar"));
    fs::write(dir.join("tokens"), output(token.args(["token", "ci"]))).unwrap();
    for name in ["tokens", "users", "team-a-users", "tls-key"] {
        fs::set_permissions(dir.join(name), Permissions::from_mode(0o600)).unwrap();
    }
}
