//! Fleet of kettles: each requests its command and sends a measurement once per period.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use testkit::random::{SplitMix64, mix};
use time::OffsetDateTime;

use crate::fleet::{Answer, Ask, Fleet, Verdict, verdict_of};

const OPERATIONS: &[&str] = &["command", "measurement", "login"];
const COMMAND: usize = 0;
const MEASUREMENT: usize = 1;
const LOGIN: usize = 2;

/// Position in the schedule of one kind of request: commands or measurements.
#[derive(Debug, Clone, Copy, Default)]
struct Hand {
    /// Time by which this kind of request precedes the kettle's phase, modulo the window of phases.
    ahead: Duration,
    /// Index of the first kettle of a period.
    first: usize,
    /// Index of the next kettle.
    index: usize,
    /// Start of the current period.
    since: Duration,
}

/// Kettles with a fixed period. Each kettle sends its measurement half a window after its request
/// for a command, so that neither request has to wait for the response to the other.
#[derive(Debug)]
pub struct Kettles {
    /// Phases of the kettles within the period, in ascending order.
    phases: Vec<Duration>,
    /// Length of the window of the phases: every phase is below this value.
    within: Duration,
    period: Duration,
    hands: [Hand; 2],
    seed: u64,
    /// Value of the `Host` field.
    host: String,
    started: SystemTime,
    body: Vec<u8>,
    /// Names assigned by the login; `None` without login.
    names: Option<Vec<Option<String>>>,
}

impl Kettles {
    /// Creates `count` kettles, which send `host` in the `Host` field and two requests per
    /// `period`. Their phases are random within `within`, derived from `seed`: usually the whole
    /// period, or one second to simulate the return of power.
    #[must_use]
    pub fn new(host: &str, count: usize, period: Duration, within: Duration, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let within_us = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
        let mut phases: Vec<_> = (0..count)
            .map(|_| Duration::from_micros(random.below(within_us)))
            .collect();
        phases.sort_unstable();
        let ahead = within / 2;
        let begin = phases.partition_point(|phase| *phase < ahead) % count.max(1);
        let measures = Hand {
            ahead,
            first: begin,
            index: begin,
            since: Duration::ZERO,
        };
        Self {
            phases,
            within,
            period,
            hands: [Hand::default(), measures],
            seed,
            host: host.to_owned(),
            started: SystemTime::now(),
            body: Vec::new(),
            names: None,
        }
    }

    /// Makes each kettle log in with its first request, and use the name that it is assigned.
    #[must_use]
    pub fn with_login(self) -> Self {
        let names = Some(vec![None; self.phases.len()]);
        Self { names, ..self }
    }

    /// Returns the name assigned to a kettle, if any.
    fn name(&self, kettle: u64) -> Option<&str> {
        let names = self.names.as_ref()?;
        names.get(usize::try_from(kettle).ok()?)?.as_deref()
    }

    fn due(&self, hand: &Hand) -> Option<Duration> {
        let phase = *self.phases.get(hand.index)?;
        let phase = match phase.checked_sub(hand.ahead) {
            Some(phase) => phase,
            None => phase + self.within - hand.ahead,
        };
        Some(hand.since + phase)
    }

    /// Advances the schedule of an operation; returns the kettle that was next and its due time.
    fn advance(&mut self, operation: usize) -> (usize, Duration) {
        let hand = self.hands.get(operation).copied().unwrap_or_default();
        let due = self.due(&hand).unwrap_or_default();
        if let Some(hand) = self.hands.get_mut(operation) {
            hand.index += 1;
            if hand.index == self.phases.len() {
                hand.index = 0;
            }
            if hand.index == hand.first {
                hand.since += self.period;
            }
        }
        (hand.index, due)
    }

    /// Returns the number of kettles.
    pub(crate) fn count(&self) -> usize {
        self.phases.len()
    }

    /// Returns when the next measurement is due, for kettles that request no commands.
    pub(crate) fn next_measurement(&self) -> Option<Duration> {
        let [_, measurement] = &self.hands;
        self.due(measurement)
    }

    /// Returns the next kettle to send a measurement, and its body.
    pub(crate) fn measure(&mut self) -> (usize, Vec<u8>) {
        let (index, due) = self.advance(MEASUREMENT);
        self.body.clear();
        self.measurement(index as u64, due);
        (index, self.body.clone())
    }

    /// Returns a kettle's WebSocket upgrade request.
    pub(crate) fn upgrade(&self, index: usize) -> Vec<u8> {
        let (host, id) = (&self.host, Uuid(self.seed, index as u64));
        format!(
            "GET /kettle HTTP/1.1\r\nHost: {host}\r\nservant-auth-cookie: {id}\r\n\
             Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: a2V0dGxlcyBhcmUgaGVyZQ==\r\n\r\n"
        )
        .into_bytes()
    }

