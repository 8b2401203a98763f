//! Explorer: runs the state machines of the crate against a model of the database, in all orders of
//! events, and checks after each event that no lease is wrong.
//!
//! An event is one atomic step: a statement that the database executes, a result that reaches its
//! node, a commit, a look at the rows, a tick of the clocks, a crash. Between a statement and its
//! result, anything may happen, so a hang of a node or of the database is an order in which its
//! next event comes late. Time has no end: only the ages of moments are in a state, and an age that
//! makes no difference any more is not counted further.
//!
//! A [`Sabotage`](world::Sabotage) removes one rule of the protocol. A test for each shows that the
//! explorer finds the error which the rule excludes.

mod actions;
mod search;
mod tests;
mod world;
