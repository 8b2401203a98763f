//! Imports harmonia's configuration.
//!
//! # Source
//!
//! harmonia-cache 3.2, `config.rs`: options and defaults; unknown options are errors there.

use std::path::Path;

use super::error::{ConfigError, Origin};
use super::nearest::nearest;
use super::settings::{Setting, Settings, read};
use super::toml::{self, Value};

/// Pairs of options that take the same values: harmonia's name, and Samovar's.
const SAME: [(&str, &str); 5] = [
    ("workers", "workers"),
    ("priority", "priority"),
    ("sign_key_paths", "secret-key-files"),
    ("tls_cert_path", "tls.certificate"),
    ("tls_key_path", "tls.key"),
];

/// Options of harmonia that have no counterpart, and why Samovar needs none.
const NEEDLESS: [(&str, &str); 3] = [
    ("max_connection_rate", "connections are not limited by rate"),
    (
        "max_connections",
        "the limit of open files also limits connections",
    ),
    ("zstd", "the level is fixed"),
];

/// Option of harmonia that has NARs compressed with zstd for clients that accept it.
const COMPRESSION: &str = "enable_compression";

/// harmonia serves metrics and health at the address of the cache.
const ON_CACHE: &str = "# as in harmonia, /metrics and /health at the address of the cache\n\
    admin.on-cache = true\n";

/// Options that together locate the store.
const STORE: [&str; 3] = ["virtual_nix_store", "real_nix_store", "nix_db_path"];

/// Translates harmonia's configuration file at `path` into one of Samovar.
///
/// # Errors
///
/// [`ConfigError`] if it cannot be read or is not valid for harmonia.
pub fn import_harmonia(path: &Path) -> Result<String, ConfigError> {
    translate(path, &read(path)?)
}

fn translate(path: &Path, text: &str) -> Result<String, ConfigError> {
    let leaves = toml::leaves(path, text, |_| false)?;
    let mut out = String::new();
    let mut stores = [const { None }; STORE.len()];
    for leaf in leaves {
        let Some(value) = leaf.value else { continue };
        let name = &*leaf.name;
        let origin = Origin::File(path.into(), leaf.line);
        if let Some((_, ours)) = SAME.iter().find(|(theirs, _)| *theirs == name) {
            check(name, ours, &value, &origin)?;
            out.push_str(&format!("{ours} = {value}\n"));
        } else if let Some((_, why)) = NEEDLESS.iter().find(|(theirs, _)| *theirs == name) {
            out.push_str(&format!("# {name}: not needed; {why}\n"));
        } else if let Some(at) = STORE.iter().position(|theirs| *theirs == name) {
            stores[at] = Some(expect_path(name, value, origin)?);
        } else if name == COMPRESSION {
            match value {
                Value::Switch(true) => out.push_str("compression = \"zstd\"\n"),
                Value::Switch(false) => out.push_str("compression = \"none\"\n"),
                other => return Err(not(name, "true or false", &other, origin)),
            }
        } else if name == "bind" {
            check(name, "listen", &value, &origin)?;
            let bind = expect(name, value, origin, "a text", |_| true)?;
            out.push_str(&format!("listen = [{}]\n", Value::Text(bind)));
        } else {
            let known = SAME.iter().chain(&NEEDLESS).map(|(theirs, _)| *theirs);
            let known = known.chain(STORE).chain(["bind", COMPRESSION]);
            return Err(ConfigError::Unknown {
                origin,
                name: name.to_owned(),
                nearest: nearest(name, known.collect::<Vec<_>>()).map(str::to_owned),
                instead: None,
            });
        }
    }
    out.push_str(ON_CACHE);
    if let Some(store) = store(stores) {
        out.push_str(&format!("store = {}\n", Value::Text(store)));
    }
    Ok(out)
}

/// Checks a value of harmonia's option `theirs` by the rules of Samovar's option `ours`.
fn check(theirs: &str, ours: &str, value: &Value, origin: &Origin) -> Result<(), ConfigError> {
    let mut alone = Settings::default();
    let setting = Setting {
        value: value.clone(),
        origin: origin.clone(),
    };
    alone.insert(ours.to_owned(), setting);
    // Ignore other errors: the options that this one requires may follow later in the file.
    if let Err(mut error) = super::read(&alone, |_| None)
        && let ConfigError::Value { option, .. } = &mut error
    {
        theirs.clone_into(option);
        return Err(error);
    }
    Ok(())
}

/// Checks a path of the store. The state directory is derived from the path of the database.
fn expect_path(name: &str, value: Value, origin: Origin) -> Result<String, ConfigError> {
    match name {
        "nix_db_path" => {
            let expected = "an absolute path that ends with /db/db.sqlite";
            expect(name, value, origin, expected, |path| {
                path.is_absolute() && path.ends_with("db/db.sqlite")
            })
        }
        _ => expect(name, value, origin, "an absolute path", Path::is_absolute),
    }
}

