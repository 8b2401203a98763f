//! Methods, status codes and header values.

pub use samovar_http_proto::http::{
    Method, Pairs, Status, Version, accept_encoding, percent, range,
};
