//! Commands for kettles.
//!
//! A kettle gets its newest due command with each `GET /command` until a measurement confirms it.
//! The original server never read its table of commands and always sent the response without a
//! command.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use crate::device::{DeviceId, Measurement};
use crate::time::Time;

/// Response to `GET /command` if there is no command.
pub const NOTHING: &str =
    r#"{"charge":"NoChargeBattery","fill":"NoFillReservoir","flush":{"tag":"NoFlushReservoir"}}"#;

/// A command for one kettle, which becomes due at a certain time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Command {
    /// Kettle that must execute it.
    pub device: DeviceId,
    /// Time at which it becomes due.
    pub time: Time,
    /// Whether to charge the battery.
    pub charge: bool,
    /// Whether to fill the reservoir.
    pub fill: bool,
    /// Water to drain, in mL.
    pub flush: Option<f64>,
}

impl Command {
    /// Returns the JSON for `GET /command` in the encoding of Haskell's Aeson: a constructor
    /// without fields is a string, one with fields is an object with a tag.
    pub fn to_json(&self) -> String {
        let charge = if self.charge { "" } else { "No" };
        let fill = if self.fill { "" } else { "No" };
        let flush = match self.flush {
            Some(volume) => format!(r#"{{"tag":"FlushReservoir","contents":{volume:?}}}"#),
            None => r#"{"tag":"NoFlushReservoir"}"#.to_owned(),
        };
        format!(
            r#"{{"charge":"{charge}ChargeBattery","fill":"{fill}FillReservoir","flush":{flush}}}"#
        )
    }
}

/// Commands that are not confirmed yet. While there are none, a look-up only reads `device_count`,
/// without a lock.
#[derive(Debug, Default)]
pub struct Commands {
    open: RwLock<HashMap<DeviceId, Vec<Open>>>,
    /// Number of entries in `open`.
    device_count: AtomicUsize,
    /// Due times of future commands, with their devices.
    due: Mutex<BTreeSet<(Time, DeviceId)>>,
}

#[derive(Debug)]
struct Open {
    command: Command,
    /// Whether the server has sent the command to the kettle.
    is_sent: AtomicBool,
}

impl Commands {
    /// Adds a command; replaces a command of the same kettle and time.
    pub fn add(&self, command: Command) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let commands = open.entry(command.device).or_default();
        commands.retain(|other| other.command.time != command.time);
        commands.push(Open {
            command,
            is_sent: AtomicBool::new(false),
        });
        self.device_count.store(open.len(), Ordering::Release);
        self.due().insert((command.time, command.device));
    }

