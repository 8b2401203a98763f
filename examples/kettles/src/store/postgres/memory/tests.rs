use super::*;

fn device(number: u8) -> DeviceId {
    DeviceId([number; 16])
}

fn row(number: u8, second: i64) -> Measurement {
    Measurement {
        device: device(number),
        time: Time::from_seconds(second),
        charge_now: i32::from(number),
        charge_full: 100,
        charge_rate: 0.1,
        ambient_temp: 20.1,
        water_temp: 30.1,
        water_level: 7,
    }
}

fn batch(rows: &[(u8, i64)]) -> Batch {
    Batch {
        measurements: rows.iter().map(|(it, second)| row(*it, *second)).collect(),
        ..Batch::default()
    }
}

/// Returns the newest measurements of a guess: device, time before the batch, and time after it.
fn newer(memory: &mut Memory, rows: &[(u8, i64)]) -> Option<Vec<(u8, Option<i64>, i64)>> {
    let batch = batch(rows);
    let guess = memory.guess(&batch, &Totals::default())?;
    let seconds = |time: Time| time.0 / 1_000_000;
    let entry = |it: &Newer| {
        (
            it.device.0[0],
            it.before.map(seconds),
            seconds(it.latest.time),
        )
    };
    Some(guess.newer.iter().map(entry).collect())
}

#[test]
fn only_newer_rows_of_known_devices_are_guessed() {
    let mut memory = Memory::default();
    assert_eq!(newer(&mut memory, &[(1, 5)]), None);
    memory.learn(device(1), None);
    memory.learn(device(2), Some(Latest::from(&row(2, 4))));
    // The newest row of each device, by device ID, with the time before the batch.
    assert_eq!(
        newer(&mut memory, &[(2, 5), (1, 6), (2, 7)]),
        Some(vec![(1, None, 6), (2, Some(4), 7)])
    );
    // Late rows do not change the newest measurement of their device.
    assert_eq!(
        newer(&mut memory, &[(1, 5), (2, 6), (1, 8)]),
        Some(vec![(1, Some(6), 8)])
    );
    assert_eq!(newer(&mut memory, &[(2, 7)]), None);
    assert_eq!(newer(&mut memory, &[(3, 7)]), None);
}

#[test]
fn logins_are_guessed_and_commands_are_not() {
    let mut memory = Memory::default();
    memory.learn(device(1), None);
    let logins = Batch {
        devices: vec![device(1), device(2), device(2)],
        ..Batch::default()
    };
    let guess = memory.guess(&logins, &Totals::default()).unwrap();
    assert_eq!(guess.made, [device(2)]);
    assert_eq!(guess.totals.device_count, 1);
    let confirmed = Batch {
        confirmed: vec![(device(1), Time::from_seconds(1))],
        ..Batch::default()
    };
    assert!(memory.guess(&confirmed, &Totals::default()).is_none());
}

#[test]
fn wrong_guesses_make_it_cautious() {
    let mut memory = Memory::default();
    let mut guesses = |is_right| {
        let mut rest = 0;
        while memory
            .guess(&Batch::default(), &Totals::default())
            .is_none()
        {
            rest += 1;
        }
        memory.judge(is_right);
        rest
    };
    let wrong: Vec<_> = (0..9).map(|_| guesses(false)).collect();
    assert_eq!(wrong, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
    let right: Vec<_> = (0..3).map(|_| guesses(true)).collect();
    assert_eq!(right, [64, 0, 0]);
    let again: Vec<_> = (0..2).map(|_| guesses(false)).collect();
    assert_eq!(again, [0, 16]);
}

#[test]
fn the_memory_of_devices_is_bounded() {
    let mut memory = Memory::default();
    for number in 0..=DEVICE_COUNT_MAX as u128 {
        memory.learn(DeviceId(number.to_be_bytes()), None);
    }
    assert_eq!(memory.devices.len(), 1);
    // At the limit, the table was emptied and not enlarged.
    assert!(memory.devices.capacity() <= DEVICE_COUNT_MAX);
    assert_eq!(size_of::<(DeviceId, Known)>(), 64);
}
