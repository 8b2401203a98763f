//! Pages of the admin listener.
//!
//! | path | response |
//! | --- | --- |
//! | `/` | a redirection to the status page |
//! | `/status` | the status page; live if scripts are enabled |
//! | `/version` | the program's name, version and features, as JSON |
//! | `/-/assets/…` | style sheet and scripts |
//!
//! For all other URLs, see [`samovar_metrics::admin`].

use std::sync::Arc;

use samovar_http::http::Status;
use samovar_http::{Request, Response, Route, Router};
use samovar_metrics::{Metrics, Sampler};

use super::{assets, status};
use crate::known::program::Program;

/// Serves `metrics` and the pages that show them. `sampler` updates the metrics.
#[must_use]
pub fn admin(metrics: &Arc<Metrics>, sampler: &Sampler) -> Router {
    let (shown, about) = (Arc::clone(metrics), Arc::clone(metrics));
    let page = move |request: &mut Request| {
        let host = request.head().header_text("Host").unwrap_or("");
        status::page(&shown.status(), host)
    };
    samovar_metrics::admin(metrics, sampler)
        .get("/version", move |_: &mut Request| {
            let (name, version) = about.program();
            let (name, version) = (name.to_owned(), version.to_owned());
            Program { name, version }.response()
        })
        .route(Route::get("/status", page).wrap(samovar_metrics::only_by_own_names))
        .get("/", |_: &mut Request| {
            Response::redirect(Status::FOUND, "./status")
        })
        .get("/-/assets/{name}", |request: &mut Request| {
            let asset = request.param("name").and_then(assets::answer);
            asset.unwrap_or_else(|| {
                Response::text(Status::NOT_FOUND, "no such file\n")
                    .header("Cache-Control", "no-store")
            })
        })
}
