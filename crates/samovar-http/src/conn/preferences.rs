//! Response preferences of the client, read from the request.

#[cfg(feature = "compression")]
use crate::compress;
use crate::head::Head;
#[cfg(feature = "compression")]
use crate::http::accept_encoding::Coding;
use crate::http::{Method, Version};

/// Response preferences of the client, read from the request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Preferences {
    pub(crate) version: Version,
    pub(crate) is_head: bool,
    /// Whether the response may be compressed for some client.
    #[cfg(feature = "compression")]
    pub(crate) may_compress: bool,
    /// Content coding for the body; `None` for a plain body.
    #[cfg(feature = "compression")]
    pub(crate) coding: Option<Coding>,
}

impl Preferences {
    pub(crate) fn of(head: Head<'_>, #[cfg(feature = "compression")] may_compress: bool) -> Self {
        Self {
            version: head.version(),
            is_head: head.method() == Method::Head,
            #[cfg(feature = "compression")]
            may_compress,
            #[cfg(feature = "compression")]
            coding: may_compress.then(|| compress::coding(head)).flatten(),
        }
    }
}
