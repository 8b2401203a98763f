//! Responses with a realisation of a content-addressed derivation.

use samovar_http::Response;
use samovar_http::http::Status;
use samovar_store::RealisationId;

use crate::narinfo::signing::Signing;
use crate::reader::Reader;
use crate::refusal::Refusal;

/// Answers `/realisations/…` and `/build-trace-v2/…`. A realisation reveals that its output exists,
/// so clients that may read the output may read the realisation. Returns `None` if there is none.
pub(crate) fn respond(
    reader: &Reader,
    signing: &Signing,
    id: &RealisationId,
) -> Result<Option<Response>, Refusal> {
    let Some(realisation) = reader.store().realisation(id)? else {
        return Ok(None);
    };
    let out_path = realisation.out_path();
    if !reader.policy.is_open() && !reader.may_read(out_path)? {
        return Ok(None);
    }
    let info = if signing.asks_of_realisations() {
        reader.shared.lookup(out_path.hash_part())?
    } else {
        None
    };
    let info = info.filter(|info| info.path == *out_path);
    let dir = reader.store().store_dir();
    let json = signing.realisation(id, realisation, info.as_ref(), dir, signing.stored);
    let response = Response::new(Status::OK, json);
    Ok(Some(response.header("Content-Type", "application/json")))
}
