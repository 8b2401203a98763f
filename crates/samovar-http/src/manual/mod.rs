//! The manual: documentation without code of its own.
//!
//! * [`guide`]: a tour, from handlers to graceful shutdown.
//! * [`threads`]: the threading model, and what may block.
//! * [`bounds`]: where the limits are; the fixed ones; the memory of an idle connection.
//! * [`attacks`]: past attacks on HTTP servers, and the countermeasures here.
//! * [`coming_from`]: terms of Mummy, axum and actix-web, and the ones used here.

pub mod attacks;
pub mod bounds;
pub mod coming_from;
pub mod guide;
pub mod threads;
