//! Credentials of the service manager.

use std::fmt::Write as _;

use samovar_server::config::{Kind, OptionSpec, read};

use super::settings;

/// Every option with the path of a file or directory accepts `credential:NAME`.
#[test]
fn every_option_with_a_path_accepts_a_credential() {
    let paths = OptionSpec::all().filter(|spec| matches!(spec.kind, Kind::Path));
    let names: Vec<&str> = paths.map(|spec| spec.name).collect();
    assert!(names.contains(&"tls.key") && names.contains(&"access.users-file"));
    let mut file = "secret-key-files = [\"credential:secret-key-files\"]\n".to_owned();
    for name in &names {
        writeln!(file, "{name} = \"credential:{name}\"").unwrap();
    }
    // Some need these options.
    file += "bucket.url = \"s3://bucket\"\ndatabase.url = \"postgresql://host/samovar\"\n";
    let table = "[upstreams.nixos]\nurl = \"https://cache.nixos.org\"\n";
    writeln!(file, "{table}netrc-file = \"credential:netrc-file\"").unwrap();
    let settings = settings(&file).unwrap();
    let config = read(&settings, |name| {
        (name == "CREDENTIALS_DIRECTORY").then(|| "/run/credentials/samovar".to_owned())
    });
    let config = format!("{:?}", config.unwrap());
    for name in names.iter().chain(&["secret-key-files", "netrc-file"]) {
        let path = format!("\"/run/credentials/samovar/{name}\"");
        assert!(config.contains(&path), "{name}: {config}");
    }
    assert!(!config.contains("credential:"), "{config}");
}
