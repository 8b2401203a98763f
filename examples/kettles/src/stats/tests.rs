use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::{History, Totals};
use crate::device::{DeviceId, Latest, Measurement};
use crate::time::Time;

const HOUR_US: i64 = 3_600_000_000;

fn measurement() -> impl Strategy<Value = Measurement> {
    let temp = || prop_oneof![-40.0..120.0_f64, -1e300..1e300_f64];
    let device = (0..4_u8).prop_map(|device| DeviceId([device; 16]));
    (
        device,
        -50..50_i64,
        any::<i32>(),
        temp(),
        temp(),
        any::<i32>(),
    )
        .prop_map(
            |(device, hours, charge_now, ambient_temp, water_temp, water_level)| Measurement {
                device,
                time: Time(hours * HOUR_US),
                charge_now,
                charge_full: 100,
                charge_rate: 1.5,
                ambient_temp,
                water_temp,
                water_level,
            },
        )
}

/// Generates measurements of four devices, at most one for each device and time.
fn measurements() -> impl Strategy<Value = Vec<Measurement>> {
    prop::collection::vec(measurement(), 0..60).prop_map(|mut measurements| {
        let mut seen = HashSet::new();
        measurements.retain(|it| seen.insert((it.device, it.time)));
        measurements
    })
}

/// Computes totals row by row, as a store does.
fn totals(measurements: &[Measurement]) -> Totals {
    let mut totals = Totals::default();
    let mut latest = HashMap::new();
    for measurement in measurements {
        let latest = latest.entry(measurement.device).or_insert_with(|| {
            totals.device_count += 1;
            None
        });
        totals.take(latest, measurement);
    }
    totals
}

proptest! {
    #[test]
    fn late_rows_give_the_same_totals(
        (sorted, shuffled) in measurements().prop_flat_map(|measurements| {
            let mut sorted = measurements.clone();
            sorted.sort_by_key(|it| (it.time, it.device));
            (Just(sorted), Just(measurements).prop_shuffle())
        }),
    ) {
        let totals = totals(&sorted);
        prop_assert_eq!(&totals, &self::totals(&shuffled));
        let mut recounted = Totals { device_count: totals.device_count, ..Totals::default() };
        let mut latest = HashMap::new();
        for measurement in &sorted {
            recounted.history.add(measurement);
            latest.insert(measurement.device, Latest::from(measurement));
        }
        for latest in latest.values() {
            recounted.replace(None, latest);
        }
        prop_assert_eq!(&totals, &recounted);
        prop_assert_eq!(totals.to_json(), recounted.to_json());
    }

    #[test]
    fn totals_of_pruned_and_remaining_rows_add_up(measurements in measurements(), before in -50..50_i64) {
        let history = totals(&measurements).history;
        let (mut old, mut rest) = (History::default(), History::default());
        for measurement in &measurements {
            let part = if measurement.time.0 < before * HOUR_US { &mut old } else { &mut rest };
            part.add(measurement);
        }
        prop_assert_eq!(history.without(&old), Some(rest.clone()));
        rest.merge(&old);
        prop_assert_eq!(rest, history);
    }

    #[test]
    fn encoded_totals_are_decoded_to_the_same_values(measurements in measurements(), cut in any::<prop::sample::Index>()) {
        let totals = totals(&measurements);
        let mut bytes = totals.to_bytes();
        prop_assert_eq!(Totals::from_bytes(&bytes), Some(totals));
        prop_assert_eq!(Totals::from_bytes(&bytes[..cut.index(bytes.len())]), None);
        bytes.push(0);
        prop_assert_eq!(Totals::from_bytes(&bytes), None);
    }
}

#[test]
fn subtracting_more_than_the_total_fails() {
    let one = measurement_at(0);
    let mut history = History::default();
    history.add(&one);
    assert_eq!(History::default().without(&history), None);
    assert_eq!(history.without(&history), Some(History::default()));
}

#[test]
fn json_of_no_device() {
    assert_eq!(
        Totals::default().to_json(),
        "{\"statsMeasurementCount\":0,\"statsNumDevices\":0,\"statsTotalBatteryCharge\":0,\
         \"statsTotalWaterVolume\":0,\"statsMeanTemperature\":[],\"statsTotalWaterEnergy\":0.0}",
    );
}

#[test]
fn json_of_two_devices() {
    let mut totals = Totals {
        device_count: 2,
        ..Totals::default()
    };
    let (first, second) = (measurement_at(5), measurement_at(7));
    let mut latest = None;
    totals.take(&mut latest, &first);
    totals.take(&mut latest, &second);
    let late = Measurement {
        water_temp: 90.0,
        ..first
    };
    totals.take(&mut latest, &late);
    assert_eq!(latest, Some(Latest::from(&second)));
    totals.take(&mut None, &second);
    assert_eq!(
        totals.to_json(),
        "{\"statsMeasurementCount\":4,\"statsNumDevices\":2,\"statsTotalBatteryCharge\":80,\
         \"statsTotalWaterVolume\":2000,\
         \"statsMeanTemperature\":[[5,[85.25,4.75]],[7,[80.5,0.0]]],\
         \"statsTotalWaterEnergy\":506506.0}",
    );
}

#[test]
fn json_has_no_infinity() {
    let hot = Measurement {
        water_temp: f64::MAX,
        water_level: i32::MAX,
        ..measurement_at(0)
    };
    let mut totals = Totals::default();
    totals.take(&mut None, &hot);
    assert!(
        totals
            .to_json()
            .ends_with("\"statsTotalWaterEnergy\":1.7976931348623157e308}")
    );
}

fn measurement_at(hour: i64) -> Measurement {
    Measurement {
        device: DeviceId([0; 16]),
        time: Time(hour * HOUR_US),
        charge_now: 40,
        charge_full: 100,
        charge_rate: -2.5,
        ambient_temp: 20.0,
        water_temp: 80.5,
        water_level: 1000,
    }
}
