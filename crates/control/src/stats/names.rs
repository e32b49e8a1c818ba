//! The names of counters and reasons. New ones go at the end: the position is the code.

use super::Path;

macro_rules! counters {
    ($($variant:ident $name:literal $doc:literal, $remedy:literal;)*) => {
        /// What is counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Counter { $(#[doc = $doc] $variant),* }

        impl Counter {
            /// Every counter, by code.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant),*];
            /// Its name in `netacc_ss`.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name),* }
            }
            /// What it counts.
            pub const fn doc(self) -> &'static str {
                match self { $(Counter::$variant => $doc),* }
            }
            /// What an operator can do where it rises.
            pub const fn remedy(self) -> &'static str {
                match self { $(Counter::$variant => $remedy),* }
            }
        }
    };
}

counters! {
    Accepted "accepted" "TCP connections accepted.", "Normal.";
    Connected "connected" "TCP connections made.", "Normal.";
    PromotedTx "promoted_tx" "Sending directions that left TCP for a faster path.", "Normal.";
    PromotedRx "promoted_rx" "Receiving directions that left TCP for a faster path.", "Normal.";
    Demoted "demoted" "Directions that went back to TCP.",
        "Normal where connections end, or acceleration is turned off. Where it grows with connections that stay open: look at their reasons (netacc_ss -s sock).";
    PulledBack "pulled_back" "Directions of which unread bytes were taken back from the fast path and sent by TCP.",
        "Normal where acceleration is turned off or a reader is slow to take its bytes; otherwise look at the reasons (netacc_ss -s sock).";
    DoorbellsRung "doorbells_rung" "Wake-ups that this process sent to a sleeping peer.",
        "Normal: the peer sleeps when there is nothing to do. Where each message rings and latency matters: NACC_POLL_MS at the peer.";
    Wakeups "wakeups" "Wake-ups that this process got from a peer.",
        "Normal: this process sleeps when there is nothing to do. Where latency matters: NACC_POLL_MS.";
    SpinsWon "spins_won" "Waits in which polling found what it waited for.",
        "Normal: polling pays.";
    SpinsLost "spins_lost" "Waits in which polling was in vain and the thread slept after all.",
        "Normal beside more of spins_won. Where it is most of them: a smaller NACC_POLL_MS saves CPU time.";
    KernelEpollVisits "kernel_epoll_visits" "Calls of the kernel's epoll_wait.", "Normal.";
    OffersSent "offers_sent" "Offers to accelerate a connection that this process made to a peer.",
        "Normal.";
    OffersReceived "offers_received" "Offers to accelerate a connection that this process got from a peer.",
        "Normal.";
    OffersRefused "offers_refused" "Offers that were refused, by this process or by a peer.",
        "Look at the reasons of the connections at both ends (netacc_ss -s sock).";
    AuthFailures "auth_failures" "Peers that could not prove that they hold the other end of the connection.",
        "Look in the log for who claimed connections that are not its own.";
    PeerCorrupt "peer_corrupt" "Violations of the protocol found in memory shared with a peer.",
        "Look at the log: a peer broke the protocol, by a memory error or on purpose.";
    ShmBytesTx "shm_bytes_tx" "Bytes sent through shared memory, by connections open and ended.",
        "Normal.";
    ShmBytesRx "shm_bytes_rx" "Bytes received through shared memory, by connections open and ended.",
        "Normal.";
    TcpBytesTx "tcp_bytes_tx" "Bytes sent through TCP, by connections open and ended that the library follows.",
        "Normal before a connection is accelerated. Where it goes on to grow: look at the reasons (netacc_ss -s sock).";
    TcpBytesRx "tcp_bytes_rx" "Bytes received through TCP, by connections open and ended that the library follows.",
        "Normal before a connection is accelerated. Where it goes on to grow: look at the reasons (netacc_ss -s sock).";
    ChannelsOpened "channels_opened" "Channels made to other processes.", "Normal.";
    ChannelsClosed "channels_closed" "Channels closed.", "Normal.";
    ChannelsFailed "channels_failed" "Channels given up because the peer died or broke the rules.",
        "Look at the log: peers died, or broke the rules.";
    SpinsSkipped "spins_skipped" "Waits that slept at once, because polling could not pay.",
        "Normal.";
    Sleeps "sleeps" "Waits that went to sleep in the kernel.", "Normal.";
    RecordsExhausted "records_exhausted" "Connections that found no free record in this segment.",
        "Spread the connections over more processes: those without a record are not shown.";
    EpollCtlSaved "epoll_ctl_saved" "Calls of epoll_ctl that needed no system call.", "Normal.";
    Forks "forks" "Forks of the process.", "Normal.";
    LogLinesDropped "log_lines_dropped" "Log messages that could not be written.",
        "NACC_LOG_PATH=/tmp/netacc-%u.log, or more room for the log.";
    RdmaBytesTx "rdma_bytes_tx" "Bytes sent through RDMA, by connections open and ended.",
        "Normal.";
    RdmaBytesRx "rdma_bytes_rx" "Bytes received through RDMA, by connections open and ended.",
        "Normal.";
    RdmaLinks "rdma_links" "Agreements made with processes of other hosts.", "Normal.";
    RdmaPairsCreated "rdma_pairs_created" "Queue pairs created.", "Normal.";
    RdmaPairsLost "rdma_pairs_lost" "Queue pairs lost: an error, a link that went down, or a peer that died.",
        "Look at the link: rdma link, rdma statistic; and at the log.";
    RdmaPairsReused "rdma_pairs_reused" "Connections that found a place on a queue pair that was there.",
        "Normal.";
    RdmaRegions "rdma_regions" "Memory regions registered.", "Normal.";
    RdmaRegisteredBytes "rdma_registered_bytes" "Bytes of the memory regions registered.",
        "Normal. Where it comes near the limit of locked memory (ulimit -l): raise that.";
    RdmaWorkRequests "rdma_work_requests" "Work requests posted for sending.", "Normal.";
    RdmaMessagesSent "rdma_messages_sent" "Messages, and writes with immediate, sent: what uses up a receive of the peer.",
        "Normal.";
    RdmaMessagesReceived "rdma_messages_received" "Messages, and writes with immediate, received.",
        "Normal.";
    RdmaCredits "rdma_credits" "Messages sent that only give room or receives back.", "Normal.";
    RdmaPolls "rdma_polls" "Polls of completion queues.", "Normal.";
    RdmaArms "rdma_arms" "Completion queues armed, so that they wake a sleeping thread.", "Normal.";
    RdmaIoWakeups "rdma_io_wakeups" "Wake-ups of I/O threads.", "Normal.";
    FailOvers "fail_overs" "Directions that went on over TCP because the fast path was lost or left.",
        "Normal where acceleration is turned off. Otherwise look at the link, and at the reasons (netacc_ss -s sock).";
    RdmaClaimsProven "rdma_claims_proven" "Accepted connections agreed on with a peer that knew the time stamp of their SYN.",
        "Normal.";
    RdmaClaimsUnproven "rdma_claims_unproven" "Accepted connections agreed on by their addresses alone.",
        "Normal where net.ipv4.tcp_timestamps is 0 at the client, or SYN cookies are in use; otherwise set it to 1 (the default) there.";
    RdmaPairsStalled "rdma_pairs_stalled" "Of the queue pairs lost, those on which nothing arrived any more and no device said so.",
        "Look at the network between the hosts: its switches, its flow control (ethtool -S), rdma statistic.";
    KernelLooks "kernel_looks" "Looks at the kernel's sockets, beyond the first, that waits made instead of sleeping.",
        "Normal.";
    LooksWon "looks_won" "Waits in which such a look found what it waited for.", "Normal.";
    LooksLost "looks_lost" "Waits in which such looks were in vain and the thread slept after all.",
        "Normal beside more of looks_won.";
    MessagesTx "messages_tx" "Calls that have sent something, on connections open and ended that the library follows.",
        "Normal.";
    MessagesRx "messages_rx" "Calls that have received something, on connections open and ended that the library follows.",
        "Normal.";
    UtcpBytesTx "utcp_bytes_tx" "Bytes sent by TCP in user space, by connections open and ended.",
        "Normal.";
    UtcpBytesRx "utcp_bytes_rx" "Bytes received by TCP in user space, by connections open and ended.",
        "Normal.";
    UtcpTakenOut "utcp_taken_out" "Connections that were taken out of the kernel (utcp).",
        "Normal.";
    UtcpGivenBack "utcp_given_back" "Connections that were given back to the kernel (utcp).",
        "Normal where connections are closed. Otherwise look at the reasons (netacc_ss -s sock).";
    UtcpLost "utcp_lost" "Connections that the kernel would not have back, and that were reset (utcp).",
        "Report it, with the log; NACC_PATHS without utcp keeps connections in the kernel.";
}

