//! Whole-program tests: real peers, a real kernel, real mounts.
