//! Directories of files.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use samovar_http::http::Status;
use samovar_http::{Error, Request, Response};

use super::{failed, respond};

/// Name of the file that is sent for a directory.
const INDEX: &str = "index.html";

/// A directory whose files are served; see [`file`](super::file) for the responses.
///
/// ```no_run
/// use samovar_http::Router;
/// use samovar_web::Files;
///
/// # fn main() -> std::io::Result<()> {
/// let files = Files::new("public")?;
/// let router = Router::new()
///     .get("/", files.handler())
///     .get("/{*path}", files.handler());
/// # Ok(())
/// # }
/// ```
///
/// * For a directory, `index.html` in it is sent, and 404 if there is none: directories are not
///   listed. A URL of a directory without a slash at the end is redirected to one with it.
/// * Paths that leave the directory by `..`, and paths with NUL, get 404. So do paths through a
///   symbolic link that leads out of the directory, unless [`follow_links`](Self::follow_links) was
///   called. The check and the opening of the file are two moments: it does not protect against
///   local users who can write to the directory.
/// * Names that begin with a dot get 404, except `.well-known`.
#[derive(Debug, Clone)]
pub struct Files(Arc<Root>);

#[derive(Debug, Clone)]
struct Root {
    /// The directory, without symbolic links.
    path: PathBuf,
    follows_links: bool,
}

impl Files {
    /// Creates a handler for a directory.
    ///
    /// # Errors
    ///
    /// If the path is no directory that can be read.
    pub fn new(directory: impl AsRef<Path>) -> io::Result<Self> {
        let directory = directory.as_ref();
        let named = |error: io::Error| {
            let message = format!("cannot serve files from {}: {error}", directory.display());
            io::Error::new(error.kind(), message)
        };
        let path = directory.canonicalize().map_err(named)?;
        std::fs::read_dir(&path).map_err(named)?;
        Ok(Self(Arc::new(Root {
            path,
            follows_links: false,
        })))
    }

    /// Serves files to which symbolic links in the directory lead, wherever they are.
    #[must_use]
    pub fn follow_links(self) -> Self {
        let path = self.0.path.clone();
        Self(Arc::new(Root {
            path,
            follows_links: true,
        }))
    }

    /// Returns the handler, for a route with the parameter `{*path}` or `{path}`. On a route
    /// without such a parameter, the handler serves the index page of the directory.
    pub fn handler(
        &self,
    ) -> impl Fn(&mut Request) -> Result<Response, Error> + Send + Sync + use<> + 'static {
        let files = self.clone();
        move |request| files.serve(request)
    }

    /// Responds to one request, as the [`handler`](Self::handler) does.
    ///
    /// # Errors
    ///
    /// As [`file`](super::file).
    pub fn serve(&self, request: &Request) -> Result<Response, Error> {
        let wanted = match request.param("path") {
            None => Path::new(""),
            Some(_) => request.param_path("path").ok_or(Status::NOT_FOUND)?,
        };
        if wanted.components().any(is_hidden) {
            return Err(Status::NOT_FOUND.into());
        }
        let path = self.0.find(wanted)?;
        if !path.is_dir() {
            return respond(request, &path, wanted);
        }
        // A slash at the end is part of the text, but not of the components.
        let is_named_as_directory = request.head().path().ends_with(b"/");
        if is_named_as_directory || wanted.as_os_str().is_empty() {
            let index = wanted.join(INDEX);
            return respond(request, &self.0.find(&index)?, &index);
        }
        Ok(redirect(request))
    }
}

impl Root {
    /// Returns the path of a file or directory, without symbolic links.
    fn find(&self, wanted: &Path) -> Result<PathBuf, Error> {
        let path = self.path.join(wanted).canonicalize().map_err(failed)?;
        match self.follows_links || path.starts_with(&self.path) {
            true => Ok(path),
            false => Err(Status::NOT_FOUND.into()),
        }
    }
}

fn is_hidden(component: Component<'_>) -> bool {
    let name = component.as_os_str().as_encoded_bytes();
    name.starts_with(b".") && name != b".well-known"
}

/// Redirects to the URL of the same directory with a slash at the end, by which the links of its
/// page are relative to it.
fn redirect(request: &Request) -> Response {
    let head = request.head();
    let last = head.path().rsplit(|byte| *byte == b'/').next();
    // Relative to the URL of the request. `./` prevents that the name is taken for a scheme.
    let mut location = format!("./{}/", String::from_utf8_lossy(last.unwrap_or_default()));
    if let Some(query) = head.query() {
        location.push('?');
        location.push_str(&String::from_utf8_lossy(query));
    }
    Response::redirect(Status::TEMPORARY_REDIRECT, &location)
}
