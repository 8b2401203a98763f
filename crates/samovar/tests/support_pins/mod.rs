//! A server whose pins clients read and change.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use testkit::http1::Response;

use crate::support_uploads::{MadePath, Running, Site, send};

/// A server with uploaded paths, and a token with all rights.
pub(crate) struct Pins {
    pub(crate) site: Site,
    pub(crate) server: Running,
    pub(crate) token: String,
    /// Base names of the paths.
    pub(crate) paths: Vec<String>,
}

impl Pins {
    /// Uploads paths with these names to a new site.
    pub(crate) fn new(names: &[&str]) -> Self {
        Self::of(Site::new(), names)
    }

    /// Starts the server of a site, and uploads paths with these names.
    pub(crate) fn of(site: Site, names: &[&str]) -> Self {
        let server = site.start();
        let token = site.token(&["--rights", "read,push,pin", "--name", "ci-1"]);
        let publish = |name: &&str| {
            let path = MadePath::new(name);
            server.publish(&token, &path);
            path.store_path[11..].to_owned()
        };
        let paths = names.iter().map(publish).collect();
        Self {
            site,
            server,
            token,
            paths,
        }
    }

    /// Sends a request below `upload/pin/`. `fields`: header lines with their line ends.
    pub(crate) fn request(&self, method: &str, rest: &str, fields: &str, body: &str) -> Response {
        let fields = format!("Authorization: Bearer {}\r\n{fields}", self.token);
        let target = format!("/upload/pin/{rest}");
        send(self.server.address, method, &target, &fields, body)
    }

    pub(crate) fn get(&self, rest: &str) -> Response {
        self.request("GET", rest, "", "")
    }

    /// Sends a PUT with a condition. Asserts that it succeeds, and returns the generation.
    #[track_caller]
    pub(crate) fn put(&self, rest: &str, condition: &str, body: &str) -> u64 {
        let response = self.request("PUT", rest, condition, body);
        let text = response.text();
        assert_eq!(response.status, 200, "{text}");
        let generation = text.strip_prefix("pinned ").expect("a generation");
        let (generation, _) = generation.split_once(' ').expect("a base name");
        generation.parse().expect("is a number")
    }

    /// Pins one of the paths.
    #[track_caller]
    pub(crate) fn set(&self, rest: &str, path: usize) {
        let response = self.request("PUT", rest, "", &self.paths[path]);
        assert_eq!(response.status, 200, "{}", response.text());
    }

    /// Removes a pin.
    #[track_caller]
    pub(crate) fn remove(&self, rest: &str) {
        let response = self.request("DELETE", rest, "", "");
        assert_eq!(response.status, 200, "{}", response.text());
    }
}
