//! Why a connection is not out, as `netacc_ss` says it.

use crate::io::Went;
use crate::slots::parting;
use netacc_control::stats::Reason;
use netacc_control::trace::Back;
use netacc_packet::sys::Errno;
use netacc_utcp::carried::Carried;
use netacc_utcp::{NotTaken, Over, Reason as Tcp, Refusal};

/// What was said with the order to leave.
pub(super) fn reason_of(leave: u32) -> Reason {
    Reason::ALL.get((leave >> parting::REASON) as usize).copied().unwrap_or(Reason::UtcpGivenBack)
}

/// What a connection was taken out with, for its trace.
pub(super) fn said_of_taken(carried: &mut Carried) -> u64 {
    let figures = carried.connection().figures();
    let srtt_us = figures.srtt.unwrap_or(0) / 1000;
    figures.mss.min(0xffff) | srtt_us.min(u64::from(u32::MAX)) << 16
}

/// Why it came back, for its trace.
pub(super) fn said_of_back(why: Reason, over: Option<Over>) -> u64 {
    u64::from(why as u32) | (why_back(over) as u64) << 16
}

/// What made the kernel go on with it.
const fn why_back(why: Option<Over>) -> Back {
    match why {
        None => Back::Asked,
        Some(Over::Tcp(Tcp::Fin)) => Back::Fin,
        Some(Over::Tcp(Tcp::Reset)) => Back::Reset,
        Some(Over::Tcp(Tcp::Urgent)) => Back::Urgent,
        Some(Over::Tcp(Tcp::Foreign)) => Back::Foreign,
        Some(Over::Tcp(Tcp::NoTimeStamp)) => Back::NoTimeStamp,
        Some(Over::Tcp(Tcp::Timeouts)) => Back::Timeouts,
        Some(Over::Tcp(Tcp::UserTimeout)) => Back::UserTimeout,
        Some(Over::Tcp(Tcp::KeepAlive)) => Back::KeepAlive,
        Some(Over::Device(_)) => Back::Device,
        Some(Over::Rerouted) => Back::Rerouted,
        Some(Over::NotKept) => Back::NotKept,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_packet::route::NoRoute;
    use std::vec::Vec;

    /// By name, as an operator reads it; nothing where it is tried again.
    fn names(all: impl IntoIterator<Item = NotTaken>) -> Vec<Option<&'static str>> {
        let name = |went| match went {
            Went::Never(why) => Some(why.name()),
            _ => None,
        };
        all.into_iter().map(why_not).map(name).collect()
    }

    #[test]
    fn what_is_not_taken_out_says_why() {
        let unfit = [
            Refusal::NotTcp,
            Refusal::State,
            Refusal::Negotiated,
            Refusal::Layered,
            Refusal::Policy,
            Refusal::Tracked,
            Refusal::Other(Errno(libc::EINVAL)),
        ];
        assert_eq!(names(unfit.map(NotTaken::Refused)), [Some("utcp-unfit"); 7]);
        let routes = [NoRoute::Unknown, NoRoute::Down, NoRoute::NotEthernet].map(NotTaken::Route);
        assert_eq!(names(routes), [Some("utcp-no-route"); 3]);
        assert_eq!(names([NotTaken::OtherDevice(7)]), [Some("utcp-no-route")]);
        let kernel =
            [NotTaken::Steering(Errno(libc::EINVAL)), NotTaken::NoKeeper(Errno(libc::EPIPE))];
        assert_eq!(names(kernel), [Some("utcp-no-support"); 2]);
        let here = [
            Refusal::Privilege,
            Refusal::NoMemory,
            Refusal::Other(Errno(libc::EMFILE)),
            Refusal::Restless,
        ];
        let said = [Some("utcp-no-privilege"), Some("no-memory"), Some("no-descriptor"), None];
        assert_eq!(names(here.map(NotTaken::Refused)), said);
    }
}
