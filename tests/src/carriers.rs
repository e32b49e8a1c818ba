//! Whether a connection of this process has come by a carrier of one before it (mode `fast`): then
//! its port is one of those that the short connections before the scenario's had.

use crate::sys::{self, Fd};
use std::sync::Mutex;

/// What is looked for: empty in other modes, and from when one was found on.
static PORTS: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// From here on connections are looked at.
pub fn remember(ports: Vec<u16>) {
    *PORTS.lock().expect("no panic") = ports;
}

/// A connection was made, or is being made. True: it is the first that came so.
pub fn is_first(fd: Fd) -> bool {
    // (In a child that was forked meanwhile nobody may have let go of it.)
    let Ok(mut ports) = PORTS.try_lock() else { return false };
    if ports.is_empty() || !sys::getsockname(fd).is_ok_and(|own| ports.contains(&own.port())) {
        return false;
    }
    ports.clear();
    true
}
