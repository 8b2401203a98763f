//! Compares the addresses in the service's socket unit with the addresses in the configuration.
//!
//! systemd binds the sockets of a socket unit. A server whose option `listen` names other addresses
//! does not start.

use std::path::Path;
use std::process::Command;

use samovar_server::checkup::Findings;
use samovar_server::config::Configuration;
use samovar_server::listener::ListenSpec;

use crate::credential::without_token;

const SUBJECT: &str = "socket unit";

/// Socket unit of the service that the Debian package and the NixOS module install.
const UNIT: &str = "samovar.socket";

/// This directory exists if systemd manages the services, see `sd_booted(3)`.
const SYSTEMD: &str = "/run/systemd/system";

/// Checks the socket unit of the service. Without `listen`, `config` gets the addresses of the
/// unit. Adds no finding if systemd does not run or the unit is not active.
pub(super) fn examine(config: &mut Configuration, findings: &mut Findings) {
    if !Path::new(SYSTEMD).exists() {
        return;
    }
    let mut show = Command::new("systemctl");
    let shown = without_token(&mut show)
        .args(["show", "--property=ActiveState,Listen", UNIT])
        .output();
    let text = shown.map(|shown| String::from_utf8_lossy(&shown.stdout).into_owned());
    let bound = addresses(&text.unwrap_or_default());
    if !bound.is_empty() {
        compare(bound, config, findings);
    }
}

/// Returns the stream sockets of an active unit, from the output of `systemctl show`.
fn addresses(shown: &str) -> Vec<ListenSpec> {
    if !shown.lines().any(|line| line == "ActiveState=active") {
        return Vec::new();
    }
    let values = shown
        .lines()
        .filter_map(|line| line.strip_prefix("Listen=")?.strip_suffix(" (Stream)"));
    values
        .filter_map(|value| ListenSpec::parse_strict(value.as_ref()))
        .collect()
}

fn compare(bound: Vec<ListenSpec>, config: &mut Configuration, findings: &mut Findings) {
    let named = texts(&config.listeners);
    if !config.listen_given {
        findings.ok(SUBJECT, format!("{UNIT} listens on {}", texts(&bound)));
        config.listeners = bound;
        return;
    }
    let is_named = |one: &&ListenSpec| config.listeners.iter().any(|spec| spec.covers(one));
    let others: Vec<ListenSpec> = bound.iter().filter(|one| !is_named(one)).cloned().collect();
    let missing = config.listeners.iter();
    let missing = missing.filter(|spec| !bound.iter().any(|one| spec.covers(one)));
    let missing: Vec<ListenSpec> = missing.cloned().collect();
    if !others.is_empty() {
        findings.error(
            SUBJECT,
            format!(
                "{UNIT} listens on {}, but the option listen names {named}: the service does not \
                 start",
                texts(&others)
            ),
            format!(
                "systemctl edit {UNIT}, with ListenStream= and a line ListenStream=ADDRESS for \
                 each address, then systemctl restart {UNIT}; or remove the option listen"
            ),
        );
    } else if !missing.is_empty() {
        findings.warning(
            SUBJECT,
            format!(
                "{UNIT} does not listen on {}, which listen names",
                texts(&missing)
            ),
            format!("systemctl edit {UNIT}, and add the addresses with ListenStream="),
        );
    } else {
        findings.ok(
            SUBJECT,
            format!("{UNIT} listens on {named}, as listen names"),
        );
    }
}

fn texts(addresses: &[ListenSpec]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use samovar_server::checkup::Severity;

    use super::*;

    /// Output of systemd 252 for a unit with three sockets.
    const SHOWN: &str = "Listen=[::]:5000 (Stream)\nListen=127.0.0.1:5005 (Stream)\n\
                         Listen=/run/samovar/socket (Stream)\nListen=127.0.0.1:5006 (Datagram)\n\
                         ActiveState=active\n";

    #[test]
    fn stream_sockets_of_an_active_unit() {
        let found = texts(&addresses(SHOWN));
        assert_eq!(found, "[::]:5000, 127.0.0.1:5005, /run/samovar/socket");
        // The unit does not exist.
        assert_eq!(addresses("ActiveState=inactive\n"), []);
        assert_eq!(addresses(&SHOWN.replace("=active", "=inactive")), []);
        assert_eq!(addresses(""), []);
    }

    #[track_caller]
    fn check(unit: &[&str], listen: &[&str], severity: Severity, part: &str) -> Configuration {
        let specs = |all: &[&str]| -> Vec<ListenSpec> {
            let parsed = all
                .iter()
                .map(|text| ListenSpec::parse_strict(text.as_ref()));
            parsed.collect::<Option<_>>().expect("addresses")
        };
        let mut config = Configuration::default();
        if !listen.is_empty() {
            config.listen_given = true;
            config.listeners = specs(listen);
        }
        let mut findings = Findings::default();
        compare(specs(unit), &mut config, &mut findings);
        let [finding] = &findings.0[..] else {
            unreachable!("{findings:?}");
        };
        assert_eq!(finding.severity, severity, "{finding:?}");
        assert!(finding.text.contains(part), "{finding:?}");
        config
    }

    #[test]
    fn the_sockets_are_compared_with_listen() {
        let config = check(&["127.0.0.1:5005"], &[], Severity::Ok, "on 127.0.0.1:5005");
        assert_eq!(texts(&config.listeners), "127.0.0.1:5005");
        let local = "127.0.0.1:5000";
        check(&[local], &[local], Severity::Ok, "as listen names");
        check(
            &["[::]:5000"],
            &[local],
            Severity::Error,
            "on [::]:5000, but",
        );
        check(
            &[local, "/run/a"],
            &[local],
            Severity::Error,
            "on /run/a, but",
        );
        let two = [local, "/run/a"];
        check(&[local], &two, Severity::Warning, "not listen on /run/a");
    }
}
