//! Packed narinfos are the ones that were packed, and stay within their memory.

use proptest::prelude::*;

use super::*;
use crate::narinfo::narinfos::{NarinfoMemory, Narinfos};
use crate::narinfo::signing::Signing;
use crate::reader::policy::PolicyConfig;
use crate::tests::memory_store::MemoryStore;
use crate::tests::recorder::shared;

const STAMP: Stamp = Stamp {
    epoch: 7,
    generation: 3,
};

fn rendered(number: usize) -> Rendered {
    let base_name = format!("{}-name-{number}", hash_part(number));
    let path = StorePath::from_base_name(&base_name).unwrap();
    let nar_hash = NarHash::from_bytes([hash_part(number).as_bytes()[19]; 32]);
    let row = Row {
        nar_hash,
        nar_size: 1000 + number as u64,
        registration: Some(number as i64).filter(|number| *number > 0),
        registration_time: 5,
        path,
    };
    let text = format!(
        "StorePath: /nix/store/{}\nURL: nar/{}.nar\nCompression: none\nNarHash: sha256:{}\n\
         NarSize: {}\nReferences: {}-other-{number}\n",
        row.path.base_name(),
        row.path.hash_part(),
        row.nar_hash.to_hash().nixbase32(),
        row.nar_size,
        hash_part(number + 1),
    );
    Rendered {
        stamp: Some(STAMP),
        until: 9,
        leased: 0,
        is_prefetched: true,
        narinfo: Arc::new(Narinfo::new(row, text.as_bytes(), text.len())),
    }
}

/// Returns the first bytes of a hash, so that they cannot be compressed, as those of real paths.
fn hash_part(number: usize) -> HashPart {
    use sha2::{Digest, Sha256};
    let hash: [u8; 32] = Sha256::digest((number as u64).to_le_bytes()).into();
    HashPart::from_bytes(hash[..20].try_into().unwrap())
}

/// Makes a cache whose dictionary is trained.
fn trained(memory_len: usize) -> PackedCache {
    let cache = PackedCache::new(memory_len, Arc::default());
    train(&cache);
    cache
}

/// Trains the dictionary of an empty cache.
fn train(cache: &PackedCache) {
    for number in 0..SAMPLE_COUNT {
        cache.insert(hash_part(number), &rendered(number));
    }
    assert_eq!(cache.status().entry_count, 0, "not trained yet");
    cache.train();
    assert!(!cache.dictionary.get().unwrap().is_empty());
}

#[test]
fn a_narinfo_is_the_same_after_packing() {
    let cache = trained(1 << 20);
    for number in [0, 1, 2_000_000_000] {
        let before = rendered(number);
        cache.insert(hash_part(number), &before);
        let after = cache.find(&hash_part(number), |stamp, until| {
            assert_eq!((stamp, until), (STAMP, 9));
            true
        });
        let after = after.unwrap();
        assert_eq!(after.narinfo.row, before.narinfo.row);
        assert_eq!(after.narinfo.text(), before.narinfo.text());
        assert_eq!(after.narinfo.unsigned_len, before.narinfo.unsigned_len);
        assert!(!after.is_prefetched);
    }
    assert!(cache.find(&hash_part(1), |_, _| false).is_none());
    assert!(cache.find(&hash_part(5), |_, _| true).is_none());
    cache.drop_path(&hash_part(1));
    assert!(cache.find(&hash_part(1), |_, _| true).is_none());
    assert_eq!(cache.status().hit_count, 3);
}

#[test]
fn narinfos_without_a_stamp_or_too_long_are_not_packed() {
    let cache = trained(16 << 20);
    let without_stamp = Rendered {
        stamp: None,
        ..rendered(1)
    };
    cache.insert(hash_part(1), &without_stamp);
    for (number, len) in [(2, TEXT_LEN_MAX), (3, TEXT_LEN_MAX + 1)] {
        let mut text = rendered(number).narinfo.text().to_vec();
        text.resize(len, b'\n');
        let row = rendered(number).narinfo.row.clone();
        let long = Rendered {
            narinfo: Arc::new(Narinfo::new(row, &text, len)),
            ..rendered(number)
        };
        cache.insert(hash_part(number), &long);
    }
    let is_packed = [1, 2, 3].map(|number| cache.find(&hash_part(number), |_, _| true).is_some());
    assert_eq!(is_packed, [false, true, false]);
}

