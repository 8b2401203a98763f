//! Request methods and protocol versions.

use std::fmt;

/// Defines [`Method`] with its tokens.
macro_rules! methods {
    ($($name:ident $token:literal,)*) => {
        /// The method of a request (RFC 9110, section 9).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[non_exhaustive]
        pub enum Method {
            $(#[doc = concat!("`", $token, "`")] $name,)*
            /// A method without a variant of its own;
            /// [`HeadIndex::method_name`](crate::h1::head::HeadIndex::method_name) locates its
            /// text.
            #[default]
            Other,
        }

        impl Method {
            /// Parses a token. Methods are case-sensitive (RFC 9110, 9.1).
            pub fn from_token(token: &str) -> Self {
                match token {
                    $($token => Self::$name,)*
                    _ => Self::Other,
                }
            }

            /// Returns the token; empty for [`Other`](Self::Other).
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $token,)*
                    Self::Other => "",
                }
            }
        }
    };
}

methods! {
    Get "GET",
    Head "HEAD",
    Post "POST",
    Put "PUT",
    Delete "DELETE",
    Options "OPTIONS",
    Patch "PATCH",
    Trace "TRACE",
    Connect "CONNECT",
}

/// The protocol version of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Version {
    /// HTTP/1.0: no chunked bodies, and one request per connection unless the client asks for
    /// keep-alive.
    Http10,
    /// HTTP/1.1: persistent connections, and one request at a time on each.
    #[default]
    Http11,
    /// HTTP/2: concurrent requests on one connection.
    Http2,
}

impl Version {
    /// Returns the text, such as `HTTP/1.1`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2.0",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
