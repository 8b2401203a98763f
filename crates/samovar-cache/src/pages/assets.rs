//! Style sheet, script and icon, embedded in the program and served under URLs that contain a hash
//! of their content.

use std::sync::LazyLock;

use samovar_http::Response;
use samovar_http::http::Status;
use sha2::{Digest, Sha256};

/// A file that is embedded in the program.
#[derive(Debug)]
pub(crate) struct Asset {
    /// The last segment of its URL: a part of its hash, and its extension.
    pub(crate) name: String,
    media_type: &'static str,
    bytes: &'static [u8],
}

/// The logo, for embedding in pages.
pub(crate) const MARK: &str = include_str!("assets/mark.svg");

const STYLE_TEXT: &str = include_str!("assets/samovar.css");

/// The line of the style sheet above the rules that only some pages need.
const END_OF_BASE: &str = "/* Search */";

/// Returns the first rules of the style sheet: colours, type and the frame of the pages.
pub(crate) fn base_style() -> &'static str {
    let (base, _) = STYLE_TEXT.split_once(END_OF_BASE).unwrap_or_default();
    base
}

pub(crate) static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("css", "text/css; charset=utf-8", STYLE_TEXT.as_bytes()));

pub(crate) static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let bytes = include_bytes!("assets/samovar.js");
    Asset::new("js", "text/javascript; charset=utf-8", bytes)
});

pub(crate) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("svg", "image/svg+xml", MARK.as_bytes()));

impl Asset {
    fn new(ending: &str, media_type: &'static str, bytes: &'static [u8]) -> Self {
        let hash = Sha256::digest(bytes);
        let digits: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            name: format!("{digits}.{ending}"),
            media_type,
            bytes,
        }
    }

    /// Returns the asset's URL, relative to the root of a cache.
    pub(crate) fn path(&self) -> String {
        format!("-/assets/{}", self.name)
    }
}

/// Returns the response with the asset of this name; `None` if there is no such asset.
pub(crate) fn answer(name: &str) -> Option<Response> {
    let all = [&STYLE, &SCRIPT, &ICON];
    let asset = all.into_iter().find(|asset| asset.name == name)?;
    let response = Response::new(Status::OK, asset.bytes)
        .header("Content-Type", asset.media_type)
        .header("Cache-Control", "max-age=31536000, immutable")
        .header("X-Content-Type-Options", "nosniff")
        // An asset opened as a document of its own (the icon is an SVG) can load and run nothing.
        .header("Content-Security-Policy", "default-src 'none'; sandbox");
    Some(response)
}
