//! `netacc utcp-keeper`: the process that gives connections back to the kernel whose program was
//! killed while it had them out (`docs/design/utcp.md`). The library starts it, with one end of a
//! link as descriptor 3; it stands in no list of commands.

use crate::terminal;
use netacc_packet::sys::Fd;
use rustix::fs::FileType;
use rustix::process::{Resource, Rlimit};
use std::ffi::c_int;
use std::os::fd::BorrowedFd;

const NAME: &str = "utcp-keeper";
const LINK: c_int = 3;

/// Whether the library has started this process.
pub fn is_asked_for() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().is_some_and(|name| name == NAME) && arguments.next().is_none()
}

/// Serves until the program is gone, and all of its connections are the kernel's; the exit status.
#[allow(unsafe_code, reason = "a descriptor that was inherited")]
pub fn main() -> c_int {
    // SAFETY: asks what it is, and nothing else; of a closed one the kernel says that.
    let link = unsafe { BorrowedFd::borrow_raw(LINK) };
    let is_link = rustix::fs::fstat(link)
        .is_ok_and(|is| FileType::from_raw_mode(is.st_mode) == FileType::Socket);
    match Fd::new(LINK as isize) {
        Ok(link) if is_link => {
            // (It has two descriptors of each connection.)
            let most = rustix::process::getrlimit(Resource::Nofile).maximum;
            let limit = Rlimit { current: most, maximum: most };
            let _ = rustix::process::setrlimit(Resource::Nofile, limit);
            netacc_utcp::keeper::run(link);
            0
        }
        _ => {
            terminal::complain(&format!("netacc: {NAME} is started by the library, for itself"));
            super::STATUS_USAGE
        }
    }
}
