//! Responses with a realisation of a content-addressed derivation.

use samovar_http::Response;
use samovar_http::http::Status;
use samovar_store::RealisationId;

use crate::narinfo::signing::Signing;
use crate::reader::Reader;
use crate::refusal::{Fixed, Refusal};

/// Answers `/realisations/…` and `/build-trace-v2/…`. A realisation reveals that its output exists,
/// so clients that may read the output may read the realisation.
pub(crate) fn respond(
    reader: &Reader,
    signing: &Signing,
    id: &RealisationId,
) -> Result<Response, Refusal> {
    let Some(realisation) = reader.store().realisation(id)? else {
        return Ok(Fixed::NotFound.response());
    };
    let out_path = realisation.out_path();
    if !reader.policy.is_open() && !reader.may_read(out_path)? {
        return Ok(Fixed::NotFound.response());
    }
    let info = if signing.asks_of_realisations() {
        reader.shared.lookup(out_path.hash_part())?
    } else {
        None
    };
    let info = info.filter(|info| info.path == *out_path);
    let dir = reader.store().store_dir();
    let json = signing.realisation(id, realisation, info.as_ref(), dir);
    Ok(Response::new(Status::OK, json).header("Content-Type", "application/json"))
}
