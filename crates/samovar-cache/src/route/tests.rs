//! Tests of routes.

use proptest::prelude::*;

use super::*;

const H: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";
const N: &str = "1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z";

#[track_caller]
fn check(url: &str, expected: Route) {
    let url = url.replace("{H}", H).replace("{N}", N);
    let (path, query) = match url.split_once('?') {
        Some((path, query)) => (path, Some(query.as_bytes())),
        None => (url.as_str(), None),
    };
    assert_eq!(Route::of(path.as_bytes(), query), expected, "{url}");
}

#[track_caller]
fn check_unknown(url: &str) {
    let url = url.replace("{H}", H).replace("{N}", N);
    let (path, query) = url.split_once('?').unwrap_or((&url, ""));
    let route = Route::of(path.as_bytes(), Some(query.as_bytes()));
    assert!(matches!(route, Route::Unknown(_)), "{url}: {route:?}");
}

#[test]
fn first_segments_of_urls_are_those_of_a_cache() {
    for url in [
        "/nix-cache-info",
        "/cache-info.json",
        "/public-key",
        "/v1/version",
        "/narinfos",
        "/nar/x.nar",
        "/closure/x",
        "/log/x",
        "/realisations/x.doi",
        "/build-trace-v2/x/y.doi",
    ] {
        assert_ne!(
            Route::of(url.as_bytes(), None),
            Route::Unknown(Class::Other),
            "{url}"
        );
        assert!(
            is_own_segment(url.split('/').nth(1).unwrap(), false),
            "{url}"
        );
    }
    for url in [
        "/version",
        "/search",
        "/uploads",
        "/path/x",
        "/build-log/x",
        "/serve/x",
        "/-/assets/x",
    ] {
        let route = Route::of(url.as_bytes(), None);
        assert!(matches!(route, Route::Page(_)), "{url}");
        let segment = url.split('/').nth(1).unwrap();
        assert!(
            is_own_segment(segment, true) && !is_own_segment(segment, false),
            "{url}"
        );
    }
    for segment in ["upload", "debuginfo", "buildid"] {
        assert!(is_own_segment(segment, false), "{segment}");
    }
    assert!(!is_own_segment("", true) && !is_own_segment("team-a", true));
}

#[test]
fn every_url_has_a_class() {
    let found = |path: &str| {
        let route = Route::of(path.replace("{H}", H).as_bytes(), None);
        (route.class(Method::Get), route.hash_part())
    };
    for (path, class) in [
        ("/x.narinfo", Class::Narinfo),
        ("/wrong-prefix/{H}.narinfo", Class::Narinfo),
        ("/nar/.nar", Class::Nar),
        ("/x.ls", Class::Listing),
        ("/log/x.drv", Class::Log),
        ("/realisations/sha256:x!out.doi", Class::Realisation),
        ("/closure/x", Class::Closure),
        ("/cache-info.json", Class::CacheInfo),
        ("/v1/public-key", Class::CacheInfo),
        ("/", Class::Page),
        ("/path/{H}", Class::Page),
        ("/serve/x/bin/sh", Class::Page),
        ("/serve/x/log/y", Class::Page),
        ("/-/assets/x.css", Class::Page),
        ("/upload", Class::Upload),
        ("/upload/nix-cache-info", Class::Upload),
        ("/debuginfo/x.debug", Class::DebugInfo),
        ("/debuginfo/0e0e", Class::DebugInfo),
        ("/buildid/0e0e/debuginfo", Class::DebugInfo),
        ("/buildid/x", Class::DebugInfo),
        ("/upload/nar/x.nar.zst", Class::Upload),
        ("/upload/push/1/x/part/y/1", Class::Upload),
        ("/upload/pin/a%2Fb", Class::Upload),
        ("/uploads", Class::Page),
        ("/favicon.ico", Class::Other),
        ("/version", Class::Other),
        ("", Class::Page),
        ("*", Class::Other),
    ] {
        assert_eq!(found(path), (class, None), "{path}");
    }
    for (path, class) in [
        ("/{H}.narinfo", Class::Narinfo),
        ("/{H}.ls", Class::Listing),
        ("/nar/{H}.nar", Class::Nar),
        ("/closure/{H}", Class::Closure),
        ("/log/{H}-a.drv", Class::Log),
        ("/serve/{H}", Class::Page),
        ("/serve/{H}/bin/sh.narinfo", Class::Page),
        ("/upload/{H}.narinfo", Class::Upload),
        ("/upload/{H}.ls", Class::Upload),
    ] {
        assert_eq!(found(path), (class, Some(h())), "{path}");
    }
}

