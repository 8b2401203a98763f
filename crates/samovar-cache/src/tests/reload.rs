//! Counters keep their values across reloads.

use samovar_metrics::Monitored;

use super::TestServer;
use crate::{CacheConfig, SiteConfig};

#[test]
fn a_reload_does_not_reset_the_counter_of_evictions() {
    let server = TestServer::with_site(SiteConfig {
        narinfo_memory_len: 64 * 4096,
        ..SiteConfig::default()
    });
    for number in 0..300 {
        let info = server.store.add_file(&number.to_string(), b"x");
        assert_eq!(server.narinfo(&info).status, 200);
    }
    let site = server.server.service();
    let evictions = || site.status().caches[0].eviction_count;
    let before = evictions();
    assert!(before > 0);
    // With two caches instead of one, each has less memory for narinfos, so their table is
    // replaced.
    let cache = |path_prefix: &str| CacheConfig {
        path_prefix: path_prefix.to_owned(),
        ..CacheConfig::default()
    };
    let two = vec![cache(""), cache("/two")];
    site.reconfigure(two, None, || Ok(())).unwrap();
    assert_eq!(evictions(), before);
    site.reconfigure(vec![cache("")], None, || Ok(())).unwrap();
    assert_eq!(evictions(), before);
}
