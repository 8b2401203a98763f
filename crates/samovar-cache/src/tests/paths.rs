//! All parsers of URL paths decode them alike.

use crate::route::Route;
use crate::route::path::decode;
use crate::route::upload::UploadRoute;

const H: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";

/// Asserts that all parsers of paths refuse, at every place, what one of them refuses.
#[test]
fn the_same_escapes_are_refused_everywhere() {
    let names = [
        format!("/{H}.narinfo"),
        format!("/{H}.ls"),
        format!("/nar/{H}.nar"),
        format!("/log/{H}-a"),
        format!("/build-trace-v2/{H}-a.drv/out.doi"),
        "/nix-cache-info".to_owned(),
    ];
    let pages = [
        format!("/path/{H}"),
        format!("/build-log/{H}-a"),
        format!("/serve/{H}/a"),
        "/search".to_owned(),
        "/-/assets/x.css".to_owned(),
    ];
    let uploads = [
        "/nix-cache-info".to_owned(),
        format!("/{H}.narinfo"),
        format!("/nar/{}.nar", "0".repeat(52)),
        format!("/log/{H}-a"),
        "/push/1/open".to_owned(),
        "/pin-events".to_owned(),
    ];
    let of = |path: &str| Route::of(path.as_bytes(), None);
    let is_route = |path: &str| !matches!(of(path), Route::Unknown(_) | Route::Page(_));
    let is_page = |path: &str| matches!(of(path), Route::Page(_));
    let is_upload = |path: &str| match of(&format!("/upload{path}")) {
        Route::Upload(UploadRoute::Of(route)) => route.resource().is_some(),
        Route::Upload(UploadRoute::Push(route)) => route.is_some(),
        route => matches!(route, Route::Upload(UploadRoute::PinEvents)),
    };
    let check = |path: &str, is_known: &dyn Fn(&str) -> bool| {
        assert!(is_known(path), "{path}");
        let each: String = path[1..]
            .bytes()
            .map(|byte| match byte {
                b'/' => "/".to_owned(),
                byte => format!("%{byte:02x}"),
            })
            .collect();
        assert!(is_known(&format!("/{each}")), "{each}");
        for escape in ["%2F", "%2f", "%00", "%", "%2", "%zz"] {
            for at in 1..path.len() {
                let (start, end) = path.split_at(at);
                let other = format!("{start}{escape}{end}");
                // An escape may be completed by what follows it.
                let is_wrong = decode(other.as_bytes()).is_none();
                assert!(!is_wrong || !is_known(&other), "{other}");
            }
        }
    };
    for path in &names {
        check(path, &is_route);
    }
    for path in &pages {
        check(path, &is_page);
    }
    for path in &uploads {
        check(path, &is_upload);
    }
}
