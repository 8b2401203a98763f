//! The Nix formats.