#[test]
fn uploads_have_a_class_of_their_own() {
    for (path, put, get) in [
        ("/{H}.narinfo", Class::Upload, Class::Narinfo),
        ("/nar/{N}.nar.xz", Class::Upload, Class::Nar),
        ("/nix-cache-info", Class::Upload, Class::CacheInfo),
        ("/{H}.ls", Class::Upload, Class::Listing),
        ("/debuginfo/x", Class::Upload, Class::DebugInfo),
        ("/search", Class::Page, Class::Page),
        ("/x", Class::Other, Class::Other),
    ] {
        let path = path.replace("{H}", H).replace("{N}", N);
        let route = Route::of(path.as_bytes(), None);
        assert_eq!(route.class(Method::Put), put, "{path}");
        assert_eq!(route.class(Method::Head), get, "{path}");
    }
}

fn h() -> HashPart {
    HashPart::parse(H.as_bytes()).unwrap()
}

fn nar(nar_hash: bool, coding: NarCoding) -> Route {
    let nar_hash = nar_hash.then(|| NarHash::parse_nixbase32(N.as_bytes()).unwrap());
    Route::Nar {
        hash_part: h(),
        nar_hash,
        coding,
    }
}

#[test]
fn urls_of_narinfos() {
    check("/{H}.narinfo", Route::Narinfo(h()));
    check("/{H}.narinfo?x=1", Route::Narinfo(h()));
    check(
        "/%7as83x50c7jbs0hj70ivx7ykckxh2zzl5.narinfo",
        Route::Narinfo(h()),
    );
    for short in [
        "/a.narinfo",
        "/{H}0.narinfo",
        "/e000000000000000000000000000000u.narinfo",
    ] {
        check(short, Route::NoPath(Class::Narinfo));
    }
    for other in [
        "/.narinfo",
        "/x/{H}.narinfo",
        "//{H}.narinfo",
        "/{H}-name.narinfo",
        "{H}.narinfo",
        "/ZS83X50C7JBS0HJ70IVX7YKCKXH2ZZL5.narinfo",
        "/{H}.narinfo/",
        "/{H}%00.narinfo",
        "/%2f{H}.narinfo",
        "/%{H}.narinfo",
        "/..%2f{H}.narinfo",
    ] {
        check_unknown(other);
    }
}

#[test]
fn urls_of_nars() {
    check("/nar/{H}-{N}.nar", nar(true, NarCoding::Identity));
    check("/nar/{H}.nar", nar(false, NarCoding::Identity));
    check("/nar/{H}.nar?hash=x", nar(false, NarCoding::Identity));
    check("/nar/{H}-123.nar", Route::NarOfNoHash(h()));
    check("/nar/{H}-{N}.nar.zst", nar(true, NarCoding::Zstd));
    check("/nar/{H}-123.nar.zst", Route::NarOfNoHash(h()));
    check("/nar/x-{N}.nar", Route::NoPath(Class::Nar));
    let Route::Nar { nar_hash, .. } = nar(true, NarCoding::Identity) else {
        unreachable!("a NAR of the store");
    };
    let upstream_nar = Route::UpstreamNar {
        hash_part: h(),
        nar_hash: nar_hash.unwrap(),
        compression: Compression::Xz,
    };
    check("/nar/{H}-{N}.nar.xz", upstream_nar);
    for other in [
        "/nar/{H}-{N}.nar.zstd",
        "/nar/{H}-{N}.nar.rar",
        "/nar/{H}-123.nar.xz",
        "/nar/{H}-{N}.zst",
        "/nar/{H}.nar.zst",
        // Those of eris: no narinfo names them.
        "/nar/{H}.nar.xz",
        "/nar/{H}.nar.bz2",
        "/nar/.nar",
        "/nar/",
        "/nar/{H}-.nar",
        "/nar/{H}-{N}-a.nar",
    ] {
        check_unknown(other);
    }
}

