//! Exact sums of floating-point numbers; only the result is rounded.
//!
//! A floating-point sum depends on the order of addition: the same rows in other batches give
//! another last digit, so a lost row looks like a rounding error. An [`ExactSum`] is an integer
//! multiple of 2^-2176, so any order, batching, merging or removal of rows gives the same bits. The
//! unit is small enough to represent the squares of the smallest doubles.
//!
//! Mean, variance and deviation are rational numbers or their roots; each is rounded to the nearest
//! double once, when it is read.

use natural::{Natural, Quotient};

mod natural;
#[cfg(test)]
mod tests;

/// Binary logarithm of the unit of an [`ExactSum`]. It is a whole number of limbs, and the unit is
/// below the square of the smallest double, 2^-2148.
const UNIT_LOG2: i32 = -2176;
const UNIT_LIMB_COUNT: usize = 68;

/// Number of additions after which carries must be propagated: each addition changes a limb by less
/// than 2^33.
const PENDING_MAX: u32 = 1 << 29;

/// An exact sum of finite doubles, of their squares, or of their products with integers.
///
/// Takes about 10 to 50 bytes of memory for values of similar magnitude, up to 600 bytes for the
/// full range of doubles.
#[derive(Debug, Clone, Default)]
pub struct ExactSum {
    /// Exponent of the first limb: `limbs[0]` counts multiples of 2^(32 · `start`) units.
    start: usize,
    /// Digits of base 2^32, whose carries are not propagated yet; any digit may be negative.
    limbs: Vec<i64>,
    /// Number of additions since carries were last propagated.
    pending: u32,
}

impl ExactSum {
    /// Adds `value`.
    ///
    /// # Panics
    ///
    /// If `value` is infinite or not a number. The same holds for all methods below: callers must
    /// reject such input.
    pub fn add(&mut self, value: f64) {
        self.add_product(value, 1);
    }

    /// Subtracts `value`.
    pub fn subtract(&mut self, value: f64) {
        self.add_product(value, -1);
    }

    /// Adds `value` · `factor` exactly.
    pub fn add_product(&mut self, value: f64, factor: i64) {
        let (mantissa, exponent) = parts(value);
        let negative = value.is_sign_negative() != (factor < 0);
        let product = u128::from(mantissa) * u128::from(factor.unsigned_abs());
        self.add_scaled(product, exponent, negative);
    }

    /// Adds the square of `value`.
    pub fn add_square(&mut self, value: f64) {
        let (mantissa, exponent) = parts(value);
        self.add_scaled(u128::from(mantissa).pow(2), 2 * exponent, false);
    }

    /// Subtracts the square of `value`.
    pub fn subtract_square(&mut self, value: f64) {
        let (mantissa, exponent) = parts(value);
        self.add_scaled(u128::from(mantissa).pow(2), 2 * exponent, true);
    }

    /// Adds `other`.
    pub fn merge(&mut self, other: &Self) {
        let (negative, magnitude) = other.signed();
        self.add_natural(&magnitude, negative);
    }

    /// Subtracts `other`.
    pub fn separate(&mut self, other: &Self) {
        let (negative, magnitude) = other.signed();
        self.add_natural(&magnitude, !negative);
    }

    /// Returns the sum · `numerator` / `denominator`, rounded to the nearest double.
    pub fn ratio(&self, numerator: u32, denominator: u64) -> f64 {
        let (negative, magnitude) = self.signed();
        let quotient = magnitude
            .times(&Natural::from(u64::from(numerator)))
            .divided(u128::from(denominator));
        let rounded = quotient.rounded(UNIT_LOG2);
        if negative { -rounded } else { rounded }
    }

