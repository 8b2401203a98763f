//! The binary cache server with the command line of `nix-serve`.
fn main() {}
