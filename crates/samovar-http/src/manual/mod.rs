//! The manual: no code, only what one wants to know before trusting a server.
//!
//! * [`guide`]: from ten lines that say "Hello" to everything else.
//! * [`attacks`]: past attacks on HTTP servers, and what here rules each out.
//! * [`bounds`]: every limit, its default and its reason; what an idle connection costs.
//! * [`threads`]: which code runs where, and what may block.
//! * [`coming_from`]: Mummy, axum, actix-web: the same thing here.

pub mod attacks;
pub mod bounds;
pub mod coming_from;
pub mod guide;
pub mod threads;
