//! Packet scripts for each RFC: what it says, with its numbers.

mod congestion;
mod control;
mod receiving;
mod retransmission;
mod window;
