//! The addresses of this host, as far as this process's network namespace knows them
//! (rtnetlink(7)): a peer at one of them is no other host. (An address can be bound to that is not
//! of this host: net.ipv4.ip_nonlocal_bind.)
//!
//! And whether this host has RDMA devices, and whether a thread may lock memory without a limit.

use crate::{fd_words, netlink, numbers, sys};
use core::ffi::c_int;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

/// The kernel is asked again when an answer is needed and the last one is so old.
const BELIEVED_NS: u64 = 10_000_000_000;
/// So many addresses are known; a peer at another one counts as another host.
const MOST: usize = 1024;

/// Hashes of the addresses, never 0; in turn one list is used and the other one written.
static LISTS: [[AtomicU64; MOST]; 2] = [const { [const { AtomicU64::new(0) }; MOST] }; 2];
static CURRENT: AtomicUsize = AtomicUsize::new(0);
static COUNTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static ASKED_AT: AtomicU64 = AtomicU64::new(0);
static ASKING: AtomicBool = AtomicBool::new(false);

/// Whether this host has that address.
pub(crate) fn has_address(ip: IpAddr) -> bool {
    let now = sys::now_ns();
    let asked = ASKED_AT.load(Acquire);
    if (asked == 0 || now.saturating_sub(asked) > BELIEVED_NS) && !ASKING.swap(true, Acquire) {
        // Only by one thread at a time; the others believe the old list meanwhile.
        ask();
        ASKED_AT.store(now, Release);
        ASKING.store(false, Release);
    }
    // The first answer is waited for, which takes microseconds. (Bounded: who asks may have been
    // forked away.)
    for _ in 0..1000 {
        if ASKED_AT.load(Acquire) != 0 {
            break;
        }
        sys::sched_yield();
    }
    let current = CURRENT.load(Acquire) & 1;
    let (Some(list), Some(count)) = (LISTS.get(current), COUNTS.get(current)) else { return false };
    let wanted = hash(ip);
    list.iter().take(count.load(Acquire)).any(|h| h.load(Relaxed) == wanted)
}

/// In a forked child nobody is asking.
pub(crate) fn after_fork_in_child() {
    ASKING.store(false, Relaxed);
}

pub(crate) fn hash(ip: IpAddr) -> u64 {
    let bits = match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    };
    let mixed = (bits as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ ((bits >> 64) as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f).rotate_left(31);
    mixed | 1
}

fn ask() {
    let fd = numbers::make(|| {
        sys::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
    });
    if fd < 0 {
        return;
    }
    if let Some(count) = list_into(fd) {
        let next = CURRENT.load(Relaxed) & 1 ^ 1;
        if let Some(c) = COUNTS.get(next) {
            c.store(count, Release);
            CURRENT.store(next, Release);
        }
    }
    fd_words::close_internal(fd);
}

/// Writes the list that is not in use. `None`: the kernel did not say.
fn list_into(fd: c_int) -> Option<usize> {
    let list = LISTS.get(CURRENT.load(Relaxed) & 1 ^ 1)?;
    let mut count = 0;
    // (A struct ifaddrmsg that asks for every family.)
    let all = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    netlink::talk(fd, libc::RTM_GETADDR, all, &[0; 8], |kind, body| {
        if kind == libc::RTM_NEWADDR
            && let (Some(ip), Some(place)) = (address_of(body), list.get(count))
        {
            place.store(hash(ip), Relaxed);
            count += 1;
        }
        Some(())
    })?;
    Some(count)
}

/// The address that a `struct ifaddrmsg` with its attributes is about: IFA_LOCAL, which a
/// point-to-point link has besides its peer's, or IFA_ADDRESS.
pub(crate) fn address_of(body: &[u8]) -> Option<IpAddr> {
    let family = i32::from(*body.first()?);
    let mut found = None;
    netlink::attributes(body.get(8..)?, |kind, value| {
        let ip = match family {
            libc::AF_INET => value.first_chunk::<4>().map(|o| IpAddr::from(*o)),
            libc::AF_INET6 => value.first_chunk::<16>().map(|o| IpAddr::from(*o)),
            _ => None,
        };
        if kind == libc::IFA_LOCAL || (kind == libc::IFA_ADDRESS && found.is_none()) {
            found = ip;
        }
    })?;
    found
}

/// There are RDMA devices.
static DEVICES: AtomicBool = AtomicBool::new(false);
/// When it was last found that there are none; 0: not asked.
static NONE_AT: AtomicU64 = AtomicU64::new(0);

