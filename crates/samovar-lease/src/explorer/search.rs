//! The search through all states, breadth first, so that the first error found has the shortest
//! history.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher as _};

use super::actions::Action;
use super::world::{Setup, World};

/// Maximum number of states of a search.
const STATE_COUNT_MAX: usize = 1_000_000;

/// Result of a search.
pub(super) struct Explored {
    pub(super) states: usize,
    /// States in which a change is acknowledged and a node answers from memory.
    pub(super) answering: usize,
    /// The events that lead to a wrong answer.
    pub(super) error: Option<Vec<Action>>,
}

/// Visits all states that can be reached, or those up to the first error.
pub(super) fn explore(setup: &Setup) -> Explored {
    let mut world = World::new(setup);
    world.simplify();
    let first = fingerprint(&world);
    let mut reached: HashMap<u64, Option<(u64, Action)>> = HashMap::from([(first, None)]);
    let mut waiting = VecDeque::from([(first, world)]);
    let mut answering = 0;
    while let Some((from, world)) = waiting.pop_front() {
        assert!(reached.len() < STATE_COUNT_MAX, "too many states");
        let mut error = None;
        world.actions(setup, &mut |action| {
            let next = world.after(setup, action);
            let to = fingerprint(&next);
            if error.is_some() || reached.contains_key(&to) {
                return;
            }
            reached.insert(to, Some((from, action)));
            if next.is_wrong(setup) {
                error = Some(to);
            }
            let is_acknowledged = next.acknowledged.iter().any(Option::is_some);
            let answers = next.members.iter().any(|member| member.answers());
            answering += usize::from(is_acknowledged && answers);
            waiting.push_back((to, next));
        });
        if let Some(error) = error {
            return Explored {
                states: reached.len(),
                answering,
                error: Some(history(&reached, error)),
            };
        }
    }
    Explored {
        states: reached.len(),
        answering,
        error: None,
    }
}

fn history(reached: &HashMap<u64, Option<(u64, Action)>>, last: u64) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut at = last;
    while let Some(Some((from, action))) = reached.get(&at) {
        actions.push(*action);
        at = *from;
    }
    actions.reverse();
    actions
}

/// Returns a number that differs in all states of a search, but for a chance of about one in a
/// million.
fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}
