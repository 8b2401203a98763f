//! Placeholder header; replaced below.