/// Returns the text of a value if it satisfies `is_valid`.
fn expect(
    name: &str,
    value: Value,
    origin: Origin,
    expected: &str,
    is_valid: impl FnOnce(&Path) -> bool,
) -> Result<String, ConfigError> {
    match value {
        Value::Text(text) if is_valid(Path::new(&text)) => Ok(text),
        other => Err(not(name, expected, &other, origin)),
    }
}

fn not(name: &str, expected: &str, found: &Value, origin: Origin) -> ConfigError {
    ConfigError::Value {
        origin,
        option: name.to_owned(),
        expected: expected.to_owned(),
        found: found.to_string(),
    }
}

/// Builds the store URI; `None` for the default store.
fn store([virtual_dir, real_dir, database]: [Option<String>; STORE.len()]) -> Option<String> {
    // The database is `db/db.sqlite` below the state directory.
    let state = database.and_then(|path| {
        let state = Path::new(&path).parent()?.parent()?;
        Some(state.to_str()?.to_owned())
    });
    let parameters = [("store", virtual_dir), ("real", real_dir), ("state", state)];
    let parameters = parameters.into_iter();
    let given = parameters.filter_map(|(name, value)| Some(format!("{name}={}", encoded(&value?))));
    let given: Vec<String> = given.collect();
    (!given.is_empty()).then(|| format!("local?{}", given.join("&")))
}

/// Encodes a path as a parameter of a URI.
fn encoded(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let bytes = path.bytes().map(|byte| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_configuration_is_translated() {
        let theirs = r#"
bind = "unix:/run/harmonia/socket"
workers = 8
max_connection_rate = 256
enable_compression = true
priority = 50
virtual_nix_store = "/nix/store"
real_nix_store = "/mnt/store"
nix_db_path = "/mnt/var/nix/db/db.sqlite"
sign_key_paths = ["/a", "/b"]
tls_cert_path = "/c"
tls_key_path = "/k"
[zstd]
level = 3
"#;
        let ours = translate(Path::new("h.toml"), theirs).expect("is understood");
        assert_eq!(
            ours,
            "listen = [\"unix:/run/harmonia/socket\"]\nworkers = 8\n# max_connection_rate: not \
             needed; connections are not limited by rate\ncompression = \"zstd\"\npriority = \
             50\nsecret-key-files = [\"/a\", \"/b\"]\n\
             tls.certificate = \"/c\"\ntls.key = \"/k\"\n# zstd: not needed; \
             the level is fixed\n# as in harmonia, /metrics and /health at the address of \
             the cache\nadmin.on-cache = true\nstore = \
             \"local?store=/nix/store&real=/mnt/store&state=/mnt/var/nix\"\n"
        );
        let mut settings = super::super::Settings::default();
        let added = settings.add_text(Path::new("ours"), &ours);
        added.expect("it is one of ours");
        super::super::read(&settings, |_| None).expect("it means something");
    }

    #[test]
    fn options_unknown_to_harmonia_are_refused() {
        let refused = |text: &str| {
            let error = translate(Path::new("h.toml"), text).expect_err("is refused");
            error.to_string()
        };
        assert_eq!(
            refused("\nworker = 1"),
            "h.toml:2: unknown option `worker`; did you mean `workers`?"
        );
        assert_eq!(
            refused("bind = 5000"),
            "h.toml:1: bind must be a list of HOST:PORT, [ADDRESS]:PORT, :PORT or paths of unix \
             sockets, got 5000"
        );
    }

    #[test]
    fn bad_values_are_named_by_their_key_and_line() {
        for (text, line, key, found) in [
            ("\nworkers = \"eight\"", 2, "workers", "\"eight\""),
            ("workers = 0", 1, "workers", "0"),
            ("priority = -1", 1, "priority", "-1"),
            ("\n\nbind = \"\"", 3, "bind", "\"\""),
            ("enable_compression = 1", 1, "enable_compression", "1"),
            ("sign_key_paths = [1]", 1, "sign_key_paths", "[1]"),
            ("tls_key_path = true", 1, "tls_key_path", "true"),
            ("real_nix_store = \"mnt\"", 1, "real_nix_store", "\"mnt\""),
            (
                "nix_db_path = \"/db.sqlite\"",
                1,
                "nix_db_path",
                "\"/db.sqlite\"",
            ),
        ] {
            let error = translate(Path::new("h.toml"), text).expect_err(text);
            let error = error.to_string();
            let (start, end) = (
                format!("h.toml:{line}: {key} must be "),
                format!(", got {found}"),
            );
            assert!(
                error.starts_with(&start) && error.ends_with(&end),
                "{error}"
            );
        }
    }

    #[test]
    fn paths_are_percent_encoded() {
        let theirs = "real_nix_store = \"/a b&state=/c%2f\"";
        let ours = translate(Path::new("h.toml"), theirs).expect("is understood");
        assert!(
            ours.ends_with("\nstore = \"local?real=/a%20b%26state%3D/c%252f\"\n"),
            "{ours}"
        );
    }
}
