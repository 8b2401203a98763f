//! New requests of a lane, in the order in which they are handled.

use std::collections::{HashMap, VecDeque};

use super::job::Job;

/// The queued requests of a lane.
#[derive(Debug)]
pub(crate) enum Requests {
    /// The request that has waited longest comes first.
    InOrder(VecDeque<Job>),
    /// [Clients](crate::Claimant) take turns.
    InTurns(Turns),
}

impl Default for Requests {
    fn default() -> Self {
        Self::InOrder(VecDeque::new())
    }
}

impl Requests {
    pub(crate) fn in_turns() -> Self {
        Self::InTurns(Turns::default())
    }

    /// Adds a request; returns it if there is no place for it among `len_max`.
    pub(crate) fn push(&mut self, job: Job, len_max: usize) -> Result<(), Job> {
        match self {
            Self::InOrder(jobs) if jobs.len() < len_max => jobs.push_back(job),
            Self::InOrder(_) => return Err(job),
            Self::InTurns(turns) => return turns.push(job, len_max),
        }
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Option<Job> {
        match self {
            Self::InOrder(jobs) => jobs.pop_front(),
            Self::InTurns(turns) => turns.pop(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::InOrder(jobs) => jobs.len(),
            Self::InTurns(turns) => turns.first.len + turns.others.len,
        }
    }
}

/// Requests of which each client gets one handled before any client gets the next. Those of clients
/// that come first are handled before all others.
///
/// A client gets at most as many places as are still free, and so do all clients together that do
/// not come first. However many places they take, there are some for the next client.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    first: Class,
    others: Class,
}

impl Turns {
    fn push(&mut self, job: Job, len_max: usize) -> Result<(), Job> {
        let claimant = job.claimant();
        let free_count = len_max.saturating_sub(self.first.len + self.others.len);
        let class = match claimant.comes_first {
            true => &mut self.first,
            false => &mut self.others,
        };
        let own_count = class.jobs.get(&claimant.network).map_or(0, VecDeque::len);
        if own_count >= free_count || !claimant.comes_first && class.len >= free_count {
            return Err(job);
        }
        class.push(claimant.network, job);
        Ok(())
    }

    fn pop(&mut self) -> Option<Job> {
        self.first.pop().or_else(|| self.others.pop())
    }
}

#[derive(Debug, Default)]
struct Class {
    /// The requests of each network. None is empty.
    jobs: HashMap<u64, VecDeque<Job>>,
    /// The networks, in the order of their turns.
    order: VecDeque<u64>,
    /// Number of requests.
    len: usize,
}

impl Class {
    fn push(&mut self, network: u64, job: Job) {
        let jobs = self.jobs.entry(network).or_default();
        if jobs.is_empty() {
            self.order.push_back(network);
        }
        jobs.push_back(job);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<Job> {
        let network = self.order.pop_front()?;
        let jobs = self.jobs.get_mut(&network)?;
        let job = jobs.pop_front()?;
        self.len -= 1;
        match jobs.is_empty() {
            true => drop(self.jobs.remove(&network)),
            false => self.order.push_back(network),
        }
        Some(job)
    }
}
