//! The number in `db/schema`.

use std::io::Read;
use std::path::Path;

use crate::error::{Operation, StoreError, Unavailable};

/// The schema this program understands: that of every Nix since 2.0.
pub(crate) const SCHEMA_UNDERSTOOD: u32 = 10;

/// What `db/schema` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Schema {
    /// A number.
    Number(u32),
    /// There is no such file. Nix writes it after the database, so a new store may lack it for a
    /// moment, and so do copies of the database alone.
    Absent,
    /// Something that is no number.
    Unreadable,
}

impl Schema {
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match self {
            Self::Number(SCHEMA_UNDERSTOOD) | Self::Absent => Ok(()),
            Self::Number(_) | Self::Unreadable => {
                Err(StoreError::Unavailable(Unavailable::SchemaUnknown))
            }
        }
    }
}

/// Reads `db/schema`.
pub(crate) fn read_schema(path: &Path) -> Result<Schema, StoreError> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Schema::Absent),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(StoreError::Unavailable(Unavailable::PermissionDenied));
        }
        Err(error) => return Err(StoreError::io(Operation::ReadDatabase, &error)),
    };
    let mut text = String::new();
    let read = file.take(64).read_to_string(&mut text);
    Ok(match (read, text.trim().parse()) {
        (Ok(_), Ok(number)) => Schema::Number(number),
        _ => Schema::Unreadable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(content: &str, expected: Schema) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("schema");
        std::fs::write(&path, content).unwrap();
        assert_eq!(read_schema(&path), Ok(expected));
    }

    #[test]
    fn numbers() {
        check("10", Schema::Number(10));
        check("10\n", Schema::Number(10));
        check("11", Schema::Number(11));
        check("", Schema::Unreadable);
        check("ten", Schema::Unreadable);
        assert_eq!(
            read_schema(Path::new("/nonexistent/schema")),
            Ok(Schema::Absent)
        );
    }
}
