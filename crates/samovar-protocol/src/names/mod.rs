//! The names in URLs: uploaded files, pins and their generations, pushes.

mod file_name;
mod pin_name;
mod push_id;

pub use file_name::FileName;
pub use pin_name::{
    Lineage, LineageError, PIN_NAME_LEN_MAX, PIN_TEXT_LEN_MAX, PinName, PinNameError, PinPartError,
    PinText, PinTextError,
};
pub use push_id::PushId;

/// Prefix of each token. Scanners of source code can recognise a leaked token by it.
pub const TOKEN_PREFIX: &str = "smv1_";