    /// Serialises the sum for [`Self::from_bytes`]. Equal sums have equal bytes.
    ///
    /// Zero is empty. Any other sum is a byte for the sign (0 or 1), a byte for the power of 2^32
    /// of the first digit, and 32-bit little-endian digits of which the first and last are not
    /// zero.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (negative, magnitude) = self.signed();
        let Some((start, limbs)) = magnitude.digits() else {
            return Vec::new();
        };
        let mut bytes = vec![u8::from(negative), place_byte(start)];
        bytes.extend(limbs.iter().flat_map(|limb| limb.to_le_bytes()));
        bytes
    }

    /// Reads the output of [`Self::to_bytes`]; `None` if it is malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [negative @ 0..=1, start, digits @ ..] = bytes else {
            return bytes.is_empty().then(Self::default);
        };
        let (digits, rest) = digits.as_chunks();
        let mut sum = Self {
            start: usize::from(*start),
            limbs: digits
                .iter()
                .map(|digit| i64::from(u32::from_le_bytes(*digit)))
                .collect(),
            pending: 1,
        };
        if *negative == 1 {
            sum.negate();
        }
        (rest.is_empty() && sum.to_bytes() == bytes).then_some(sum)
    }

    fn negate(&mut self) {
        for limb in &mut self.limbs {
            *limb = -*limb;
        }
    }

    /// Adds ± `mantissa` · 2^`exponent`.
    fn add_scaled(&mut self, mantissa: u128, exponent: i32, negative: bool) {
        if mantissa == 0 {
            return;
        }
        let bit = usize::try_from(exponent - UNIT_LOG2).expect("the unit is less than any square");
        let shift = bit % 32;
        self.reach(bit / 32, 5);
        let first = bit / 32 - self.start;
        for (index, limb) in (first..).zip(0..4) {
            let part = (mantissa >> (32 * limb) & 0xffff_ffff) as u32;
            let part = i64::from(part) << shift;
            let (low, high) = (part & 0xffff_ffff, part >> 32);
            let sign = if negative { -1 } else { 1 };
            self.limbs[index] += sign * low;
            self.limbs[index + 1] += sign * high;
        }
        self.count_adding();
    }

    fn add_natural(&mut self, magnitude: &Natural, negative: bool) {
        let Some((start, limbs)) = magnitude.digits() else {
            return;
        };
        self.reach(start, limbs.len());
        let own = &mut self.limbs[start - self.start..];
        for (own, limb) in own.iter_mut().zip(limbs) {
            *own += if negative { -1 } else { 1 } * i64::from(*limb);
        }
        self.count_adding();
    }

    /// Extends the limbs to cover `count` limbs from `first` on.
    fn reach(&mut self, first: usize, count: usize) {
        if self.limbs.is_empty() {
            self.start = first;
        }
        if first < self.start {
            let missing = self.start - first;
            self.limbs.splice(0..0, std::iter::repeat_n(0, missing));
            self.start = first;
        }
        let len = first + count - self.start;
        if self.limbs.len() < len {
            self.limbs.resize(len, 0);
        }
    }

    fn count_adding(&mut self) {
        self.pending += 1;
        if self.pending >= PENDING_MAX {
            let (negative, magnitude) = self.signed();
            *self = Self::default();
            self.add_natural(&magnitude, negative);
        }
    }

    /// Returns the sign (true if negative) and the magnitude in units.
    fn signed(&self) -> (bool, Natural) {
        let (digits, carry) = carried(self.limbs.iter().copied());
        if carry >= 0 {
            return (
                false,
                Natural::new(self.start, digits, carry.unsigned_abs()),
            );
        }
        let (digits, carry) = carried(self.limbs.iter().map(|limb| -limb));
        (true, Natural::new(self.start, digits, carry.unsigned_abs()))
    }
}

impl PartialEq for ExactSum {
    fn eq(&self, other: &Self) -> bool {
        self.signed() == other.signed()
    }
}

impl Eq for ExactSum {}

/// Count, sum and sum of squares of values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moments {
    /// Number of values.
    pub count: u64,
    /// Sum of the values.
    pub sum: ExactSum,
    /// Sum of their squares.
    pub squares: ExactSum,
}

impl Moments {
    /// Adds `value`.
    ///
    /// # Panics
    ///
    /// If it is not finite.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum.add(value);
        self.squares.add_square(value);
    }

    /// Adds all values of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum.merge(&other.sum);
        self.squares.merge(&other.squares);
    }

    /// Removes the values of `other`; returns `false` and changes nothing if they are not all
    /// included.
    #[must_use]
    pub fn separate(&mut self, other: &Self) -> bool {
        let Some(count) = self.count.checked_sub(other.count) else {
            return false;
        };
        self.count = count;
        self.sum.separate(&other.sum);
        self.squares.separate(&other.squares);
        true
    }

    /// Returns the mean Σx / n, rounded to the nearest double; `None` without values.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.ratio(1, self.count))
    }

    /// Returns the population variance (n·Σx² − (Σx)²) / n², rounded to the nearest double.
    pub fn variance(&self) -> Option<f64> {
        let quotient = self.variance_quotient(Quotient::of)?;
        Some(quotient.rounded(2 * UNIT_LOG2))
    }

    /// Returns the square root of the exact variance, rounded to the nearest double.
    pub fn deviation(&self) -> Option<f64> {
        let quotient = self.variance_quotient(Quotient::of_even)?;
        Some(quotient.root().rounded(UNIT_LOG2))
    }

    /// Returns the exact variance as a quotient.
    fn variance_quotient(&self, divide: fn(&Natural, u128) -> Quotient) -> Option<Quotient> {
        if self.count == 0 {
            return None;
        }
        let (_, sum) = self.sum.signed();
        let (_, squares) = self.squares.signed();
        let of_squares = squares
            .times(&Natural::from(self.count))
            .raised(UNIT_LIMB_COUNT);
        let numerator = of_squares.minus(&sum.times(&sum));
        Some(divide(&numerator, u128::from(self.count).pow(2)))
    }
}

/// Returns the power of 2^32 of a sum's first digit as one byte. It fits, because all squares are
/// below 2^(32 · 131) units.
fn place_byte(start: usize) -> u8 {
    u8::try_from(start).expect("no sum is of that many values")
}

/// Splits |`value`| into an integer below 2^53 and a power of 2.
fn parts(value: f64) -> (u64, i32) {
    assert!(value.is_finite(), "only finite numbers have a sum");
    let bits = value.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    let exponent = (bits >> 52 & 0x7ff) as i32;
    match exponent {
        0 => (fraction, -1074),
        _ => (fraction | 1 << 52, exponent - 1075),
    }
}

/// Propagates carries; returns the digits of base 2^32, and the carry out of the last one.
fn carried(limbs: impl Iterator<Item = i64>) -> (Vec<u32>, i64) {
    let mut carry = 0;
    let digits = limbs
        .map(|limb| {
            let sum = limb + carry;
            carry = sum >> 32;
            (sum & 0xffff_ffff) as u32
        })
        .collect();
    (digits, carry)
}
