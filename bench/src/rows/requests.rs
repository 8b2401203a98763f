//! Many small responses: wrk with random targets from a list.

use anyhow::Result;

use super::{Bench, micros, on_one_core, per};
use crate::figures::{Quantity, Values, to_f64};
use crate::process::Server;
use crate::wrk::Load;

impl Bench<'_> {
    pub(super) fn requests(&self, load: &Load, server: &Server, count: u32) -> Result<Values> {
        // On two cores, every request of a single client waits twice for an idle core to wake,
        // which no server can avoid.
        if count == 1 {
            on_one_core(server, || self.ask(load, server, count))
        } else {
            self.ask(load, server, count)
        }
    }

    fn ask(&self, load: &Load, server: &Server, count: u32) -> Result<Values> {
        let before = server.cpu();
        let seen = load.run(server.address, count, self.seconds)?;
        let cpu = server.cpu().saturating_sub(before);
        Ok(Values::from([
            (Quantity::Rate, per(seen.requests, seen.duration)),
            (Quantity::ServerCpuUs, micros(cpu) / to_f64(seen.requests)),
            (Quantity::P50Us, micros(seen.p50)),
            (Quantity::P99Us, micros(seen.p99)),
        ]))
    }
}