    /// Replaces all commands by those in the store, where other processes may have added or
    /// confirmed some. Commands that were sent stay marked as sent.
    pub fn replace(&self, stored: Vec<Command>) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *open);
        for command in stored {
            let known = before.get_mut(&command.device).and_then(|commands| {
                let index = commands.iter().position(|it| it.command == command)?;
                Some(commands.swap_remove(index))
            });
            if known.is_none() {
                self.due().insert((command.time, command.device));
            }
            let known = known.unwrap_or(Open {
                command,
                is_sent: AtomicBool::new(false),
            });
            open.entry(command.device).or_default().push(known);
        }
        self.device_count.store(open.len(), Ordering::Release);
    }

    /// Returns the devices with a command that has become due since the last call.
    pub fn take_due(&self, now: Time) -> Vec<DeviceId> {
        let mut due = self.due();
        let mut devices = Vec::new();
        while let Some((time, device)) = due.first().copied()
            && time <= now
        {
            due.pop_first();
            devices.push(device);
        }
        devices
    }

    fn due(&self) -> MutexGuard<'_, BTreeSet<(Time, DeviceId)>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the newest due command if it was not sent to the kettle yet, and marks it as sent.
    pub fn take_unsent(&self, device: DeviceId, now: Time) -> Option<Command> {
        let newest = self.due_now(device, now)?;
        self.mark_sent(device, now)
            .contains(&newest)
            .then_some(newest)
    }

    /// Returns the newest due command.
    pub fn due_now(&self, device: DeviceId, now: Time) -> Option<Command> {
        self.newest(device, |open| open.command.time <= now)
    }

    /// Returns the newest due command and marks it as sent.
    pub fn deliver(&self, device: DeviceId, now: Time) -> Option<Command> {
        self.due_now(device, now)
            .inspect(|_| drop(self.mark_sent(device, now)))
    }

    /// Marks all due commands as sent; returns those that were not sent before.
    fn mark_sent(&self, device: DeviceId, now: Time) -> Vec<Command> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let commands = open.get(&device).into_iter().flatten();
        let due = commands.filter(|open| open.command.time <= now);
        let unsent = due.filter(|open| !open.is_sent.swap(true, Ordering::AcqRel));
        unsent.map(|open| open.command).collect()
    }

    /// Returns the time of the newest sent command that `measurement` confirms.
    pub fn confirmed_by(&self, measurement: &Measurement) -> Option<Time> {
        let is_sent = |open: &Open| open.is_sent.load(Ordering::Acquire);
        let newest = self.newest(measurement.device, is_sent)?;
        Some(newest.time)
    }

    /// Removes a command whose confirmation is durable, and all older commands.
    pub fn done(&self, device: DeviceId, time: Time) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(commands) = open.get_mut(&device) {
            commands.retain(|open| open.command.time > time);
            if commands.is_empty() {
                open.remove(&device);
            }
        }
        self.device_count.store(open.len(), Ordering::Release);
    }

    fn newest(&self, device: DeviceId, is_meant: impl Fn(&Open) -> bool) -> Option<Command> {
        if self.device_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let commands = open.get(&device)?.iter().filter(|open| is_meant(open));
        commands
            .map(|open| open.command)
            .max_by_key(|command| command.time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(seconds: i64) -> Command {
        Command {
            device: DeviceId([7; 16]),
            time: Time::from_seconds(seconds),
            charge: true,
            fill: false,
            flush: Some(2.5),
        }
    }

    fn measurement() -> Measurement {
        Measurement {
            device: DeviceId([7; 16]),
            time: Time::from_seconds(50),
            charge_now: 1,
            charge_full: 1,
            charge_rate: 0.0,
            ambient_temp: 20.0,
            water_temp: 20.0,
            water_level: 1,
        }
    }

    #[test]
    fn commands_are_written_as_aeson_does() {
        let nothing = Command {
            charge: false,
            flush: None,
            ..command(0)
        };
        assert_eq!(nothing.to_json(), NOTHING);
        let all = Command {
            fill: true,
            ..command(0)
        };
        assert_eq!(
            all.to_json(),
            r#"{"charge":"ChargeBattery","fill":"FillReservoir","flush":{"tag":"FlushReservoir","contents":2.5}}"#
        );
    }

    #[test]
    fn the_newest_due_command_is_repeated_until_confirmed() {
        let commands = Commands::default();
        let (device, now) = (DeviceId([7; 16]), Time::from_seconds(25));
        for seconds in [10, 20, 30] {
            commands.add(command(seconds));
        }
        assert_eq!(commands.confirmed_by(&measurement()), None);
        assert_eq!(commands.deliver(DeviceId([8; 16]), now), None);
        for _ in 0..2 {
            assert_eq!(commands.deliver(device, now), Some(command(20)));
        }
        let confirmed = commands.confirmed_by(&measurement()).unwrap();
        assert_eq!(confirmed, Time::from_seconds(20));
        commands.done(device, confirmed);
        assert_eq!(commands.deliver(device, now), None);
        // Commands that become due later are kept.
        let later = Time::from_seconds(30);
        assert_eq!(commands.deliver(device, later), Some(command(30)));
        commands.done(device, later);
        assert_eq!(commands.device_count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_command_that_becomes_due_is_announced_once() {
        let commands = Commands::default();
        let (device, at) = (DeviceId([7; 16]), Time::from_seconds);
        for seconds in [30, 10, 20] {
            commands.add(command(seconds));
        }
        assert_eq!(commands.take_due(at(9)), []);
        assert_eq!(commands.take_due(at(20)), [device, device]);
        assert_eq!(commands.take_due(at(20)), []);
        assert_eq!(commands.take_unsent(device, at(20)), Some(command(20)));
        assert_eq!(commands.take_unsent(device, at(20)), None);
        assert_eq!(commands.take_due(at(30)), [device]);
        assert_eq!(commands.deliver(device, at(30)), Some(command(30)));
        assert_eq!(commands.take_unsent(device, at(30)), None);
    }

    #[test]
    fn commands_that_other_processes_accepted_or_confirmed_are_taken_over() {
        let commands = Commands::default();
        let (device, now) = (DeviceId([7; 16]), Time::from_seconds(25));
        commands.add(command(10));
        assert_eq!(commands.take_due(now), [device]);
        assert_eq!(commands.take_unsent(device, now), Some(command(10)));
        commands.replace(vec![command(20), command(10)]);
        assert_eq!(commands.take_due(now), [device]);
        assert_eq!(commands.take_unsent(device, now), Some(command(20)));
        // A command that was sent stays marked as sent.
        commands.replace(vec![command(10)]);
        assert_eq!(commands.take_due(now), []);
        assert_eq!(commands.take_unsent(device, now), None);
        let confirmed = commands.confirmed_by(&measurement());
        assert_eq!(confirmed, Some(Time::from_seconds(10)));
        commands.replace(Vec::new());
        assert_eq!(commands.deliver(device, now), None);
    }
}
