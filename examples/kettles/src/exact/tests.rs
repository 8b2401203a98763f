//! Sums and moments agree with rational arithmetic of arbitrary precision.

use std::cmp::Ordering;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed as _, Zero as _};
use proptest::prelude::*;

use super::{ExactSum, Moments};

fn rational(value: f64) -> BigRational {
    BigRational::from_float(value).expect("it is finite")
}

fn integer(value: impl Into<BigInt>) -> BigRational {
    BigRational::from_integer(value.into())
}

/// Asserts that `value` is the double nearest to an exact number. `compare` compares its argument
/// with that number.
#[track_caller]
fn assert_nearest(value: f64, compare: impl Fn(&BigRational) -> Ordering) {
    let even = value.to_bits() & 1 == 0;
    let (below, above) = (value.next_down(), value.next_up());
    let two = integer(2);
    let exact = rational(value);
    // Above the largest double, the distance to the next one is assumed to be the same.
    let below = if below.is_finite() {
        rational(below)
    } else {
        &exact * &two - rational(above)
    };
    let above = if above.is_finite() {
        rational(above)
    } else {
        &exact * &two - &below
    };
    let (low, high) = ((&exact + below) / &two, (&exact + above) / &two);
    let (low, high) = (compare(&low), compare(&high));
    assert!(low.is_lt() || low.is_eq() && even, "{value:e} is too large");
    assert!(
        high.is_gt() || high.is_eq() && even,
        "{value:e} is too small"
    );
}

struct Oracle {
    count: BigRational,
    sum: BigRational,
    squares: BigRational,
}

impl Oracle {
    fn of(values: &[f64]) -> Self {
        let rationals = || values.iter().copied().map(rational);
        Self {
            count: integer(values.len()),
            sum: rationals().sum(),
            squares: rationals().map(|value| &value * &value).sum(),
        }
    }

    fn mean(&self) -> BigRational {
        &self.sum / &self.count
    }

    fn variance(&self) -> BigRational {
        &self.squares / &self.count - self.mean() * self.mean()
    }
}

fn moments(values: &[f64]) -> Moments {
    let mut moments = Moments::default();
    for value in values {
        moments.add(*value);
    }
    moments
}

#[track_caller]
fn check(values: &[f64]) {
    let oracle = Oracle::of(values);
    let moments = moments(values);
    let mean = moments.mean().expect("there are values");
    assert_nearest(mean, |number| number.cmp(&oracle.mean()));
    let variance = moments.variance().expect("there are values");
    if variance.is_finite() {
        assert_nearest(variance, |number| number.cmp(&oracle.variance()));
    } else {
        assert!(oracle.variance() > rational(f64::MAX));
    }
    let deviation = moments.deviation().expect("there are values");
    assert_nearest(deviation, |number| match number.is_negative() {
        true => Ordering::Less,
        false => (number * number).cmp(&oracle.variance()),
    });
}

/// Generates any double; integral, tiny and subnormal ones are more frequent than with random bits.
fn double() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<u64>()
            .prop_map(f64::from_bits)
            .prop_filter("finite", |it| it.is_finite()),
        (-400..1_200_i32).prop_map(|tenths| f64::from(tenths) / 10.0),
        (0..1_u64 << 54).prop_map(f64::from_bits),
        -1e3..1e3_f64,
        prop::sample::select(vec![
            f64::MAX,
            f64::MIN,
            f64::MIN_POSITIVE,
            -5e-324,
            0.0,
            -0.0
        ]),
    ]
}

fn doubles() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(double(), 1..40)
}

