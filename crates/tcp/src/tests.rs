//! Tests of whole connections: two of them over a network in memory under a virtual clock, packet
//! scripts, and a hostile peer.

mod host;
mod hostile;
mod network;
pub(crate) mod random;
mod script;
mod scripts;
mod transfer;
