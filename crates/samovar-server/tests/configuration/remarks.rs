//! Warnings about options that restrict less than they seem to.

use super::configuration;

fn remarks(file: &str) -> Vec<String> {
    configuration(file).unwrap().remarks
}

#[test]
fn user_ids_without_a_unix_socket_are_remarked() {
    let found = remarks("listen = [\"127.0.0.1:0\"]\naccess.uids = [1000]\n");
    assert!(
        found[0].starts_with("access.uids and access.gids have no effect"),
        "{found:?}"
    );
    let with_socket = "listen = [\"127.0.0.1:0\", \"/run/samovar.sock\"]\naccess.uids = [1000]\n";
    assert_eq!(remarks(with_socket), [] as [String; 0]);
    // The service manager may pass a Unix socket.
    assert_eq!(remarks("access.uids = [1000]\n"), [] as [String; 0]);
}

#[test]
fn client_authorities_that_restrict_nothing_are_remarked() {
    let tls = "tls = { certificate = \"/c\", key = \"/k\", client-authorities = \"/a\" }\n";
    let found = remarks(tls);
    assert!(
        found[0].starts_with("tls.client-authorities restricts no access"),
        "{found:?}"
    );
    let with_rule = format!("{tls}access.certificates.any = true\n");
    assert_eq!(remarks(&with_rule), [] as [String; 0]);
    let required = tls.replace(" }", ", client-certificates = \"required\" }");
    assert_eq!(remarks(&required), [] as [String; 0]);
}

#[test]
fn access_options_that_restrict_nothing_are_remarked() {
    for option in ["refuse-with = \"404\"", "trusted-proxies = [\"127.0.0.1\"]"] {
        let found = remarks(&format!("access.{option}\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(" restricts nothing"), "{found:?}");
        let with_rule = format!("access.{option}\naccess.networks = [\"192.0.2.0/24\"]\n");
        assert_eq!(remarks(&with_rule), [] as [String; 0]);
    }
    let found = remarks("access.networks = [\"10.1.2.3/8\", \"10.1.2.3\"]\n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("\"10.0.0.0/8\""), "{found:?}");
}

#[test]
fn an_admin_listener_on_all_interfaces_is_remarked() {
    for address in ["0.0.0.0:9180", "[::]:9180"] {
        let found = remarks(&format!("admin.listen = [{address:?}]\n"));
        assert_eq!(found.len(), 1, "{address}: {found:?}");
        assert!(found[0].starts_with("admin.listen is open"), "{found:?}");
    }
    assert_eq!(
        remarks("admin.listen = [\"192.0.2.1:9180\"]\n"),
        [] as [String; 0]
    );
}
