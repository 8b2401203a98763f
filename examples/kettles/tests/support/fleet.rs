//! Simulated kettles: each repeats a measurement until the server acknowledges it, and then sends
//! the next one.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows these only inside functions marked as tests"
)]

use std::io::Result;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use testkit::http1::Connection;

use super::{measurement, wait_until};

const DEVICE_COUNT: u64 = 8;

/// A running fleet.
pub(crate) struct Fleet {
    shared: Arc<Shared>,
    kettles: Vec<JoinHandle<u64>>,
}

struct Shared {
    addr: Mutex<SocketAddr>,
    is_over: AtomicBool,
    acknowledged_count: AtomicU64,
}

impl Fleet {
    pub(crate) fn start(addr: SocketAddr) -> Self {
        let shared = Arc::new(Shared {
            addr: Mutex::new(addr),
            is_over: AtomicBool::new(false),
            acknowledged_count: AtomicU64::new(0),
        });
        let kettle = |number| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.work(number))
        };
        let kettles = (0..DEVICE_COUNT).map(kettle).collect();
        Self { shared, kettles }
    }

    /// Tells the kettles that the server has a new address.
    pub(crate) fn moved(&self, addr: SocketAddr) {
        *self.shared.addr.lock().unwrap() = addr;
    }

    /// Waits until `count` more measurements were acknowledged.
    pub(crate) fn wait_for(&self, count: u64) {
        let acknowledged = || self.shared.acknowledged_count.load(Ordering::Acquire);
        let enough = acknowledged() + count;
        wait_until("measurements are acknowledged", || acknowledged() >= enough);
    }

    /// Waits until the last measurement of every kettle is acknowledged. Returns the number of
    /// measurements of each kettle, in the order of `device(n)`; their times are 0, 1, 2 seconds
    /// and so on.
    pub(crate) fn end(self) -> Vec<u64> {
        self.shared.is_over.store(true, Ordering::Release);
        let kettles = self.kettles.into_iter();
        kettles.map(|kettle| kettle.join().unwrap()).collect()
    }
}

/// Returns the UUID of a kettle.
pub(crate) fn device(number: u64) -> String {
    format!("0f8fad5b-d9cb-469f-a165-{number:012x}")
}

impl Shared {
    /// Sends measurements whose times are one second apart, until the fleet ends; returns their
    /// number.
    fn work(&self, number: u64) -> u64 {
        let (mut sent_count, mut connection) = (0, None);
        while !self.is_over.load(Ordering::Acquire) {
            let minute = sent_count / 60 % 60;
            let (hour, second) = (sent_count / 3600, sent_count % 60);
            let time = format!("2017-12-24T{hour:02}:{minute:02}:{second:02}Z");
            // Temperatures in tenths of a degree, which doubles represent inexactly.
            let water_temp = 20.1 + f64::from(u32::try_from(sent_count % 700).unwrap()) / 10.0;
            let charge = i32::try_from(sent_count % 100).unwrap();
            let body = measurement(&time, charge, water_temp, 700);
            while !self
                .send(&mut connection, &device(number), &body)
                .unwrap_or(false)
            {
                connection = None;
                std::thread::sleep(Duration::from_millis(2));
            }
            sent_count += 1;
            self.acknowledged_count.fetch_add(1, Ordering::Release);
        }
        sent_count
    }

    /// Returns whether the measurement was acknowledged.
    fn send(&self, connection: &mut Option<Connection>, device: &str, body: &str) -> Result<bool> {
        let connection = match connection {
            Some(connection) => connection,
            None => {
                let made = Connection::try_connect(*self.addr.lock().unwrap())?;
                made.stream
                    .set_read_timeout(Some(Duration::from_secs(10)))?;
                connection.insert(made)
            }
        };
        let len = body.len();
        let head = format!(
            "POST /measurement HTTP/1.1\r\nHost: kettles\r\nservant-auth-cookie: {device}\r\n\
             Content-Length: {len}\r\n\r\n"
        );
        connection.try_send(head + body)?;
        let response = connection.try_next(false)?;
        Ok(response.is_some_and(|response| response.status == 200))
    }
}
