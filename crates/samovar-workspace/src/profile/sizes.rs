//! The distribution of file sizes: quantiles, and a histogram in network frames.
//!
//! Pure: no input, output or clock. Memory does not depend on the number of files.

/// Length of the headers of one RPC with a file's contents, in bytes: NFS requests have 100 to 200.
pub const RPC_HEADER_LEN: u64 = 200;

/// Length of the IP and TCP headers of a frame, with timestamps, in bytes.
const TCP_HEADER_LEN: u64 = 52;

/// Sizes up to this are counted one by one, so that quantiles among them are exact.
const EXACT_MAX: usize = 64 * 1024;

/// Numbers of frames that bound the bins of a histogram. Two more bins halve the first frame.
const BIN_FRAMES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The capacity of frames on a network.
#[derive(Debug, Clone, Copy)]
pub struct Frames {
    /// Payload of one TCP segment, in bytes.
    payload: u64,
}

impl Frames {
    /// `mtu`: maximum length of an IP packet, at least 576 bytes.
    pub fn at_mtu(mtu: u16) -> Self {
        Self {
            payload: u64::from(mtu.max(576)) - TCP_HEADER_LEN,
        }
    }

    /// Returns the payload of one frame, in bytes.
    pub fn payload(self) -> u64 {
        self.payload
    }

    /// Returns the number of frames that one RPC with a file's contents takes.
    pub fn count(self, size: u64) -> u64 {
        size.saturating_add(RPC_HEADER_LEN).div_ceil(self.payload)
    }

    /// Returns the largest file whose contents fit into `count` frames.
    pub fn capacity(self, count: u64) -> u64 {
        count * self.payload - RPC_HEADER_LEN
    }
}

/// A bin of a [`Histogram`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bin {
    /// Largest size in the bin, inclusive; `None` for the last bin.
    pub upper: Option<u64>,
    /// Number of files.
    pub files: u64,
    /// Sum of their sizes, in bytes.
    pub bytes: u64,
}

/// Files by size. Each bin is labelled with its upper bound, which belongs to it.
#[derive(Debug, Clone)]
pub struct Histogram {
    bins: Vec<Bin>,
}

impl Histogram {
    /// Creates a histogram with these upper bounds, in ascending order, and a bin above them.
    pub fn new(uppers: impl IntoIterator<Item = u64>) -> Self {
        let uppers = uppers.into_iter().map(Some).chain([None]);
        let bin = |upper| Bin {
            upper,
            files: 0,
            bytes: 0,
        };
        Self {
            bins: uppers.map(bin).collect(),
        }
    }

    /// Creates a histogram of empty files, quarters and halves of a frame, and frames.
    pub fn of_frames(frames: Frames) -> Self {
        let one = frames.capacity(1);
        let whole = BIN_FRAMES.map(|count| frames.capacity(count));
        Self::new([0, one / 4, one / 2].into_iter().chain(whole))
    }

    pub(super) fn add(&mut self, size: u64) {
        let is_below = |bin: &Bin| bin.upper.is_some_and(|upper| upper < size);
        let index = self.bins.partition_point(is_below);
        if let Some(bin) = self.bins.get_mut(index) {
            bin.files += 1;
            bin.bytes = bin.bytes.saturating_add(size);
        }
    }

    /// Returns the bins, from the smallest files to the largest.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }
}

/// The sizes of all files of a tree.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// Number of files of each size up to [`EXACT_MAX`], then of each class of larger sizes.
    counts: Vec<u64>,
    files: u64,
    bytes: u64,
    frame_count: u64,
    frames: Frames,
    histogram: Histogram,
}

impl Sizes {
    pub(super) fn new(frames: Frames) -> Self {
        Self {
            counts: vec![0; slot(u64::MAX) + 1],
            files: 0,
            bytes: 0,
            frame_count: 0,
            frames,
            histogram: Histogram::of_frames(frames),
        }
    }

    pub(super) fn add(&mut self, size: u64) {
        if let Some(count) = self.counts.get_mut(slot(size)) {
            *count += 1;
        }
        self.files += 1;
        self.bytes = self.bytes.saturating_add(size);
        self.frame_count = self.frame_count.saturating_add(self.frames.count(size));
        self.histogram.add(size);
    }

    /// Returns the number of files.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Returns the sum of all sizes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of frames that carry the contents if each file is an RPC of its own.
    pub fn frame_count(&self) -> u64 {
        self.frame_count
    }

    /// Returns the network for which the sizes were counted.
    pub fn frames(&self) -> Frames {
        self.frames
    }

    /// Returns the files by size.
    pub fn histogram(&self) -> &Histogram {
        &self.histogram
    }

    /// Returns the number of empty files.
    pub fn empty(&self) -> u64 {
        self.counts.first().copied().unwrap_or_default()
    }

    /// Returns the mean size in bytes, rounded down; 0 without files.
    pub fn mean(&self) -> u64 {
        self.bytes.checked_div(self.files).unwrap_or_default()
    }

    /// Returns the size that at least half of all files do not exceed. Exact up to 64 KiB,
    /// and at most 0.4 % too small above it.
    pub fn median(&self) -> u64 {
        let mut left = self.files.div_ceil(2);
        for (slot, count) in self.counts.iter().enumerate() {
            if *count >= left {
                return least_of(slot);
            }
            left -= count;
        }
        0
    }
}

