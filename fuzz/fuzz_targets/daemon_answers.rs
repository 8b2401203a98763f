//! Client of the daemon, with arbitrary bytes as the daemon's responses: information that the
//! client accepts is about the path in its query.
#![no_main]

use samovar_nix::StorePath;
use samovar_store::RealisationId;
use samovar_store::fuzzing::daemon;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = StorePath::from_base_name("zs83x50c7jbs0hj70ivx7ykckxh2zzl5-a.drv");
    let id = RealisationId::parse_derivation_form("zs83x50c7jbs0hj70ivx7ykckxh2zzl5-a.drv", "out");
    let (Ok(path), Ok(id)) = (path, id) else {
        unreachable!("both are well-formed");
    };
    if let Some(asked) = daemon(bytes, &path, &id)
        && let Ok(Some(info)) = asked.info
    {
        assert_eq!(info.path, path);
    }
});