/// Whether this host has RDMA devices. Asks the kernel once; where there is none, once a minute.
pub(crate) fn has_devices() -> bool {
    const ASK_AGAIN_NS: u64 = 60_000_000_000;
    let none_at = NONE_AT.load(Relaxed);
    if !DEVICES.load(Relaxed)
        && (none_at == 0 || sys::now_ns().saturating_sub(none_at) > ASK_AGAIN_NS)
    {
        DEVICES.store(sys::exists(b"/sys/class/infiniband\0"), Relaxed);
        NONE_AT.store(sys::now_ns(), Relaxed);
    }
    DEVICES.load(Relaxed)
}

/// As [`has_devices`], without asking.
pub(crate) fn may_have_devices() -> bool {
    DEVICES.load(Relaxed) || NONE_AT.load(Relaxed) == 0
}

/// The calling thread's capabilities, those in effect; none where the kernel does not say. (A
/// program's filter of calls may not know of capget.)
pub(crate) fn capabilities() -> u64 {
    let status = || sys::open(b"/proc/thread-self/status\0", libc::O_RDONLY | libc::O_CLOEXEC, 0);
    let fd = numbers::make(status);
    if fd < 0 {
        return 0;
    }
    let mut text = [0u8; 4096];
    let n = sys::read(fd, &mut text);
    fd_words::close_internal(fd);
    let text = text.get(..n.max(0) as usize).unwrap_or(&[]);
    let of = text.split(|c| *c == b'\n').find_map(|line| line.strip_prefix(b"CapEff:\t"));
    of.and_then(|hex| u64::from_str_radix(core::str::from_utf8(hex).ok()?, 16).ok()).unwrap_or(0)
}

#[cfg(test)]
std::thread_local! {
    /// What [`is_stopped`] says to a test's thread, and how often it was asked.
    pub(crate) static PRETENDED: core::cell::Cell<Option<bool>> =
        const { core::cell::Cell::new(None) };
    pub(crate) static ASKED: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

/// That process is stopped by a signal. (One that is traced is in its tracer's stops again and
/// again, and goes on at once; and one that nobody sees here is not.)
pub(crate) fn is_stopped(pid: u32) -> bool {
    #[cfg(test)]
    if let Some(stopped) = PRETENDED.get() {
        ASKED.set(ASKED.get() + 1);
        return stopped;
    }
    let (mut digits, mut rest, mut count) = ([0u8; 10], pid, 0);
    for place in digits.iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        (rest, count) = (rest / 10, count + 1);
        if rest == 0 {
            break;
        }
    }
    let mut path = [0u8; 32];
    let number = digits.iter().skip(10 - count);
    for (to, from) in path.iter_mut().zip(b"/proc/".iter().chain(number).chain(b"/stat")) {
        *to = *from;
    }
    let fd = numbers::make(|| sys::open(&path, libc::O_RDONLY | libc::O_CLOEXEC, 0));
    if fd < 0 {
        return false;
    }
    let mut text = [0u8; 128];
    let n = sys::read(fd, &mut text);
    fd_words::close_internal(fd);
    // "4711 (a name, of up to 15 of any characters) T 1 ..."
    let text = text.get(..n.max(0) as usize).unwrap_or(&[]);
    let name_ends = text.iter().rposition(|c| *c == b')').unwrap_or(text.len());
    text.get(name_ends + 2) == Some(&b'T')
}