/// Number of counters.
pub const COUNTERS: usize = Counter::ALL.len();

macro_rules! reasons {
    ($($variant:ident $name:literal $explanation:literal, $remedy:literal;)*) => {
        /// Why a connection is on TCP.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Reason { $(#[doc = $explanation] $variant),* }

        impl Reason {
            /// Every reason, by code.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant),*];
            /// Its name in `netacc_ss`.
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name),* }
            }
            /// What it means.
            pub const fn explanation(self) -> &'static str {
                match self { $(Reason::$variant => $explanation),* }
            }
            /// What an operator can do about it.
            pub const fn remedy(self) -> &'static str {
                match self { $(Reason::$variant => $remedy),* }
            }
        }
    };
}

reasons! {
    None "none" "The connection is accelerated.", "None needed.";
    Negotiating "negotiating" "The two sides have not finished agreeing on a path.",
        "Wait a second: then both ends have agreed, or another reason says why not.";
    PeerRemote "peer-remote" "The peer is on another host, or in another network namespace of this one, and no path leads there.",
        "Shared memory serves connections within one host, RDMA those whose addresses belong to RDMA devices at both ends.";
    PeerWithoutLibrary "peer-without-library" "No process with the library has asked for this connection as its peer.",
        "Start the peer with netacc_run as well, with acceleration turned on and no rule of netacc.conf that keeps the connection on TCP. The search goes on as long as the connection is used.";
    ListenerWithoutLibrary "listener-without-library" "No process with the library, and with acceleration turned on, is known to have accepted a connection at the peer's port.",
        "Start the server with netacc_run as well. If it was, it may not have accepted a connection yet (it is starting, or busy); or acceleration is turned off there (netacc cfg get NACC_ENABLE_RDMA_DEFAULT): connections that were made while it was off are found some seconds after it is on again. The search goes on as long as the connection is used.";
    DisabledByConfig "disabled-by-config" "The configuration turns acceleration off, or has done so since the connection was made.",
        "Set NACC_ENABLE_RDMA_DEFAULT=1, or, if it was changed while the program runs (netacc cfg get), netacc cfg set NACC_ENABLE_RDMA_DEFAULT 1.";
    SampledOut "sampled-out" "NACC_CONNECT_RDMA_PERCENT left this connection on TCP.",
        "Raise NACC_CONNECT_RDMA_PERCENT to 100.";
    PeerRefused "peer-refused" "The peer's library refused the offer.",
        "See the reason that netacc_ss shows for the peer.";
    VersionMismatch "version-mismatch" "The two libraries speak no common protocol version.",
        "Run the same version of netacc on both sides.";
    NotAuthenticated "not-authenticated" "The peer could not prove that it holds the other end of the connection.",
        "Another process claimed the connection, or a sandbox keeps its holder from setting IP options: see the log.";
    NoMemory "no-memory" "There was no memory for a channel or its buffers.",
        "Check the memory limits of the process and its control group.";
    NoDescriptor "no-descriptor" "A file descriptor for a channel could not be had: a limit, or a filter of system calls.",
        "Raise the limit of open files (ulimit -n); or let the filter pass what the manual names (install.md).";
    ChannelFull "channel-full" "The channel to the peer carries as many connections as it can.",
        "Spread the connections over more processes.";
    InheritedByFork "inherited-by-fork" "The socket was inherited by a forked process and is used by several.",
        "None needed; the connection is correct, at TCP's speed.";
    InheritedByExec "inherited-by-exec" "The socket was inherited through exec.",
        "None needed; the connection is correct, at TCP's speed.";
    PassedByScmRights "passed-by-scm-rights" "The socket was passed to or from another process over a Unix socket, or to the kernel (as a network block device's).",
        "None needed; the connection is correct, at TCP's speed.";
    SocketOption "socket-option" "The program set a socket option that only the kernel's TCP has.",
        "None, or turn off the feature of the program that sets it.";
    UrgentData "urgent-data" "The connection uses urgent (out-of-band) data.",
        "None; urgent data needs TCP.";
    StdioStream "stdio-stream" "The socket is read or written by libc itself: through stdio (fdopen), or by aio(7).",
        "None; stdio calls inside libc cannot be followed.";
    Splice "splice" "The program used splice, which moves data inside the kernel.",
        "None, or turn off the feature of the program that uses it.";
    SeveralEpollSets "several-epoll-sets" "The socket is in more than four epoll sets, in several with EPOLLEXCLUSIVE, or in one that is itself polled or passed on, has 64 peers already, or is one more than the 128 that are served.",
        "None needed; the connection is correct, at TCP's speed.";
    DuplicateInEpoll "duplicate-in-epoll" "A duplicate of the socket's descriptor is in an epoll set beside the first.",
        "None needed; the connection is correct, at TCP's speed.";
    PeerAskedForTcp "peer-asked-for-tcp" "The peer's library asked to go back to TCP.",
        "See the reason that netacc_ss shows for the peer.";
    PeerCorrupt "peer-corrupt" "The peer broke the protocol in shared memory; its channel was given up.",
        "Look for a memory error or an attack in the peer process.";
    Disconnected "disconnected" "The socket was disconnected with connect(AF_UNSPEC), or the connection was reset before it could be accelerated.",
        "None needed.";
    SelfConnect "self-connect" "The socket is connected to itself.",
        "None needed.";
    UncountedBytes "uncounted-bytes" "Bytes moved over the connection in a way the library did not see, so its position in the stream is unknown.",
        "Report the program; the connection is correct, at TCP's speed.";
    ShuttingDown "shutting-down" "One end has shut down its half of the connection, or both, before it could be accelerated. Between hosts both directions are accelerated, or none.",
        "None needed; the connection is correct, at TCP's speed.";
    IoUring "io-uring" "An io_uring of the program's used the connection, or cannot be followed.",
        "Turn off io_uring in the program, or set NACC_IO_URING=0.";
    NotStream "not-stream" "The socket is not an ordinary TCP stream.",
        "None.";
    NotStarted "not-started" "The connection has carried no more than one request and its reply, so no agreement was tried.",
        "None needed; a shorter connection would gain nothing.";
    NoRecord "no-record" "The process has more connections, or higher descriptor numbers, than the library follows.",
        "None needed; the connection is correct, at TCP's speed.";
    ChannelFailed "channel-failed" "The link to the peer's library ended before the connection did.",
        "See the log of both processes.";
    SharedByThreads "shared-by-threads" "Several waiting places use the socket in a way that the fast path does not carry.",
        "None needed; the connection is correct, at TCP's speed.";
    Internal "internal" "The library gave up for a reason of its own.",
        "See the log, and report it.";
    RdmaCoreMissing "rdma-core-missing" "The libraries of rdma-core (libibverbs, librdmacm) are not installed, or cannot be loaded.",
        "Install them (Debian, Ubuntu: ibverbs-providers and librdmacm1; Fedora, RHEL: libibverbs and librdmacm) and start the program again.";
    NoRdmaDevice "no-rdma-device" "The connection's address here belongs to no RDMA device, or the device's port is down.",
        "Look at rdma link and ibv_devinfo, and let the program use an address of an RDMA device.";
    MemlockLimit "memlock" "The process may not lock as much memory as RDMA needs (RLIMIT_MEMLOCK).",
        "Raise the limit: ulimit -l in the shell, LimitMEMLOCK= in the systemd unit, memlock in /etc/security/limits.conf; and start the program again.";
    RdmaRefused "rdma-refused" "A call of the RDMA libraries or their connection manager was refused, or no port for agreements was free.",
        "See the log, which names the call and its error; it is tried again by itself.";
    RdmaLost "rdma-lost" "The queue pair to the peer was lost; the stream goes on over TCP.",
        "Look at the link and at the log; RDMA is tried again by itself.";
    PathsExcludeIt "paths-exclude-it" "NACC_PATHS names no path that could serve this connection.",
        "Add shm or rdma to NACC_PATHS.";
    ForkedAfterRdma "forked-after-rdma" "The process was forked from one that had used RDMA, whose device a child cannot use.",
        "None needed; the connection is correct, at TCP's speed. Fork before the first connection to another host, or exec.";
    NotClaimed "not-claimed" "Processes with the library accept on the peer's port, but none of them has asked for this connection.",
        "Look with netacc_ss at the process that has the other end: it may not use the connection yet, have got it from another process, have set a socket option that only the kernel's TCP has, have acceleration turned off, or a rule of netacc.conf there keeps it on TCP.";
    WaitsUnseen "waits-unseen" "The program waits for the connection in a way that the library does not see: by system calls of its own instead of libc's.",
        "None needed; the connection is correct, at TCP's speed. netacc_run names programs and libraries that have such calls.";
    NotInReach "not-in-reach" "This end's RDMA device does not lead to the peer: packets leave by another interface, over a gateway of IPoIB, to an address that is translated on the way, or are under way for more than 10 ms behind a gateway.",
        "Let the program use an address of the device whose network the peer is in, and look at the route to it (ip route get).";
    Ipsec "ipsec" "The kernel encrypts or wraps the connection's packets (IPsec, MACsec, an encapsulation), which RDMA would not.",
        "None needed; the connection is correct, at TCP's speed. Where RDMA may go in the clear: NACC_KERNEL_POLICY=0.";
    KernelPolicy "kernel-policy" "The kernel was asked for what RDMA does not do with packets: a mark, a priority, a pacing rate, few hops, headers, another interface or VRF; or the ends want different traffic classes; or the process may not ask what the kernel does (no AF_NETLINK).",
        "See which in the manual (rdma.md). Where RDMA may pass them by: NACC_KERNEL_POLICY=0.";
    Rule "rule" "A rule of netacc.conf keeps the connection on TCP.",
        "Change the rule, if that was not meant: netacc doctor with the number of the process names it.";
    ConfigUnreadable "config-unreadable" "The library could not read netacc.conf, which may have a rule that keeps the connection on TCP.",
        "Let the program's user read the file; the log names it and the error. Where the process had no descriptor left (errno 24): a higher limit. Where there is to be no file: take it away. Then start the program again.";
    UtcpNoPrivilege "utcp-no-privilege" "The process may not take connections out of the kernel: it needs the capabilities CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF in its network namespace.",
        "Give them to it, and start it again: AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_BPF in its systemd unit; --cap-add of each for a container; as root it has them. The log names those that are missing.";
    UtcpNoSupport "utcp-no-support" "The kernel cannot steer packets past its TCP (that needs tcx, of Linux 6.6), or the keeper, the program netacc, could not be started, or would end with this process, which is PID 1 of its namespace.",
        "See the log; then run Linux 6.6 or later, install netacc beside its library, or have the container use the host's PID namespace.";
    UtcpNoRoute "utcp-no-route" "The peer cannot be reached by TCP in user space: it is behind a device that is no Ethernet or is down, its next hop is not known, or this process has connections on four other devices.",
        "Look at the route to it (ip route get), and at the neighbours (ip neigh).";
    UtcpUnfit "utcp-unfit" "The connection cannot leave the kernel: something has happened on it (an end, urgent data), its SYN has options that cannot be kept (ECN, no SACK), another layer is above it (kernel TLS, MPTCP), or this network namespace tracks connections.",
        "None needed; the connection is correct, at TCP's speed. docs/manual/utcp.md says what can be taken out.";
    UtcpGivenBack "utcp-given-back" "The connection was out of the kernel and is back: one of its ends closes it, its packets go another way, the device does not take them, or its peer did something that only the kernel answers.",
        "None needed; the connection is correct, at TCP's speed.";
    Agreed "agreed" "Both ends have agreed on a path; each direction takes it with the next bytes that its sender sends.",
        "None needed: the connection is accelerated as soon as it is used again.";
}

