//! Methods, status codes and header values.

pub(crate) use samovar_http_proto::http::media_type;
pub use samovar_http_proto::http::{
    MediaType, Method, Pairs, Status, Version, accept_encoding, percent, range,
};
