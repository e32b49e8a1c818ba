//! How we know.
//!
//! | | |
//! |---|---|
//! | `unit` | each behaviour once, one thread |
//! | `model` | random calls against an oracle, anywhere in the number range |
//! | `bad_address` | buffers that cannot be read or written, and the copy itself, every length |
//! | `hostile` | the peer's words are anything, at any time |
//! | `exhaustive` | every state of a small ring, every value of the peer's words |
//! | `threads` | two real threads; under Miri with its data race detector and weak memory |
//! | `loom_sleepers` | the same of sleeping and being woken, as `core` does it, with threads that sleep |
//! | `loom_tests` | every interleaving of small cases, run with `RUSTFLAGS="--cfg loom" cargo test -p netacc-ring --profile loom --lib loom_` |

#[cfg(not(any(loom, miri)))]
mod bad_address;
#[cfg(not(any(loom, miri)))]
mod exhaustive;
#[cfg(not(loom))]
mod hostile;
#[cfg(loom)]
mod loom_sleepers;
#[cfg(loom)]
mod loom_tests;
#[cfg(not(loom))]
mod model;
#[cfg(not(loom))]
mod threads;
#[cfg(not(loom))]
mod unit;
mod util;
