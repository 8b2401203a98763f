//! The director: a thread that conducts the look-ups of all caches. No other thread has the
//! circuits and the answers of the upstreams, so they need no lock.
//!
//! The director receives requests from caches and answers from upstreams, and acts as the state
//! machines in `samovar-upstream` decide. It never waits for an upstream: the threads of the pools
//! send the requests.

mod ahead;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use samovar_metrics::{Event, Observer};
use samovar_nix::{HashPart, StoreDir};
use samovar_upstream::circuit::Change;
use samovar_upstream::look_up::{Answer, Candidate, LookUp, Next, Outcome};

use crate::upstream::message::{Ask, LookedUp, Message, Miss};
use crate::upstream::one::{FOUND_TIME, Found, Upstream};
use crate::upstream::request::{Said, Trouble};
use crate::upstream::tracked::{Known, Pending, Tracked};

/// Time for which a path is not served from an upstream that has sent a wrong NAR of it, or none.
const NO_NAR_TIME: Duration = Duration::from_secs(600);

/// Time for which the director remembers an answer that a path is absent. A cache may trust it for
/// a shorter time.
const ABSENT_TIME: Duration = Duration::from_secs(24 * 3600);

/// The reason of a fault if an upstream has not answered within the budget of a look-up.
const SILENT: &str = "no answer in time";

/// Maximum number of look-ups in the background.
const BACKGROUND_COUNT_MAX: usize = 4096;

/// The director.
pub(super) struct Director {
    upstreams: Vec<Tracked>,
    look_ups: HashMap<u64, Pending>,
    /// The look-ups about each path.
    by_path: HashMap<HashPart, Vec<u64>>,
    /// When look-ups are to go on, with their numbers.
    timers: BTreeSet<(Instant, u64)>,
    background_count: usize,
    last: u64,
    /// Whether no cache needs the director any longer.
    is_stopping: bool,
    sender: Sender<Message>,
    dir: StoreDir,
    observer: Arc<dyn Observer>,
}