/// Number of reasons.
pub const REASONS: usize = Reason::ALL.len();

impl Reason {
    /// Nothing gives these any more. Their codes stay theirs: segments and traces have the numbers.
    pub const RETIRED: &'static [Reason] = &[Reason::SharedByThreads];

    /// Those that connections can have, by code: what an operator reads of, and can select by.
    pub fn in_use() -> impl Iterator<Item = Reason> {
        Reason::ALL.iter().copied().filter(|reason| !Reason::RETIRED.contains(reason))
    }

    /// The reason with that code.
    pub fn from_code(code: u32) -> Option<Reason> {
        Reason::ALL.get(code as usize).copied()
    }
}

impl Counter {
    /// The counter with that code.
    pub fn from_code(code: u32) -> Option<Counter> {
        Counter::ALL.get(code as usize).copied()
    }

    /// Whether it counts what the rdma path alone does.
    pub fn is_rdma(self) -> bool {
        self.name().starts_with("rdma_")
    }

    /// The counter of the bytes sent on that path. The segment has those of connections that have
    /// ended: `Snapshot::totals` adds those of the open ones.
    pub const fn bytes_tx(path: Path) -> Counter {
        match path {
            Path::Tcp => Counter::TcpBytesTx,
            Path::Shm => Counter::ShmBytesTx,
            Path::Rdma => Counter::RdmaBytesTx,
            Path::Utcp => Counter::UtcpBytesTx,
        }
    }

    /// The counter of the bytes received on that path: as [`Counter::bytes_tx`].
    pub const fn bytes_rx(path: Path) -> Counter {
        match path {
            Path::Tcp => Counter::TcpBytesRx,
            Path::Shm => Counter::ShmBytesRx,
            Path::Rdma => Counter::RdmaBytesRx,
            Path::Utcp => Counter::UtcpBytesRx,
        }
    }
}
