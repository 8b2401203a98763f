//! Re-exports of the protocols without I/O from `samovar-http-proto`.

pub(crate) use samovar_http_proto::h1::{Refusal, conn, encode, head};
pub(crate) use samovar_http_proto::multipart::MultipartError;
pub(crate) use samovar_http_proto::ws;
