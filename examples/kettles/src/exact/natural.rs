//! Natural numbers of any size, with the arithmetic that the statistics need.

/// Digits of base 2^32, little-endian, times 2^(32 · `start`).
///
/// Invariant: neither the first nor the last digit is zero; zero has no digits and `start` 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Natural {
    start: usize,
    digits: Vec<u32>,
}

impl Natural {
    /// Creates a number from digits and a carry, and normalises it.
    pub(super) fn new(start: usize, mut digits: Vec<u32>, carry: u64) -> Self {
        digits.extend([low(carry), low(carry >> 32)]);
        while digits.pop_if(|digit| *digit == 0).is_some() {}
        let zeros = digits.iter().take_while(|digit| **digit == 0).count();
        digits.drain(..zeros);
        let start = if digits.is_empty() { 0 } else { start + zeros };
        Self { start, digits }
    }

    /// Returns the exponent of the lowest digit, and the digits from there on; `None` for zero.
    pub(super) fn digits(&self) -> Option<(usize, &[u32])> {
        (!self.digits.is_empty()).then_some((self.start, &self.digits))
    }

    /// Multiplies by 2^(32 · `count`).
    pub(super) fn raised(mut self, count: usize) -> Self {
        if !self.digits.is_empty() {
            self.start += count;
        }
        self
    }

    pub(super) fn times(&self, other: &Self) -> Self {
        let mut digits = vec![0; self.digits.len() + other.digits.len()];
        for (at, &own) in self.digits.iter().enumerate() {
            let mut carry = 0;
            for (digit, &other) in digits[at..].iter_mut().zip(&other.digits) {
                let sum = u64::from(own) * u64::from(other) + u64::from(*digit) + carry;
                *digit = low(sum);
                carry = sum >> 32;
            }
            digits[at + other.digits.len()] = low(carry);
        }
        Self::new(self.start + other.start, digits, 0)
    }

    /// Subtracts `other`.
    ///
    /// # Panics
    ///
    /// If `other` is larger, which means that a sum of squares was wrong.
    pub(super) fn minus(&self, other: &Self) -> Self {
        let start = self.start.min(other.start);
        let end = self.end().max(other.end());
        let mut borrow = 0;
        let digits = (start..end)
            .map(|place| {
                let difference = i64::from(self.digit(place)) - i64::from(other.digit(place));
                let difference = difference + borrow;
                borrow = difference >> 32;
                (difference & 0xffff_ffff) as u32
            })
            .collect();
        assert!(borrow == 0, "the subtrahend is not larger");
        Self::new(start, digits, 0)
    }

    pub(super) fn divided(&self, divisor: u128) -> Quotient {
        Quotient::of(self, divisor)
    }

    /// Returns the lowest power of 2^32 that is above all digits.
    fn end(&self) -> usize {
        self.start + self.digits.len()
    }

    fn digit(&self, place: usize) -> u32 {
        let index = place.checked_sub(self.start);
        index
            .and_then(|index| self.digits.get(index))
            .copied()
            .unwrap_or(0)
    }

    fn bit(&self, place: i32) -> u128 {
        let Ok(place) = usize::try_from(place) else {
            return 0;
        };
        u128::from(self.digit(place / 32) >> (place % 32) & 1)
    }

    /// Returns whether any bit below `place` is set.
    fn has_below(&self, place: i32) -> bool {
        let Ok(place) = usize::try_from(place) else {
            return false;
        };
        let whole = (place / 32).saturating_sub(self.start);
        let part = self.digit(place / 32) & ((1 << (place % 32)) - 1);
        part != 0 || self.digits.iter().take(whole).any(|digit| *digit != 0)
    }
}

impl From<u64> for Natural {
    fn from(number: u64) -> Self {
        Self::new(0, Vec::new(), number)
    }
}

/// The top 126 to 128 bits of a quotient or its root: enough to round it correctly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quotient {
    bits: u128,
    /// The value is `bits` · 2^`exponent`, and a little more if `has_rest`.
    exponent: i32,
    has_rest: bool,
}

impl Quotient {
    /// Divides `number` by `divisor`.
    ///
    /// # Panics
    ///
    /// If `divisor` is 0.
    pub(super) fn of(number: &Natural, divisor: u128) -> Self {
        Self::of_multiple(number, divisor, 1)
    }

    /// Divides like [`Self::of`], but gives the quotient an even exponent, so that its root can be
    /// taken.
    pub(super) fn of_even(number: &Natural, divisor: u128) -> Self {
        Self::of_multiple(number, divisor, 2)
    }

    /// Divides bit by bit from the top, until there are enough bits to round correctly.
    fn of_multiple(number: &Natural, divisor: u128, multiple: i32) -> Self {
        assert!(divisor > 0, "the divisor is not zero");
        let (mut bits, mut rest) = (0_u128, 0_u128);
        let mut place = i32::try_from(32 * number.end()).expect("numbers are of few digits");
        if number.digits.is_empty() {
            return Self {
                bits,
                exponent: 0,
                has_rest: false,
            };
        }
        while bits < 1 << 126 || place % multiple != 0 {
            place -= 1;
            let carry = rest >> 127;
            rest = rest << 1 | number.bit(place);
            let fits = carry == 1 || rest >= divisor;
            if fits {
                rest = rest.wrapping_sub(divisor);
            }
            bits = bits << 1 | u128::from(fits);
        }
        Self {
            bits,
            exponent: place,
            has_rest: rest != 0 || number.has_below(place),
        }
    }

    /// Returns the square root.
    pub(super) fn root(self) -> Self {
        assert!(self.exponent % 2 == 0, "the exponent is even");
        let root = self.bits.isqrt();
        Self {
            bits: root,
            exponent: self.exponent / 2,
            has_rest: self.has_rest || root * root != self.bits,
        }
    }

    /// Returns the nearest double to this times 2^`unit_log2`, ties to even; infinite if it is too
    /// large.
    pub(super) fn rounded(self, unit_log2: i32) -> f64 {
        const SMALLEST_LOG2: i32 = -1074;
        let exponent = self.exponent + unit_log2;
        let Some(top) = self.bits.checked_ilog2() else {
            return 0.0;
        };
        let top = i32::try_from(top).expect("128 is small");
        // Distance between neighbouring doubles of this magnitude.
        let step_log2 = (exponent + top - 52).max(SMALLEST_LOG2);
        let shift = u32::try_from(step_log2 - exponent).expect("there are more bits than 53");
        let kept = self.bits.checked_shr(shift).unwrap_or(0);
        let rest = self.bits - kept.checked_shl(shift).unwrap_or(0);
        let odd = kept & 1 == 1;
        let up = 1_u128
            .checked_shl(shift - 1)
            .is_some_and(|half| rest > half || rest == half && (self.has_rest || odd));
        let steps = u64::try_from(kept + u128::from(up)).expect("53 bits are kept");
        // The bit pattern of a double counts steps of this distance, so a carry out of the mantissa
        // moves into the exponent by itself.
        let exponent_bits = u64::try_from(step_log2 - SMALLEST_LOG2).expect("it is not below");
        if exponent_bits >= 2046 {
            return f64::INFINITY;
        }
        f64::from_bits((exponent_bits << 52) + steps)
    }
}

/// Returns the lower 32 bits.
fn low(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}
