//! The manual. These modules contain documentation and no code.
//!
//! * [`guide`]: a tour, from handlers to graceful shutdown.
//! * [`threads`]: the threading model, and what may block.
//! * [`bounds`]: limits without an option, and the memory of an idle connection.
//! * [`attacks`]: past attacks on HTTP servers, and the countermeasures of this server.
//! * [`coming_from`]: terms of Mummy, axum and actix-web, and the corresponding terms of this
//!   crate.

pub mod attacks;
pub mod bounds;
pub mod coming_from;
pub mod guide;
pub mod threads;