/// Number of classes between a power of two and the next one.
const CLASS_COUNT: u64 = 256;

/// Returns the index of a size in [`Sizes::counts`].
fn slot(size: u64) -> usize {
    let exact = EXACT_MAX as u64;
    let index = match size {
        _ if size <= exact => size,
        _ => {
            let exponent = u64::from(size.ilog2());
            let class = (size >> (exponent - 8)) % CLASS_COUNT;
            exact + 1 + (exponent - 16) * CLASS_COUNT + class
        }
    };
    // The fallback is unreachable: the greatest index is below 80,000.
    usize::try_from(index).unwrap_or_default()
}

/// Returns the least size at an index of [`Sizes::counts`].
fn least_of(slot: usize) -> u64 {
    let Some(class) = slot.checked_sub(EXACT_MAX + 1) else {
        return slot as u64;
    };
    let class = class as u64;
    let least = (CLASS_COUNT + class % CLASS_COUNT) << (class / CLASS_COUNT + 8);
    // 2^16, the least of the first class, has an index of its own.
    least.max(EXACT_MAX as u64 + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes(all: &[u64]) -> Sizes {
        let mut sizes = Sizes::new(Frames::at_mtu(1500));
        all.iter().for_each(|size| sizes.add(*size));
        sizes
    }

    #[test]
    fn a_frame_carries_1448_bytes_with_the_header_of_the_rpc() {
        let frames = Frames::at_mtu(1500);
        assert_eq!(frames.payload(), 1448);
        assert_eq!((frames.count(0), frames.count(1248)), (1, 1));
        assert_eq!((frames.count(1249), frames.count(2696)), (2, 2));
        assert_eq!((frames.capacity(1), frames.capacity(2)), (1248, 2696));
        assert_eq!(Frames::at_mtu(9000).count(8748), 1);
    }

    /// The counts are those of the case, whose script labelled each bin with its lower bound: it
    /// reported that 79.9 % of all files fit into one frame of 1,472 bytes.
    #[test]
    fn bins_are_labelled_with_their_upper_bound() {
        let bounds = [368, 736, 1_472, 2_944];
        let mut histogram = Histogram::new(bounds);
        let counts = [(368, 15_188), (736, 4_892), (1_472, 6_159), (2_944, 6_020)];
        for (size, count) in counts {
            (0..count).for_each(|_| histogram.add(size));
        }
        (0..40_375 - 32_259).for_each(|_| histogram.add(2_945));
        let files: Vec<u64> = histogram.bins().iter().map(|bin| bin.files).collect();
        assert_eq!(files, [15_188, 4_892, 6_159, 6_020, 8_116]);
        let share = |bins: usize| files[..bins].iter().sum::<u64>() * 1000 / 40_375;
        assert_eq!(share(3), 649, "one frame of 1,472 bytes");
        assert_eq!(share(4), 798, "two frames");
    }

    #[test]
    fn a_tree_without_files_has_no_mean_and_no_median() {
        let none = sizes(&[]);
        assert_eq!((none.mean(), none.median(), none.files()), (0, 0, 0));
        let huge = sizes(&[u64::MAX, u64::MAX]);
        assert_eq!(huge.bytes(), u64::MAX);
        assert!(huge.median() > u64::MAX / 256 * 254);
    }

    proptest! {
        #[test]
        fn every_file_is_in_one_bin_and_below_its_bound(all in sizes_of_files()) {
            let counted = sizes(&all);
            let bins = counted.histogram().bins();
            prop_assert_eq!(bins.iter().map(|bin| bin.files).sum::<u64>(), all.len() as u64);
            prop_assert_eq!(bins.iter().map(|bin| bin.bytes).sum::<u64>(), all.iter().sum::<u64>());
            let mut below = 0;
            for bin in bins {
                below += bin.files;
                let upper = bin.upper.unwrap_or(u64::MAX);
                let expected = all.iter().filter(|size| **size <= upper).count();
                prop_assert_eq!(below, expected as u64);
            }
        }

        #[test]
        fn the_median_is_that_of_the_sorted_sizes(mut all in sizes_of_files()) {
            all.sort_unstable();
            let exact = all[(all.len() - 1) / 2];
            let median = sizes(&all).median();
            prop_assert!(median <= exact && exact - median <= exact / 250, "{median} {exact}");
            prop_assert!(exact > 65_536 || median == exact);
        }

        #[test]
        fn sizes_and_their_classes_agree(size in any::<u64>(), shift in 0..64) {
            let size = size >> shift;
            let least = least_of(slot(size));
            prop_assert!(least <= size && size - least <= size / 256);
            prop_assert_eq!(slot(least), slot(size));
        }

        #[test]
        fn contents_fit_exactly_into_their_frames(size in 0..u64::MAX / 2, mtu in 576..=9000_u16) {
            let frames = Frames::at_mtu(mtu);
            let count = frames.count(size);
            prop_assert!(frames.capacity(count) >= size);
            prop_assert!(count == 1 || frames.capacity(count - 1) < size);
        }
    }

    fn sizes_of_files() -> impl Strategy<Value = Vec<u64>> {
        let size = (0..1_u64 << 40, 0..40).prop_map(|(size, shift)| size >> shift);
        proptest::collection::vec(size, 1..200)
    }
}