impl Director {
    pub(super) fn new(
        upstreams: &[Arc<Upstream>],
        sender: Sender<Message>,
        dir: StoreDir,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            upstreams: upstreams.iter().map(Tracked::new).collect(),
            look_ups: HashMap::new(),
            by_path: HashMap::new(),
            timers: BTreeSet::new(),
            background_count: 0,
            last: 0,
            is_stopping: false,
            sender,
            dir,
            observer,
        }
    }

    /// Conducts look-ups until the upstreams are no longer needed.
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let now = Instant::now();
            let message = match self.next_time() {
                None => messages
                    .recv()
                    .map_err(|_ended| RecvTimeoutError::Disconnected),
                Some(next) => messages.recv_timeout(next.saturating_duration_since(now)),
            };
            match message {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(message) => self.receive(message, Instant::now()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.on_time(Instant::now());
            // Those who wait get their answers within the budget.
            if self.is_stopping && self.look_ups.values().all(|pending| !pending.is_urgent) {
                return;
            }
        }
    }

    /// Returns when [`on_time`](Self::on_time) is to be called.
    fn next_time(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let probes = self.upstreams.iter().filter_map(|it| it.circuit.probe_at());
        let late = self.upstreams.iter().filter_map(|it| it.many.as_ref());
        let late = late.map(|many| many.late_at);
        timer.into_iter().chain(probes).chain(late).min()
    }

    fn on_time(&mut self, now: Instant) {
        while let Some((at, number)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, number));
            if let Some(pending) = self.look_ups.get_mut(&number)
                && pending.look_up.next_time() <= now
            {
                let next = pending.look_up.at(now);
                self.go_on(number, next, now);
            }
        }
        for (id, tracked) in self.upstreams.iter_mut().enumerate() {
            if tracked.circuit.takes_probe(now) {
                let (upstream, sender) = (Arc::clone(&tracked.upstream), self.sender.clone());
                let probe = move || {
                    let probed = upstream.probe();
                    // The director may have ended.
                    sender.send(Message::Probed(id, probed)).ok();
                };
                // If the queue is full, the upstream has enough requests that show whether it
                // answers.
                tracked.upstream.look_ups.run(Box::new(probe)).ok();
            }
        }
        self.ask_late(now);
    }

    fn receive(&mut self, message: Message, now: Instant) {
        match message {
            Message::Ask(ask) => self.ask(ask, now),
            Message::Answer {
                upstream,
                hash_part,
                via,
                said,
            } => self.answer(upstream, hash_part, &via, said, now),
            Message::Many { upstream, answers } => {
                for (hash_part, said) in answers {
                    self.answer(upstream, hash_part, &Arc::default(), Ok(said), now);
                }
            }
            Message::ManyEnded(id, reply) => self.many_ended(id, reply, now),
            Message::Skipped {
                upstream,
                hash_part,
                via,
            } => self.ask_again(upstream, hash_part, via, now),
            Message::Gone(upstream, hash_part) => {
                let known = Known::NoNar("has no longer the NAR of the path");
                let memory = &mut self.upstreams[upstream].memory;
                memory.insert(hash_part, known, now + NO_NAR_TIME);
            }
            Message::Wrong(upstream, hash_part) => {
                let known = Known::NoNar("has sent a wrong NAR of the path");
                let memory = &mut self.upstreams[upstream].memory;
                memory.insert(hash_part, known, now + NO_NAR_TIME);
            }
            Message::NarFailed(upstream, reason) => self.fault(upstream, &reason, now),
            Message::Probed(upstream, Ok(())) => self.contact(upstream, now),
            Message::Probed(upstream, Err(trouble)) => self.fault(upstream, trouble.text(), now),
            Message::Stop => self.is_stopping = true,
        }
    }

    /// Starts a look-up, or joins one.
    fn ask(&mut self, ask: Ask, now: Instant) {
        let numbers = self.by_path.get(&ask.wanted.hash_part);
        let same = numbers.into_iter().flatten().copied().find(|number| {
            self.look_ups.get(number).is_some_and(|pending| {
                pending.ask.ids == ask.ids
                    && pending.ask.wanted == ask.wanted
                    && pending.ask.via == ask.via
            })
        });
        if let Some(number) = same {
            self.join(number, ask, now);
            return;
        }
        let is_urgent = ask.done.is_some();
        if !is_urgent {
            if self.background_count >= BACKGROUND_COUNT_MAX {
                return;
            }
            self.background_count += 1;
        }
        let candidate = |id: &usize| Candidate {
            id: *id,
            priority: self.upstreams[*id].upstream.settings.priority,
        };
        let candidates: Vec<Candidate> = ask.ids.iter().map(candidate).collect();
        let (look_up, next) = LookUp::start(&candidates, now, ask.budget);
        self.last += 1;
        let number = self.last;
        self.by_path
            .entry(ask.wanted.hash_part)
            .or_default()
            .push(number);
        let pending = Pending {
            look_up,
            ask,
            others: Vec::new(),
            is_urgent,
            reasons: Vec::new(),
            absent_since: now,
            found: HashMap::new(),
        };
        self.look_ups.insert(number, pending);
        self.go_on(number, next, now);
    }

    fn join(&mut self, number: u64, ask: Ask, now: Instant) {
        let (Some(pending), Some(done)) = (self.look_ups.get_mut(&number), ask.done) else {
            return;
        };
        pending.others.push(done);
        if !pending.is_urgent {
            pending.is_urgent = true;
            self.background_count -= 1;
            pending.look_up.limit(now, ask.budget);
            self.timers.insert((pending.look_up.next_time(), number));
            for id in pending.look_up.silent() {
                let (tracked, hash_part) = (&mut self.upstreams[id], &pending.ask.wanted.hash_part);
                tracked.upstream.look_ups.hurry(hash_part);
                tracked.hurry(hash_part, pending.look_up.deadline(), now);
            }
        }
    }

    /// Does what the state machine of a look-up says.
    fn go_on(&mut self, number: u64, next: Next, now: Instant) {
        let Next {
            mut ask,
            mut outcome,
        } = next;
        if let Some(pending) = self.look_ups.get(&number) {
            // If one is known to have the path, the others need not be asked.
            let hash_part = &pending.ask.wanted.hash_part;
            ask.sort_by_key(|id| !self.upstreams[*id].has(hash_part, now));
        }
        let mut ids = VecDeque::from(ask);
        while outcome.is_none() {
            let Some(id) = ids.pop_front() else {
                break;
            };
            let Some(answer) = self.known_or_asked(number, id, now) else {
                continue;
            };
            let Some(pending) = self.look_ups.get_mut(&number) else {
                return;
            };
            let next = pending.look_up.answered(id, answer, now);
            ids.extend(next.ask);
            outcome = next.outcome;
        }
        match outcome {
            Some(outcome) => self.finish(number, outcome, now),
            None => {
                if let Some(pending) = self.look_ups.get(&number) {
                    self.timers.insert((pending.look_up.next_time(), number));
                }
            }
        }
    }

    /// Returns what an upstream has said, if it is known; otherwise asks it.
    fn known_or_asked(&mut self, number: u64, id: usize, now: Instant) -> Option<Answer> {
        let pending = self.look_ups.get_mut(&number)?;
        let tracked = &mut self.upstreams[id];
        if let Some(answer) = tracked.known(id, pending, now) {
            return Some(answer);
        }
        let hash_part = pending.ask.wanted.hash_part;
        let key = (hash_part, Arc::clone(&pending.ask.via));
        if !tracked.asked.insert(key.clone()) {
            if pending.is_urgent {
                tracked.upstream.look_ups.hurry(&hash_part);
                tracked.hurry(&hash_part, pending.look_up.deadline(), now);
            }
            return None;
        }
        tracked.circuit.asked(now);
        let (upstream, dir) = (Arc::clone(&tracked.upstream), self.dir.clone());
        let (sender, via) = (self.sender.clone(), Arc::clone(&pending.ask.via));
        let deadline = pending.look_up.deadline();
        let job = Box::new(move || {
            let message = match Instant::now() < deadline {
                true => Message::Answer {
                    upstream: id,
                    hash_part,
                    said: upstream.narinfo(&dir, hash_part, &via),
                    via,
                },
                false => Message::Skipped {
                    upstream: id,
                    hash_part,
                    via,
                },
            };
            // The director may have ended.
            sender.send(message).ok();
        });
        let pool = &tracked.upstream.look_ups;
        let queued = match pending.is_urgent {
            true => pool.run(job),
            false => pool.run_in_background(hash_part, job),
        };
        match queued {
            Ok(()) => None,
            Err(_full) => {
                tracked.asked.remove(&key);
                let name = &tracked.upstream.settings.name;
                pending
                    .reasons
                    .push(format!("too many requests wait for {name}"));
                Some(Answer::Unknown)
            }
        }
    }

    /// Asks an upstream that was skipped, if another look-up waits for it by now.
    fn ask_again(&mut self, id: usize, hash_part: HashPart, via: Arc<[u8]>, now: Instant) {
        let numbers = self.by_path.get(&hash_part).into_iter().flatten().copied();
        let waiting = numbers.into_iter().find(|number| {
            self.look_ups.get(number).is_some_and(|pending| {
                pending.ask.via == via && pending.look_up.silent().any(|silent| silent == id)
            })
        });
        self.upstreams[id].asked.remove(&(hash_part, via));
        if let Some(number) = waiting
            && let Some(answer) = self.known_or_asked(number, id, now)
            && let Some(pending) = self.look_ups.get_mut(&number)
        {
            let next = pending.look_up.answered(id, answer, now);
            self.go_on(number, next, now);
        }
    }

    /// Records the answer of an upstream, and passes it to the look-ups that wait for it.
    fn answer(
        &mut self,
        id: usize,
        hash_part: HashPart,
        via: &Arc<[u8]>,
        said: Result<Said<Arc<Found>>, Trouble>,
        now: Instant,
    ) {
        let last = self.last_found(id, &hash_part);
        self.learn(id, hash_part, via, &said, now);
        let numbers = self.by_path.get(&hash_part).cloned().unwrap_or_default();
        for number in numbers {
            let name = &self.upstreams[id].upstream.settings.name;
            let Some(pending) = self.look_ups.get_mut(&number) else {
                continue;
            };
            if pending.ask.via != *via || !pending.look_up.silent().any(|silent| silent == id) {
                continue;
            }
            let answer = match &said {
                Ok(Said::Found(found)) => pending.found_at(id, Arc::clone(found)),
                Ok(Said::Absent) => {
                    pending.reasons.push(format!("{name} has no such path"));
                    Answer::Absent
                }
                Err(trouble) => match (&last, trouble) {
                    // What the upstream had counts while it is down.
                    (Some(found), Trouble::Down(_)) => pending.found_at(id, Arc::clone(found)),
                    // What is wrong concerns the operator alone.
                    _ => {
                        pending
                            .reasons
                            .push(format!("{name} gave no usable answer"));
                        Answer::Unknown
                    }
                },
            };
            let next = pending.look_up.answered(id, answer, now);
            self.go_on(number, next, now);
        }
    }

    /// Records the answer of an upstream in its memory and its circuit.
    fn learn(
        &mut self,
        id: usize,
        hash_part: HashPart,
        via: &Arc<[u8]>,
        said: &Result<Said<Arc<Found>>, Trouble>,
        now: Instant,
    ) {
        let tracked = &mut self.upstreams[id];
        tracked.asked.remove(&(hash_part, Arc::clone(via)));
        match said {
            Ok(Said::Found(found)) => {
                let found = Known::Found(Arc::clone(found));
                tracked.memory.insert(hash_part, found, now + FOUND_TIME);
            }
            // Another server asks, and the answer may have been given to end a circle.
            Ok(Said::Absent) if !via.is_empty() => {}
            Ok(Said::Absent) => {
                tracked
                    .memory
                    .insert(hash_part, Known::Absent(now), now + ABSENT_TIME);
            }
            Err(_) => {}
        }
        match said {
            Err(trouble) => {
                self.report_fault(id, hash_part, trouble.text());
                match trouble {
                    Trouble::Down(reason) => self.fault(id, reason, now),
                    Trouble::Unusable(_) => self.contact(id, now),
                }
            }
            Ok(_) => self.contact(id, now),
        }
    }

    /// Returns the path that an upstream had when it last answered, however long ago.
    fn last_found(&self, id: usize, hash_part: &HashPart) -> Option<Arc<Found>> {
        match self.upstreams[id].memory.last(hash_part)? {
            Known::Found(found) => Some(Arc::clone(found)),
            Known::Absent(_) | Known::NoNar(_) => None,
        }
    }

    fn report_fault(&self, id: usize, hash_part: HashPart, reason: &str) {
        self.observer.event(&Event::UpstreamFault {
            upstream: &self.upstreams[id].upstream.settings.name,
            path: &hash_part,
            reason,
        });
    }

    /// Records that an upstream has answered.
    fn contact(&mut self, id: usize, now: Instant) {
        let change = self.upstreams[id].circuit.answered(now);
        self.report(id, change);
    }

    /// Records that an upstream has not answered, or has said that it is in trouble.
    fn fault(&mut self, id: usize, reason: &str, now: Instant) {
        let change = self.upstreams[id].circuit.failed(now, reason);
        self.report(id, change);
    }

    fn report(&self, id: usize, change: Option<Change>) {
        let tracked = &self.upstreams[id];
        let upstream = &tracked.upstream;
        upstream.set_down(tracked.circuit.open().map(|open| &*open.reason));
        let name = &upstream.settings.name;
        match change {
            None => {}
            Some(Change::Opened(reason)) => self.observer.event(&Event::UpstreamDown {
                upstream: name,
                reason: &reason,
            }),
            Some(Change::Closed(time)) => self.observer.event(&Event::UpstreamUp {
                upstream: name,
                time,
            }),
        }
    }

    /// Ends a look-up, and tells those who wait.
    fn finish(&mut self, number: u64, outcome: Outcome, now: Instant) {
        let Some(mut pending) = self.look_ups.remove(&number) else {
            return;
        };
        let hash_part = pending.ask.wanted.hash_part;
        if let Some(numbers) = self.by_path.get_mut(&hash_part) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.by_path.remove(&hash_part);
            }
        }
        if !pending.is_urgent {
            self.background_count -= 1;
        }
        let mut outcome = outcome;
        if outcome == Outcome::Unknown && pending.is_urgent {
            let silent: Vec<usize> = pending.look_up.silent().collect();
            for id in silent {
                let name = &self.upstreams[id].upstream.settings.name;
                pending.reasons.push(format!("{name} does not answer"));
                self.report_fault(id, hash_part, SILENT);
                self.fault(id, SILENT, now);
                // What the upstream had counts while it is down.
                if let Some(found) = self.last_found(id, &hash_part)
                    && pending.found_at(id, found) == Answer::Found
                {
                    outcome = Outcome::Found(id);
                }
            }
        }
        let miss = || Miss {
            reasons: pending.reasons.clone(),
        };
        let looked_up = match outcome {
            Outcome::Found(id) => match pending.found.get(&id) {
                Some(found) => LookedUp::Found(Arc::clone(found)),
                None => LookedUp::Unknown(miss()),
            },
            Outcome::Absent => LookedUp::Absent(pending.absent_since),
            Outcome::Unknown => LookedUp::Unknown(miss()),
        };
        if let LookedUp::Found(found) = &looked_up {
            self.look_ahead(&pending.ask, found, now);
        }
        for done in pending.ask.done.into_iter().chain(pending.others) {
            done(looked_up.clone());
        }
    }
}