/// RLIMIT_MEMLOCK is none for this thread: it is root's, or has CAP_IPC_LOCK. (Where that counts
/// for nothing, as in a user namespace, registering fails beyond the limit.)
pub(crate) fn may_lock_all() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    sys::geteuid() == 0 || capabilities() >> CAP_IPC_LOCK & 1 != 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;
    use crate::candidates::is_on_this_host;
    use netacc_proto::rendezvous::Tuple;

    #[test]
    fn own_addresses_are_known_from_others_and_asked_for_once() {
        let other = |last| IpAddr::from([198, 51, 100, last]);
        // (Another test's thread may be asking.)
        while ASKED_AT.load(Relaxed) == 0 {
            let _ = has_address(other(0));
        }
        let asked = ASKED_AT.load(Relaxed);
        assert!(has_address("127.0.0.1".parse().unwrap()));
        for last in 0..100u8 {
            assert!(!has_address(other(last)));
        }
        let now = ASKED_AT.load(Relaxed);
        assert!(now == asked || now - asked > BELIEVED_NS, "asked again");
    }

    /// Adds an address to the namespace's loopback interface, or takes it away.
    fn change(fd: c_int, kind: u16, ip: IpAddr) {
        let IpAddr::V4(ip) = ip else { return };
        let octets = ip.octets();
        // A struct ifaddrmsg of that interface, and IFA_LOCAL.
        let mut body = [2, 32, 0, 0, 1, 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 0];
        body[12..].copy_from_slice(&octets);
        // (Where it is done there is no answer.)
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_CREATE;
        let _ = netlink::talk(fd, kind, flags, &body, |_, _| Some(()));
    }

    #[test]
    fn a_peer_at_an_address_that_there_is_no_room_for_counts_as_another_host() {
        /// (docs/manual/limits.md)
        const KNOWN: usize = 1024;
        const MORE: usize = 40;
        crate::testing::init();
        let is_so = crate::testing::in_child(|| {
            // SAFETY: unshare(2), in a process of one thread.
            let own = |flags| unsafe { libc::unshare(flags) } == 0;
            if !own(libc::CLONE_NEWNET) && !own(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) {
                std::eprintln!("skipped: no network namespace can be made here");
                return true;
            }
            let ask = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
            let fd = sys::socket(libc::AF_NETLINK, ask, libc::NETLINK_ROUTE) as c_int;
            let at = |n: usize| IpAddr::from([10, 9, (n / 250) as u8, (n % 250) as u8 + 1]);
            let near = || {
                let here = core::net::SocketAddr::new(IpAddr::from([192, 0, 2, 1]), 1);
                let to = |n| Tuple::new(here, core::net::SocketAddr::new(at(n), 1)).unwrap();
                crate::testing::pass_ns(BELIEVED_NS + 1);
                (0..KNOWN + MORE).filter(|n| is_on_this_host(&to(*n))).count()
            };
            (0..KNOWN).for_each(|n| change(fd, libc::RTM_NEWADDR, at(n)));
            let full = near();
            (KNOWN..KNOWN + MORE).for_each(|n| change(fd, libc::RTM_NEWADDR, at(n)));
            let over = near();
            // Those that were beyond it come to be known when there is room.
            (0..MORE + 1).for_each(|n| change(fd, libc::RTM_DELADDR, at(n)));
            let last = (full, over, near(), has_address(at(KNOWN + MORE - 1)));
            if last != (KNOWN, KNOWN, KNOWN - 1, true) {
                std::eprintln!("{last:?}");
            }
            last == (KNOWN, KNOWN, KNOWN - 1, true)
        });
        assert!(is_so);
    }

    #[test]
    fn what_is_no_answer_is_none() {
        assert_eq!(address_of(&[]), None);
        assert_eq!(address_of(&[2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 2, 0, 10, 0]), None, "cut off");
        let point_to_point =
            [2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0, 10, 0, 0, 2, 8, 0, 2, 0, 10, 0, 0, 1];
        assert_eq!(address_of(&point_to_point), Some(IpAddr::from([10, 0, 0, 1])));
    }

    #[test]
    fn a_stopped_process_is_known_from_one_that_runs() {
        let mut child = std::process::Command::new("/bin/sleep").arg("100").spawn().unwrap();
        // SAFETY: a child of ours.
        let signal = |n| unsafe { libc::kill(child.id() as c_int, n) };
        assert!(!is_stopped(child.id()));
        assert_eq!(signal(libc::SIGSTOP), 0);
        while !is_stopped(child.id()) {
            std::thread::yield_now();
        }
        assert_eq!(signal(libc::SIGCONT), 0);
        while is_stopped(child.id()) {
            std::thread::yield_now();
        }
        assert!(!is_stopped(u32::MAX) && !is_stopped(0));
        // A tracer's stop is none. (Not everywhere may a test trace.)
        let trace = |request| {
            let none = core::ptr::null_mut::<libc::c_void>();
            // SAFETY: a child of ours, which is killed behind this.
            unsafe { libc::ptrace(request, child.id() as libc::pid_t, none, none) }
        };
        if trace(libc::PTRACE_SEIZE) == 0 && trace(libc::PTRACE_INTERRUPT) == 0 {
            let stat = std::format!("/proc/{}/stat", child.id());
            while !std::fs::read_to_string(&stat).unwrap().contains(") t ") {
                std::thread::yield_now();
            }
            assert!(!is_stopped(child.id()));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Rights are a thread's, so this one gives up root's, and keeps what it is told to.
    #[test]
    fn whoever_has_the_capability_may_lock_all() {
        const VERSION: u32 = 0x2008_0522;
        let keeping = |effective: u32| {
            let drops = move || {
                let header = [VERSION, 0];
                let sets = [effective, effective, 0, 0, 0, 0];
                // SAFETY: this thread's rights; the sets are read.
                unsafe {
                    assert_eq!(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0), 0);
                    assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
                    assert_eq!(
                        libc::syscall(libc::SYS_capset, &raw const header, &raw const sets),
                        0
                    );
                }
                (capabilities(), may_lock_all())
            };
            std::thread::spawn(drops).join().unwrap()
        };
        if sys::geteuid() != 0 {
            std::eprintln!("not shown: only root can give up rights");
            return;
        }
        crate::testing::init();
        assert!(may_lock_all());
        assert_eq!(keeping(0), (0, false));
        assert_eq!(keeping(1 << 14), (1 << 14, true));
    }
}
