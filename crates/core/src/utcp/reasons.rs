//! Why a connection is not out, as `netacc_ss` says it.

use crate::io::Went;
use crate::wire::parting;
use netacc_control::stats::Reason;
use netacc_packet::sys::Errno;
use netacc_utcp::{NotTaken, Refusal};

/// What was said with the order to leave.
pub(super) fn reason_of(leave: u32) -> Reason {
    Reason::ALL.get((leave >> parting::REASON) as usize).copied().unwrap_or(Reason::UtcpGivenBack)
}

/// Why a connection was not taken out.
pub(super) fn why_not(why: NotTaken) -> Went {
    Went::Never(match why {
        NotTaken::Refused(Refusal::Restless) => return Went::NotNow,
        NotTaken::Refused(Refusal::Privilege) => Reason::UtcpNoPrivilege,
        NotTaken::Refused(Refusal::NoMemory) => Reason::NoMemory,
        NotTaken::Refused(Refusal::Other(Errno(libc::EMFILE))) => Reason::NoDescriptor,
        NotTaken::Refused(_) => Reason::UtcpUnfit,
        NotTaken::Route(_) | NotTaken::OtherDevice(_) => Reason::UtcpNoRoute,
        NotTaken::Out => Reason::Internal,
        NotTaken::Full => Reason::ChannelFull,
        NotTaken::Steering(_) | NotTaken::NoKeeper(_) => Reason::UtcpNoSupport,
    })
}