    fn write(&mut self, request: &mut Vec<u8>, operation: usize, kettle: u64, due: Duration) {
        self.body.clear();
        match operation {
            MEASUREMENT => self.measurement(kettle, due),
            LOGIN => self.body.extend_from_slice(br#"{"username":"kettle"}"#),
            _ => {}
        }
        let line = match operation {
            COMMAND => "GET /command",
            MEASUREMENT => "POST /measurement",
            _ => "POST /login",
        };
        let host = &self.host;
        write!(request, "{line} HTTP/1.1\r\nHost: {host}\r\n").expect("a vector takes all");
        if operation != LOGIN {
            match self.name(kettle) {
                Some(name) => write!(request, "servant-auth-cookie: {name}\r\n"),
                None => {
                    let id = Uuid(self.seed, kettle);
                    write!(request, "servant-auth-cookie: {id}\r\n")
                }
            }
            .expect("a vector takes all");
        }
        if operation != COMMAND {
            let len = self.body.len();
            let fields = format_args!("Content-Type: application/json\r\nContent-Length: {len}");
            write!(request, "{fields}\r\n").expect("a vector takes all");
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(&self.body);
    }

    fn measurement(&mut self, kettle: u64, at: Duration) {
        let state = State::of(self.seed, kettle, at);
        let since_1970 = self.started.duration_since(UNIX_EPOCH).unwrap_or_default() + at;
        let seconds = i64::try_from(since_1970.as_secs()).unwrap_or_default();
        let time = OffsetDateTime::from_unix_timestamp(seconds);
        let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let (hour, minute, second) = time.to_hms();
        write!(
            self.body,
            "{{\"time\":\"{}T{hour:02}:{minute:02}:{second:02}.{:03}Z\",\
             \"charge_now\":{},\"charge_full\":{CHARGE_FULL},\"charge_rate\":{},\
             \"ambient_temp\":{},\"water_temp\":{},\"water_level\":{}}}",
            time.date(),
            since_1970.subsec_millis(),
            state.charge_now,
            state.charge_rate,
            Tenths(state.ambient_temp),
            Tenths(state.water_temp),
            state.water_level
        )
        .expect("a vector takes all");
    }
}

impl Fleet for Kettles {
    fn operations(&self) -> &'static [&'static str] {
        match self.names {
            Some(_) => OPERATIONS,
            None => OPERATIONS.split_at(LOGIN).0,
        }
    }

    fn next_due(&self) -> Option<Duration> {
        let [command, measurement] = &self.hands;
        self.due(command).min(self.due(measurement))
    }

    fn ask(&mut self, request: &mut Vec<u8>) -> Ask {
        let [command, measurement] = &self.hands;
        let operation = if self.due(command) <= self.due(measurement) {
            COMMAND
        } else {
            MEASUREMENT
        };
        let (index, due) = self.advance(operation);
        let kettle = index as u64;
        let operation = match (&self.names, self.name(kettle)) {
            // A kettle without a name logs in first, whatever is scheduled.
            (Some(_), None) => LOGIN,
            _ => operation,
        };
        self.write(request, operation, kettle, due);
        Ask {
            operation,
            due,
            token: kettle,
            wants_body: operation == LOGIN,
        }
    }

    fn answered(&mut self, ask: &Ask, answer: &Answer<'_>, _now: Duration) -> Verdict {
        if ask.operation == LOGIN && answer.status == 200 {
            let value: serde_json::Value = serde_json::from_slice(answer.body).unwrap_or_default();
            let Some(name) = value["username"].as_str() else {
                return Verdict::Wrong;
            };
            let index = usize::try_from(ask.token).unwrap_or(usize::MAX);
            if let Some(place) = self.names.as_mut().and_then(|it| it.get_mut(index)) {
                *place = Some(name.to_owned());
            }
        }
        verdict_of(answer.status, 200, ask.operation)
    }
}

/// Kettle's identity: a version 4 UUID that is the same in each run.
struct Uuid(u64, u64);

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let high = mix(mix(self.0) ^ self.1);
        // This half is unique: `mix` is a bijection, and no fleet has 2^48 kettles.
        let low = mix(self.1);
        write!(
            f,
            "{:08x}-{:04x}-4{:03x}-{:x}{:03x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xfff,
            8 + (low >> 62),
            low >> 48 & 0xfff,
            self.1 & 0xffff_ffff_ffff
        )
    }
}

/// Capacity of a kettle's full battery, in mWh.
const CHARGE_FULL: u64 = 60_000;

/// Values that a kettle measures, in integer units of its sensors.
struct State {
    charge_now: u64,
    charge_rate: i64,
    /// Room temperature, in tenths of a degree Celsius.
    ambient_temp: i64,
    water_temp: i64,
    water_level: u64,
}

