//! Build IDs, and the URLs of debug information.
//!
//! # Source
//!
//! `debuginfod(8)` of elfutils, section "WEBAPI". Nix 2.8.0, `src/libstore/binary-cache-store.cc`:
//! it writes `debuginfo/<build ID>.debug`, and later versions `debuginfo/<build ID>`.

use samovar_metrics::Class;

use super::Route;

/// Maximum length of a build ID in hexadecimal digits: libdebuginfod accepts no longer ones.
const LEN_MAX: usize = 128;

/// Minimum length of a build ID in hexadecimal digits: the file is in a directory that has the
/// first two digits as its name.
const LEN_MIN: usize = 4;

/// The build ID of a program or library: lower-case hexadecimal digits of whole bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BuildId(Box<str>);

/// What a debuginfod client requests of a build ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Artifact {
    /// The file with the debug information.
    DebugInfo,
    /// The program or library itself.
    Executable,
    /// The source file with this absolute path, by its names.
    Source(Vec<Vec<u8>>),
}

impl BuildId {
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let has_len = (LEN_MIN..=LEN_MAX).contains(&text.len()) && text.len().is_multiple_of(2);
        let text = std::str::from_utf8(text).ok()?;
        (has_len && text.as_bytes().iter().all(is_digit)).then(|| Self(text.into()))
    }

    /// Returns the build ID of a file in a directory of `lib/debug/.build-id`; `None` if no such
    /// file has these names.
    pub(crate) fn of_names(directory: &[u8], file: &[u8]) -> Option<Self> {
        let rest = file.strip_suffix(b".debug")?;
        (directory.len() == 2)
            .then(|| Self::parse(&[directory, rest].concat()))
            .flatten()
    }

    /// Returns the names of a file of this build ID in a store path with debug information.
    /// `extension`: `debug` for the debug information.
    pub(crate) fn names(&self, extension: &str) -> Vec<Vec<u8>> {
        let (directory, rest) = self.0.split_at(2);
        let file = format!("{rest}.{extension}");
        let names = ["lib", "debug", ".build-id", directory, &file];
        names.map(|name| name.as_bytes().to_vec()).into()
    }
}

/// Parses a decoded path without `debuginfo/`.
pub(super) fn of_index(name: &[u8]) -> Route {
    Route::DebugInfo(BuildId::parse(name.strip_suffix(b".debug").unwrap_or(name)))
}

/// Parses a decoded path without `buildid/`.
pub(super) fn of_artifact(path: &[u8]) -> Route {
    let unknown = Route::Unknown(Class::DebugInfo);
    let mut parts = path.splitn(2, |byte| *byte == b'/');
    let (Some(id), Some(rest)) = (parts.next().and_then(BuildId::parse), parts.next()) else {
        return unknown;
    };
    let artifact = match rest {
        b"debuginfo" => Artifact::DebugInfo,
        b"executable" => Artifact::Executable,
        _ => match rest.strip_prefix(b"source/") {
            // No file has such a name.
            Some(path) if path.contains(&0) => return unknown,
            Some(path) => Artifact::Source(names_of(path)),
            None => return unknown,
        },
    };
    Route::Artifact(id, artifact)
}

/// Returns the names of an absolute path, without `.` and `..`. Clients send paths as compilers
/// have recorded them.
fn names_of(path: &[u8]) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name.to_vec()),
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0ee8e3cb47aa3c3b73a7311408221982beb4da62";

    #[track_caller]
    fn check(url: &str, expected: Option<Artifact>) {
        let route = Route::of(url.replace("{ID}", ID).as_bytes(), None);
        let expected = match expected {
            Some(artifact) => Route::Artifact(BuildId(ID.into()), artifact),
            None => Route::Unknown(Class::DebugInfo),
        };
        assert_eq!(route, expected, "{url}");
    }

    #[test]
    fn urls_of_debuginfod_clients() {
        let source = |names: &[&str]| {
            let names = names.iter().map(|name| name.as_bytes().to_vec());
            Some(Artifact::Source(names.collect()))
        };
        check("/buildid/{ID}/debuginfo", Some(Artifact::DebugInfo));
        check("/buildid/{ID}/executable", Some(Artifact::Executable));
        check("/buildid/{ID}/source/a/b%2B.c", source(&["a", "b+.c"]));
        check("/buildid/{ID}/source//a/./x/../b.c", source(&["a", "b.c"]));
        check("/buildid/{ID}/source/../../b.c", source(&["b.c"]));
        check("/buildid/{ID}/source/", source(&[]));
        for unknown in [
            "/buildid/",
            "/buildid/{ID}",
            "/buildid/{ID}/",
            "/buildid/{ID}/debuginfo/",
            "/buildid/{ID}/source",
            "/buildid/{ID}/section/.gdb_index",
            "/buildid/{ID}0/debuginfo",
            "/buildid/0EE8E3CB/debuginfo",
            "/buildid/0e/debuginfo",
            "/buildid/../debuginfo",
        ] {
            check(unknown, None);
        }
    }

    #[test]
    fn lengths_of_build_ids() {
        for (len, is_one) in [(2, false), (4, true), (5, false), (128, true), (130, false)] {
            let id = BuildId::parse("0".repeat(len).as_bytes());
            assert_eq!(id.is_some(), is_one, "{len}");
        }
    }

    #[test]
    fn names_of_files_are_those_of_the_build_id() {
        let id = BuildId(ID.into());
        let names = id.names("debug");
        let names: Vec<_> = names
            .iter()
            .map(|name| String::from_utf8_lossy(name))
            .collect();
        let expected = "lib/debug/.build-id/0e/e8e3cb47aa3c3b73a7311408221982beb4da62.debug";
        assert_eq!(names.join("/"), expected);
        let [.., directory, file] = &id.names("debug")[..] else {
            unreachable!("five names");
        };
        assert_eq!(BuildId::of_names(directory, file), Some(id.clone()));
        assert_eq!(BuildId::of_names(b"0e", b"e8.executable"), None);
        assert_eq!(BuildId::of_names(b"0ee8", b"e3cb.debug"), None);
        assert_eq!(BuildId::of_names(b"0e", b".debug"), None);
    }
}
