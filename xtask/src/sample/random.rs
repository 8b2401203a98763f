//! Pseudo-random contents that are the same on every machine and in every run.
//!
//! Only integer arithmetic is used: the mathematics library of another machine could round a
//! logarithm differently, and one changed byte in a file would change the hashes of all paths that
//! depend on it.

use testkit::content::Content;
use testkit::nar;
use testkit::random::SplitMix64;

/// A file system object in a sample store.
pub(super) type Node = nar::Node<Content>;

/// Returns a file size as in a `node_modules` folder: median 2.6 KB, mean 9 KB, long tail.
pub(super) fn file_len(random: &mut SplitMix64) -> u64 {
    // Pairs of a rank, in thousandths of all files, and the file size at that rank. Sizes between
    // two ranks are interpolated linearly. The pairs follow a log-normal curve, so that no
    // logarithm has to be computed.
    const LEN_AT: [(u64, u64); 9] = [
        (0, 20),
        (100, 350),
        (250, 900),
        (500, 2_600),
        (750, 7_500),
        (900, 18_000),
        (970, 46_000),
        (990, 90_000),
        (1000, 260_000),
    ];
    let place = random.between(0, 1000);
    let spread = random.next();
    for pair in LEN_AT.windows(2) {
        if let [(_, low), (end, high)] = *pair
            && place < end
        {
            return low + spread % (high - low);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_lengths_have_the_median_and_mean_of_node_modules() {
        let mut random = SplitMix64::new(7);
        let mut lens: Vec<u64> = (0..45_000).map(|_| file_len(&mut random)).collect();
        lens.sort_unstable();
        let average = lens.iter().sum::<u64>() / 45_000;
        assert!(
            (2_400..2_800).contains(&lens[22_500]),
            "median {}",
            lens[22_500]
        );
        assert!((8_000..10_000).contains(&average), "average {average}");
    }
}