#[test]
fn urls_of_files() {
    let check = |url: &str, of_store: Route| {
        let name = url.strip_prefix("/nar/").unwrap().split('?').next();
        let name = FileName::parse(name.unwrap().replace("{N}", N).as_bytes()).unwrap();
        check(url, Route::File(name, Box::new(of_store)));
    };
    check("/nar/{N}.nar", Route::NoPath(Class::Nar));
    check("/nar/{N}.nar?hash=x", Route::NoPath(Class::Nar));
    check("/nar/{N}.nar.zst", Route::Unknown(Class::Other));
    check("/nar/{N}.nar.zst?hash={H}", Route::Unknown(Class::Other));
    let of_store = nar(true, NarCoding::Identity);
    check("/nar/{N}.nar?hash={H}", of_store.clone());
    check("/nar/{N}.nar?a=b&hash={H}&c", of_store);
}

#[test]
fn all_other_urls() {
    check("/", Route::Page(PageRoute::Landing));
    check("/version", Route::Page(PageRoute::Version));
    check("/debuginfo/x", Route::DebugInfo(None));
    let id = BuildId::parse(b"0e0e").unwrap();
    check("/debuginfo/0e0e", Route::DebugInfo(Some(id.clone())));
    check("/debuginfo/0e0e.debug", Route::DebugInfo(Some(id)));
    check("/nix-cache-info", Route::CacheInfo);
    check("/cache-info.json", Route::About(AboutRoute::Json));
    check("/public-key", Route::About(AboutRoute::PublicKeys));
    check("/v1/public-key", Route::About(AboutRoute::PublicKeys));
    check("/v1/version", Route::About(AboutRoute::Version));
    check_unknown("/v1/x");
    check("/metrics", Route::Metrics);
    check("/{H}.ls", Route::Listing(h()));
    let path = StorePath::from_base_name(&format!("{H}-a.drv")).unwrap();
    check("/log/{H}-a.drv", Route::Log(path));
    for other in ["/log/", "/log/{H}", "/log/{H}-a.drv/foo", "/log/..%2f{H}-a"] {
        check_unknown(other);
    }
    let hex = "0".repeat(64);
    let id = RealisationId::parse_hash_form(&format!("sha256:{hex}!out")).unwrap();
    check(
        &format!("/realisations/sha256:{hex}!out.doi"),
        Route::Realisation(id.clone()),
    );
    check(
        &format!("/realisations/sha256:{hex}%21out.doi"),
        Route::Realisation(id),
    );
    check_unknown(&format!("/realisations/sha256:{hex}!out"));
    let id = RealisationId::parse_derivation_form(&format!("{H}-a.drv"), "out").unwrap();
    check("/build-trace-v2/{H}-a.drv/out.doi", Route::Realisation(id));
    check_unknown("/build-trace-v2/{H}-a.drv/out/x.doi");
    check_unknown("/build-trace-v2/{H}-a.drv%2fout.doi");
    let hash_part = HashPart::parse(H.as_bytes()).unwrap();
    check("/closure/{H}", Route::Closure(hash_part));
    check("/closure/abc", Route::NoPath(Class::Closure));
    check_unknown("/closure/{H}.narinfo");
    check("/narinfos", Route::Narinfos);
    check_unknown("/narinfos/");
}

proptest! {
    #[test]
    fn no_path_panics(
        path in "[/%a-z0-9.-]{0,80}",
        query in proptest::option::of("[a-z=&]{0,40}"),
    ) {
        Route::of(path.as_bytes(), query.as_deref().map(str::as_bytes));
    }

    #[test]
    fn no_bytes_panic(path in proptest::collection::vec(any::<u8>(), 0..100)) {
        Route::of(&path, None);
    }
}