impl State {
    /// Computes the state at a time. Water is boiled at intervals and cools in between; the battery
    /// discharges and is recharged.
    fn of(seed: u64, kettle: u64, at: Duration) -> Self {
        let mut random = SplitMix64::new(seed ^ mix(kettle));
        let seconds = at.as_secs();
        let of_period = |random: &mut SplitMix64, period_s: u64| {
            let phase = random.below(period_s);
            (seconds + phase) % period_s
        };
        let ambient_temp = 180 + i64::try_from(random.below(60)).unwrap_or_default();
        // Cooling from boiling to room temperature takes an hour and slows down quadratically.
        let hour = i64::try_from(of_period(&mut random, 3_600)).unwrap_or_default();
        let above = (1_000 - ambient_temp) * (3_600 - hour) / 3_600 * (3_600 - hour) / 3_600;
        let battery_s = of_period(&mut random, 8 * 3_600);
        let charges = battery_s < 2 * 3_600;
        let part = if charges {
            battery_s * 3
        } else {
            8 * 3_600 - battery_s
        };
        Self {
            charge_now: CHARGE_FULL / 10 + CHARGE_FULL * 9 / 10 * part.min(6 * 3_600) / (6 * 3_600),
            charge_rate: if charges { 27_000 } else { -9_000 },
            ambient_temp,
            water_temp: ambient_temp + above,
            water_level: 1_700 - of_period(&mut random, 7_200) / 5,
        }
    }
}

/// A decimal number with one decimal place, stored as the number of tenths.
struct Tenths(i64);

impl std::fmt::Display for Tenths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const PERIOD: Duration = Duration::from_secs(30);

    /// In each period, every kettle sends two requests, in the order of their times and under its
    /// own name.
    #[test]
    fn each_kettle_sends_two_requests_per_period() {
        let mut kettles = Kettles::new("a", 100, PERIOD, PERIOD, 1);
        let mut last = Duration::ZERO;
        let mut times = BTreeMap::<(u64, usize), Vec<Duration>>::new();
        let mut names = BTreeSet::new();
        while let Some(due) = kettles.next_due()
            && due < 2 * PERIOD
        {
            let mut request = Vec::new();
            let ask = kettles.ask(&mut request);
            assert_eq!(ask.due, due);
            assert!(due >= last);
            last = due;
            times
                .entry((ask.token, ask.operation))
                .or_default()
                .push(due);
            let request = String::from_utf8(request).unwrap();
            let (_, name) = request.split_once("servant-auth-cookie: ").unwrap();
            names.insert(name[..36].to_owned());
        }
        assert_eq!((times.len(), names.len()), (200, 100));
        for ((kettle, operation), times) in times {
            assert!((0..100).contains(&kettle));
            assert_eq!(times.len(), 2, "{operation} of {kettle}");
            if let [first, second] = times[..] {
                assert_eq!(second - first, PERIOD);
            }
        }
    }

    #[test]
    fn a_kettle_logs_in_until_it_has_a_name() {
        let mut kettles = Kettles::new("a", 1, PERIOD, PERIOD, 1).with_login();
        let mut ask = |body: &[u8]| {
            let mut request = Vec::new();
            let ask = kettles.ask(&mut request);
            let (status, body_len) = (200, body.len() as u64);
            let answer = Answer {
                status,
                body,
                body_len,
            };
            let verdict = kettles.answered(&ask, &answer, ask.due);
            (String::from_utf8(request).unwrap(), verdict)
        };
        for (body, verdict) in [
            ("{}", Verdict::Wrong),
            (r#"{"username":"tea"}"#, Verdict::Good(2)),
        ] {
            let (request, seen) = ask(body.as_bytes());
            assert!(request.starts_with("POST /login HTTP/1.1\r\n"), "{request}");
            assert!(!request.contains("servant-auth-cookie"), "{request}");
            assert_eq!(seen, verdict);
        }
        for _ in 0..2 {
            let (request, _) = ask(b"");
            assert!(!request.starts_with("POST /login"), "{request}");
            assert!(
                request.contains("\r\nservant-auth-cookie: tea\r\n"),
                "{request}"
            );
        }
    }

    #[test]
    fn a_measurement_is_json_of_the_right_types() {
        let mut kettles = Kettles::new("a", 1, PERIOD, PERIOD, 1);
        // `date -u -d @951782400`
        kettles.started = UNIX_EPOCH + Duration::new(951_782_400, 7_000_000);
        kettles.measurement(0, Duration::ZERO);
        let time = br#"{"time":"2000-02-29T00:00:00.007Z","#;
        assert!(kettles.body.starts_with(time));
        for hour in 0..48 {
            kettles.body.clear();
            kettles.measurement(0, Duration::from_secs(hour * 3_600 + 17));
            let value: serde_json::Value = serde_json::from_slice(&kettles.body).unwrap();
            for whole in ["charge_now", "charge_full", "water_level"] {
                assert!(value[whole].is_u64(), "{value}");
            }
            assert!(value["charge_rate"].is_number(), "{value}");
            for degrees in ["ambient_temp", "water_temp"] {
                let degrees = value[degrees].as_f64().unwrap();
                assert!((0.0..=100.0).contains(&degrees), "{value}");
            }
            assert!(value["charge_now"].as_u64() <= Some(CHARGE_FULL));
            assert!(value["time"].as_str().unwrap().ends_with('Z'));
        }
    }

    #[test]
    fn a_name_is_a_uuid_of_version_4() {
        let name = Uuid(1, 2).to_string();
        let parts: Vec<_> = name.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(name.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&name.as_bytes()[19]));
    }
}
