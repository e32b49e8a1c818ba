//! What is true of a connection beside its state: bits of [`super::Socket::flags`].
//!
//! Most are orthogonal. Three groups are small states of their own, of two bits each, of which the
//! second never stands without the first: so each step is one `fetch_or` or `fetch_and`, and who
//! needs several groups at once reads them in one load. `docs/design/socket.md` has the tables.

// ---- what the application has asked for ---------------------------------------------------------

/// O_NONBLOCK.
pub(crate) const NONBLOCK: u32 = 1 << 0;
/// TCP_CORK: what is sent waits for more.
pub(crate) const CORKED: u32 = 1 << 1;
/// shutdown(SHUT_RD) was called between hosts: an empty ring is the end.
pub(crate) const SHUT_RD: u32 = 1 << 2;

// ---- group: how far the end of what it sends has come -------------------------------------------

/// shutdown(SHUT_WR) was called: the kernel answers further sends.
pub(crate) const SHUT_WR: u32 = 1 << 3;
/// With `SHUT_WR`: the kernel is told of that when all is sent again.
pub(crate) const FIN_LATER: u32 = 1 << 4;
/// It was called, and the kernel cannot be told yet.
pub(crate) const FIN_DUE: u32 = SHUT_WR | FIN_LATER;

// ---- group: a closed connection -----------------------------------------------------------------

/// Every descriptor is closed, but something is still under way on it (`waiters`): `fd` is a name
/// of the library's own.
pub(crate) const ORPHAN: u32 = 1 << 5;
/// With `ORPHAN`: what is under way has not begun, and is counted in `waiters` for it.
pub(crate) const CLOSE_LATER: u32 = 1 << 6;

// ---- group: what a connector knows of the acceptor's library ------------------------------------

/// The connector has received bytes, and has looked for a listener with the library then.
pub(crate) const ASKED: u32 = 1 << 7;
/// With `ASKED`: a process with the library accepts on the peer's port.
pub(crate) const ACCEPTOR_KNOWN: u32 = 1 << 8;
/// One was found.
pub(crate) const FOUND: u32 = ASKED | ACCEPTOR_KNOWN;

// ---- the search for its peer --------------------------------------------------------------------

/// We made the connection (connect); clear: we accepted it.
pub(crate) const CONNECTOR: u32 = 1 << 9;
/// Its process has shown that it waits for it by calls that the library sees (`io/waits_seen.rs`).
pub(crate) const WAITS_SEEN: u32 = 1 << 10;
/// The agent knows it.
pub(crate) const NOTED: u32 = 1 << 11;

// ---- who else has it (`crate::adoption`) --------------------------------------------------------

/// It was adopted: the process is found at the connection's port when it has shown to be used.
pub(crate) const HEIR: u32 = 1 << 14;
/// It was adopted, and others may have it still.
pub(crate) const UNSETTLED: u32 = 1 << 15;
/// A forked child has begun to use it: its maker attaches it no more.
pub(crate) const CONTESTED: u32 = 1 << 16;
/// It was passed over a unix socket, by this process or to it.
pub(crate) const PASSED: u32 = 1 << 17;
/// Who has it stands on its file ([`crate::adoption::passed`]).
pub(crate) const TRACKED: u32 = 1 << 18;
/// A child of its maker's has handed it on, and is not counted any more: whoever of the others is
/// last takes their mark away ([`crate::adoption::exec`]).
pub(crate) const FAMILY: u32 = 1 << 12;
/// It is handed to the program that the process is about to become.
pub(crate) const HANDED: u32 = 1 << 13;
/// It was, to this one.
pub(crate) const EXECED: u32 = 1 << 27;
/// It shows for longer than others that it is used, before an agreement is sought.
pub(crate) const LATE: u32 = 1 << 28;
/// It has a name among 0, 1 and 2, which stdio reads and writes unseen: not attached meanwhile, and
/// counted anew afterwards.
pub(crate) const STDIO: u32 = 1 << 29;
/// A child uses it that has given up the memory of its maker, or has used it
/// ([`crate::adoption::share`]).
pub(crate) const SHARED: u32 = 1 << 30;
/// A forked child uses it: between hosts its maker takes it back to the carrier, for good.
pub(crate) const CALLED_BACK: u32 = 1 << 19;

// ---- attached: what data calls have to heed -----------------------------------------------------

/// The carrier has said something that the ring cannot (FIN, RST, error, urgent data): ask it
/// before waiting.
pub(crate) const CARRIER_SPOKE: u32 = 1 << 20;
/// The ring may hold bytes back.
pub(crate) const HOLDS: u32 = 1 << 21;
/// It goes back to the kernel for good as soon as what it has received can: within the host.
pub(crate) const LEAVING: u32 = 1 << 22;

// ---- how the stream broke: each is a fact, and several may be -----------------------------------

/// The connection was reset, and the kernel does not know, or not any more (`crate::io::reset`).
pub(crate) const RESET: u32 = 1 << 23;
/// The library has broken the connection off: bytes are missing, whatever the kernel says.
pub(crate) const BROKEN_OFF: u32 = 1 << 24;
/// Every call fails with ECONNRESET: the peer broke the rules, or the connection was dissolved and
/// could not be taken apart (`crate::io::disconnect`).
pub(crate) const CORRUPT: u32 = 1 << 25;
/// The application was told that the stream broke off. (As of any error, once: tcp(7).)
pub(crate) const TOLD: u32 = 1 << 26;

/// With `BROKEN_OFF`: because nothing was heard of the peer for as long as TCP waits (ETIMEDOUT).
pub(crate) const TIMED_OUT: u32 = 1 << 31;

/// No two are the same bit.
const _: () = {
    let all = [
        NONBLOCK,
        CORKED,
        SHUT_RD,
        SHUT_WR,
        FIN_LATER,
        ORPHAN,
        CLOSE_LATER,
        ASKED,
        ACCEPTOR_KNOWN,
        CONNECTOR,
        WAITS_SEEN,
        NOTED,
        HEIR,
        UNSETTLED,
        CONTESTED,
        PASSED,
        TRACKED,
        CALLED_BACK,
        FAMILY,
        HANDED,
        EXECED,
        LATE,
        STDIO,
        SHARED,
        CARRIER_SPOKE,
        HOLDS,
        LEAVING,
        RESET,
        BROKEN_OFF,
        CORRUPT,
        TOLD,
        TIMED_OUT,
    ];
    let (mut seen, mut rest) = (0u32, all.as_slice());
    while let [first, others @ ..] = rest {
        assert!(seen & *first == 0);
        seen |= *first;
        rest = others;
    }
};

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    #[test]
    fn every_flag_is_in_the_design() {
        let page = include_str!("../../../../docs/design/socket.md");
        let (mut flags, names) = (0, include_str!("flag.rs").lines());
        for line in names.filter_map(|l| l.strip_prefix("pub(crate) const ")) {
            let (name, value) = line.split_once(": u32 = ").unwrap();
            if value.starts_with("1 <<") {
                flags += 1;
                assert!(page.contains(&std::format!("`{name}`")), "docs/design/socket.md: {name}");
            }
        }
        assert!(flags >= 20, "{flags} flags were found");
    }
}