#[test]
fn the_oldest_are_dropped_and_a_packed_narinfo_is_less_than_half_of_a_rendered_one() {
    let memory_len = 4 << 20;
    let cache = trained(memory_len);
    let count = 20_000;
    for number in 0..count {
        cache.insert(hash_part(number), &rendered(number));
    }
    let status = cache.status();
    assert!(status.len <= memory_len as u64, "{status:?}");
    assert!(cache.find(&hash_part(0), |_, _| true).is_none());
    assert!(cache.find(&hash_part(count - 1), |_, _| true).is_some());
    let packed_len = status.len / status.entry_count;
    let rendered_len = rendered(1).memory_len() as u64;
    assert!(
        2 * packed_len < rendered_len,
        "{packed_len}, {rendered_len}"
    );
}

#[test]
fn the_lease_of_a_packed_narinfo_changes() {
    let cache = trained(1 << 20);
    cache.insert(hash_part(1), &rendered(1));
    cache.note_leased(&hash_part(1), 5);
    cache.note_leased(&hash_part(2), 5);
    assert_eq!(cache.peek(&hash_part(1)).unwrap().leased, 5);
    assert!(cache.peek(&hash_part(2)).is_none());
}

#[test]
fn hits_and_misses_are_those_of_requests() {
    let counts = Arc::<PackedCounts>::default();
    let cache = PackedCache::new(1 << 20, Arc::clone(&counts));
    cache.insert(hash_part(1), &rendered(1));
    let requested = Rendered {
        is_prefetched: false,
        ..rendered(1)
    };
    cache.insert(hash_part(1), &requested);
    assert!(!cache.has(&hash_part(1), |_, _| true), "not trained yet");
    assert!(cache.find(&hash_part(1), |_, _| true).is_none());
    let replacement = PackedCache::new(1 << 20, counts);
    let status = replacement.status();
    assert_eq!((status.hit_count, status.miss_count), (0, 1));
}

#[test]
fn a_path_that_is_marked_as_damaged_loses_its_packed_narinfo() {
    let (shared, _recorder) = shared(&MemoryStore::new(), None);
    let (signing, policy) = (Signing::default(), PolicyConfig::default());
    let memory = NarinfoMemory::share(64 << 20, 1);
    let narinfos = Narinfos::new(&shared, signing, policy, memory);
    shared.health.watch(narinfos.path_caches().collect());
    let packed = narinfos.packed.unwrap();
    train(&packed);
    for number in [1, 2] {
        packed.insert(hash_part(number), &rendered(number));
    }
    let damaged = rendered(1).narinfo.row.clone();
    shared.health.note_damaged(&damaged, &"another hash");
    let is_packed = [1, 2].map(|number| packed.has(&hash_part(number), |_, _| true));
    assert_eq!(is_packed, [false, true]);
}

proptest! {
    #[test]
    fn any_text_is_the_same_after_packing(text in prop::collection::vec(any::<u8>(), 0..5000)) {
        let cache = PackedCache::new(1 << 20, Arc::default());
        cache.dictionary.get_or_init(|| rendered(1).narinfo.text().to_vec());
        let narinfo = Narinfo::new(rendered(1).narinfo.row.clone(), &text, 0);
        let any = Rendered { narinfo: Arc::new(narinfo), ..rendered(1) };
        let packed = cache.pack(cache.dictionary.get().unwrap(), &any).unwrap().unwrap();
        prop_assert_eq!(cache.unpacked(&packed.0).unwrap(), text);
    }
}