proptest! {
    #[test]
    fn mean_variance_and_deviation_are_rounded_once(values in doubles()) {
        check(&values);
    }

    /// Neighbouring values, whose variance is a small difference of large numbers.
    #[test]
    fn neighbouring_values(start in double(), steps in prop::collection::vec(0..4_u64, 1..20))
    {
        let up = |steps| (0..steps).fold(start, |value: f64, _| value.next_up().min(f64::MAX));
        check(&steps.into_iter().map(up).collect::<Vec<_>>());
    }

    #[test]
    fn order_and_shards_do_not_matter(values in doubles(), at in any::<prop::sample::Index>()) {
        let whole = moments(&values);
        let (left, right) = values.split_at(at.index(values.len()));
        let mut merged = moments(right);
        merged.merge(&moments(left));
        prop_assert_eq!(&merged, &whole);
        prop_assert_eq!(merged.sum.to_bytes(), whole.sum.to_bytes());
        prop_assert!(merged.separate(&moments(right)));
        prop_assert_eq!(merged, moments(left));
    }

    #[test]
    fn products_are_exact(pairs in prop::collection::vec((double(), any::<i64>()), 0..20)) {
        let mut sum = ExactSum::default();
        let mut oracle = BigRational::zero();
        for (value, factor) in &pairs {
            sum.add_product(*value, *factor);
            oracle += rational(*value) * integer(*factor);
        }
        let oracle = oracle * integer(4186) / integer(1000);
        let rounded = sum.ratio(4186, 1000);
        if rounded.is_finite() {
            assert_nearest(rounded, |number| number.cmp(&oracle));
        } else {
            prop_assert!(oracle.abs() > rational(f64::MAX));
        }
        for (value, factor) in pairs {
            sum.add_product(-value, factor);
        }
        prop_assert_eq!(sum.to_bytes(), Vec::<u8>::new());
    }

    #[test]
    fn encoded_sums_are_decoded_to_the_same_values(values in doubles()) {
        let sum = moments(&values).sum;
        let bytes = sum.to_bytes();
        prop_assert_eq!(ExactSum::from_bytes(&bytes), Some(sum));
    }

    /// A sum has only one encoding: bytes that can be decoded are encoded to the same bytes again.
    #[test]
    fn other_bytes_are_refused(bytes in prop::collection::vec(0..3_u8, 0..20)) {
        if let Some(sum) = ExactSum::from_bytes(&bytes) {
            prop_assert_eq!(sum.to_bytes(), bytes);
        }
    }
}

#[test]
fn ties_are_rounded_to_even() {
    let (odd, even) = (1.0_f64.next_up(), 1.0);
    assert_eq!(moments(&[odd, even]).mean(), Some(even));
    let above = odd.next_up();
    assert_eq!(moments(&[odd, above]).mean(), Some(above));
    assert_eq!(moments(&[5e-324, 0.0]).mean(), Some(0.0));
    assert_eq!(moments(&[5e-324, 5e-324, 0.0]).mean(), Some(5e-324));
    assert_eq!(moments(&[1.5e-323, 1e-323]).mean(), Some(1e-323));
}

#[test]
fn moments_of_known_samples() {
    let eight = moments(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
    assert_eq!(eight.mean(), Some(5.0));
    assert_eq!(eight.variance(), Some(4.0));
    assert_eq!(eight.deviation(), Some(2.0));
    let largest = moments(&[f64::MAX, f64::MIN]);
    assert_eq!(largest.mean(), Some(0.0));
    assert_eq!(largest.variance(), Some(f64::INFINITY));
    assert_eq!(largest.deviation(), Some(f64::MAX));
    assert_eq!(Moments::default().mean(), None);
    assert_eq!(Moments::default().deviation(), None);
}

/// With rounding at each step, the result would be 0, 1 or 2, depending on the order.
#[test]
fn sums_keep_values_that_floats_would_lose() {
    let mut sum = ExactSum::default();
    for value in [1.0, 1e300, 1.0, -1e300] {
        sum.add(value);
    }
    assert_eq!(sum.ratio(1, 1), 2.0);
    sum.subtract(2.0);
    assert_eq!(sum, ExactSum::default());
}

#[test]
fn carries_are_propagated_before_they_overflow() {
    let mut sum = ExactSum::default();
    let mut oracle = BigRational::zero();
    for value in [f64::MAX, -f64::MAX.next_down(), 0.1] {
        sum.add(value);
        oracle += rational(value);
        sum.pending = super::PENDING_MAX - 1;
    }
    sum.add(0.1);
    oracle += rational(0.1);
    assert!(sum.pending <= 1);
    assert_nearest(sum.ratio(1, 1), |number| number.cmp(&oracle));
}

#[test]
#[should_panic(expected = "only finite numbers have a sum")]
fn infinity_is_refused() {
    ExactSum::default().add(f64::INFINITY);
}
