use std::collections::HashSet;

use super::Plan;
use crate::stats::Totals;
use crate::time::Time;

fn week() -> Plan {
    Plan {
        device_count: 20,
        from: Time::from_seconds(1_500_000_000),
        to: Time::from_seconds(1_500_000_000 + 7 * 86_400),
        every_seconds: 300,
        seed: 2017,
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let history: Vec<_> = week().measurements().collect();
    assert_eq!(history.len() as u64, week().row_count());
    assert!(week().measurements().eq(history.iter().copied()));
    let other = Plan {
        seed: 2018,
        ..week()
    };
    assert!(!other.measurements().eq(history.iter().copied()));
    // The totals are constants: generation must give the same values on every processor and with
    // every compiler.
    let mut totals = Totals::default();
    history.iter().for_each(|it| totals.history.add(it));
    assert_eq!(
        totals.history.water_temps[8].mean(),
        Some(40.392_619_047_619_05)
    );
}

#[test]
fn rows_are_sorted_by_time_and_device_without_duplicates() {
    let plan = week();
    let keys: Vec<_> = plan.measurements().map(|it| (it.time, it.device)).collect();
    assert!(keys.is_sorted_by(|a, b| a < b));
    assert!(
        keys.iter()
            .all(|(time, _)| (plan.from..plan.to).contains(time))
    );
    let devices: HashSet<_> = keys.iter().map(|(_, device)| *device).collect();
    assert_eq!(devices, plan.devices().collect());
    assert_eq!(devices.len(), 20);
    let names = devices.iter().map(ToString::to_string);
    assert!(names.into_iter().all(|it| it.as_bytes()[14] == b'4'));
}

#[test]
fn kettles_are_boiled_filled_and_charged() {
    let mut totals = Totals::default();
    let (mut boiled, mut charged) = (0, 0);
    for it in week().measurements() {
        assert!((0..=it.charge_full).contains(&it.charge_now), "{it:?}");
        assert!((0..=1700).contains(&it.water_level), "{it:?}");
        assert!((5.0..=100.0).contains(&it.water_temp), "{it:?}");
        assert!((5.0..40.0).contains(&it.ambient_temp), "{it:?}");
        boiled += u32::from(it.water_temp == 100.0);
        charged += u32::from(it.charge_rate > 0.0);
        totals.history.add(&it);
    }
    assert!((300..1500).contains(&boiled), "{boiled}");
    assert!(charged > 1000, "{charged}");
    let mean = |hour: usize| totals.history.water_temps[hour].mean().unwrap();
    assert!(
        mean(8) > mean(3) + 5.0,
        "mornings are hot: {} {}",
        mean(8),
        mean(3)
    );
}

#[test]
fn an_empty_time_range_has_no_rows() {
    let plan = Plan {
        to: week().from,
        ..week()
    };
    assert_eq!(plan.row_count(), 0);
    assert_eq!(plan.measurements().count(), 0);
}
