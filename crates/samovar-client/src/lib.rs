//! The client side of Nix binary caches, for the commands of `samovar`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`remote`], [`credentials`] | the URL of a server, and the login or token for it |
//! | [`netrc`], [`credential`] | where logins and tokens are found |
//! | [`id_token`], [`exchanged`] | the ID token of a CI job, and the token that it gives |
//! | [`http`], [`pace`], [`fault`] | requests, which are repeated after temporary failures |
//! | [`cache`], [`walk`] | narinfos and closures of a binary cache |
//! | [`prefetch`] | makes a cache keep paths of its upstreams |
//! | [`trust`] | the signatures that a command requires |
//! | [`refs`] | refs: names with numbered generations |
//! | [`snapshot`] | downloads of snapshots of trees |
//! | [`push`], [`hashing`] | pushes of paths and of trees |
//! | [`roots`] | the store paths that a user names |
//! | [`failed`], [`private`] | why a command fails |
//! | [`notice`], [`progress`] | messages on standard error while a user waits |
//! | [`user_dirs`], [`machine`] | the directories of the user, and the name of the machine |
//! | [`workspace`] | the state of workspaces |
//!
//! [`cache::Cache`] uses bulk queries (`docs/bulk-queries.md`) if the server supports them; else it
//! requests single narinfos over many connections.
//!
//! # Out of scope
//!
//! The command line, and writing to a Nix store.

#![forbid(unsafe_code)]

mod agent;
pub mod cache;
pub mod credential;
pub mod credentials;
pub mod exchanged;
pub mod failed;
pub mod fault;
mod guarded;
pub mod hashing;
pub mod http;
pub mod id_token;
pub mod machine;
pub mod netrc;
pub mod notice;
pub mod pace;
mod patience;
mod plain_http;
pub mod prefetch;
pub mod private;
pub mod progress;
pub mod push;
pub mod refs;
pub mod remote;
pub mod roots;
mod silence;
pub mod snapshot;
mod sys;
pub mod trust;
pub mod user_dirs;
pub mod walk;
pub mod workspace;
