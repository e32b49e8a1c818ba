//! Waits: poll, select, epoll.

use super::*;

pub fn timespec_ms(ms: i64) -> libc::timespec {
    libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 }
}

/// `poll`; returns the count and each revents.
/// `select` for input of descriptors beyond what an `fd_set` of libc's holds: how many are ready.
pub fn select_many(fds: &[Fd], timeout_ms: i64) -> Result<usize, E> {
    let count = fds.iter().max().map_or(0, |fd| *fd as usize + 1);
    let mut bits = vec![0u64; count.div_ceil(64).max(16)];
    for fd in fds {
        bits[*fd as usize / 64] |= 1 << (*fd % 64);
    }
    let mut timeout =
        libc::timeval { tv_sec: timeout_ms / 1000, tv_usec: timeout_ms % 1000 * 1000 };
    let none = std::ptr::null_mut();
    call!(libc::select(count as c_int, bits.as_mut_ptr().cast(), none, none, &mut timeout))
}

/// Runs `body` in a thread with the smallest stack that there can be: what it returns.
pub fn on_small_stack(body: extern "C" fn(Fd, Fd) -> i32, a: Fd, b: Fd) -> i32 {
    struct Job(extern "C" fn(Fd, Fd) -> i32, Fd, Fd, i32);
    extern "C" fn run(job: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the job of the thread that waits below.
        let job = unsafe { &mut *job.cast::<Job>() };
        job.3 = (job.0)(job.1, job.2);
        null_mut()
    }
    let mut job = Job(body, a, b, -1);
    // SAFETY: pthread calls with their arguments; the thread has ended before `job` does.
    unsafe {
        let mut attributes: libc::pthread_attr_t = zeroed();
        libc::pthread_attr_init(&mut attributes);
        assert!(libc::pthread_attr_setstacksize(&mut attributes, libc::PTHREAD_STACK_MIN) == 0);
        let mut thread = 0;
        let made = libc::pthread_create(&mut thread, &attributes, run, (&raw mut job).cast());
        assert!(made == 0, "pthread_create: {made}");
        libc::pthread_join(thread, null_mut());
    }
    job.3
}

/// This process's own allocations have some megabytes to come out of, from here on, whatever the
/// kernel refuses.
pub fn provide_memory() {
    // SAFETY: mallopt(3) and a vector.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 25);
    }
    drop(std::hint::black_box(vec![1u8; 8 << 20]));
}

/// The kernel maps nothing more for this process, or it does again.
pub fn refuse_memory(refuse: bool) {
    let most = libc::RLIM_INFINITY;
    let limit = libc::rlimit { rlim_cur: if refuse { 4096 } else { most }, rlim_max: most };
    call!(libc::setrlimit(libc::RLIMIT_AS, &limit)).expect("setrlimit");
}

pub fn poll(set: &[(Fd, i16)], timeout_ms: c_int) -> Result<(usize, Vec<i16>), E> {
    let mut list: Vec<libc::pollfd> =
        set.iter().map(|&(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
    let n = call!(libc::poll(list.as_mut_ptr(), list.len() as _, timeout_ms))?;
    Ok((n, list.iter().map(|p| p.revents).collect()))
}

pub fn ppoll(
    set: &[(Fd, i16)],
    timeout: Option<libc::timespec>,
    mask: Option<&libc::sigset_t>,
) -> Result<(usize, Vec<i16>), E> {
    let mut list: Vec<libc::pollfd> =
        set.iter().map(|&(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
    let ts = timeout.as_ref().map_or(null(), |t| &raw const *t);
    let mask = mask.map_or(null(), |m| &raw const *m);
    let n = call!(libc::ppoll(list.as_mut_ptr(), list.len() as _, ts, mask))?;
    Ok((n, list.iter().map(|p| p.revents).collect()))
}

/// Waits for `events` on one fd and returns its revents (0 on timeout).
pub fn await_events(fd: Fd, events: i16, timeout_ms: c_int) -> i16 {
    poll(&[(fd, events)], timeout_ms).map(|(_, r)| r[0]).unwrap_or(0)
}

pub fn poll_names(revents: i16) -> String {
    let table = [
        (libc::POLLIN, "IN"),
        (libc::POLLPRI, "PRI"),
        (libc::POLLOUT, "OUT"),
        (libc::POLLERR, "ERR"),
        (libc::POLLHUP, "HUP"),
        (libc::POLLNVAL, "NVAL"),
        (libc::POLLRDNORM, "RDNORM"),
        (libc::POLLRDBAND, "RDBAND"),
        (libc::POLLWRNORM, "WRNORM"),
        (libc::POLLWRBAND, "WRBAND"),
        (libc::POLLRDHUP, "RDHUP"),
    ];
    names_of(table.iter().filter(|(bit, _)| revents & bit != 0).map(|&(_, name)| name))
}

pub fn epoll_names(events: u32) -> String {
    let table = [
        (libc::EPOLLIN, "IN"),
        (libc::EPOLLPRI, "PRI"),
        (libc::EPOLLOUT, "OUT"),
        (libc::EPOLLERR, "ERR"),
        (libc::EPOLLHUP, "HUP"),
        (libc::EPOLLRDNORM, "RDNORM"),
        (libc::EPOLLRDBAND, "RDBAND"),
        (libc::EPOLLWRNORM, "WRNORM"),
        (libc::EPOLLWRBAND, "WRBAND"),
        (libc::EPOLLRDHUP, "RDHUP"),
    ];
    names_of(table.iter().filter(|(bit, _)| events & (*bit as u32) != 0).map(|&(_, name)| name))
}

fn names_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let list: Vec<&str> = names.collect();
    if list.is_empty() { "-".into() } else { list.join("|") }
}

/// The three sets of `select`, by fd.
#[derive(Default, Clone, Debug, PartialEq, Eq)]
pub struct Sets {
    pub read: Vec<Fd>,
    pub write: Vec<Fd>,
    pub except: Vec<Fd>,
}

fn to_set(fds: &[Fd]) -> libc::fd_set {
    // SAFETY: all-zero is a valid, empty fd_set.
    let mut set: libc::fd_set = unsafe { zeroed() };
    for &fd in fds {
        // SAFETY: callers pass fds below FD_SETSIZE.
        unsafe { libc::FD_SET(fd, &mut set) };
    }
    set
}

fn from_set(set: &libc::fd_set, fds: &[Fd]) -> Vec<Fd> {
    // SAFETY: callers pass fds below FD_SETSIZE.
    fds.iter().copied().filter(|&fd| unsafe { libc::FD_ISSET(fd, set) }).collect()
}

/// `select`; returns the count, what is left in the sets, and the remaining time in ms.
pub fn select(nfds: c_int, sets: &Sets, timeout_ms: Option<i64>) -> Result<(usize, Sets, i64), E> {
    let (mut r, mut w, mut x) = (to_set(&sets.read), to_set(&sets.write), to_set(&sets.except));
    let ms = timeout_ms.unwrap_or(0);
    let mut tv = libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 };
    let tvp = if timeout_ms.is_some() { &raw mut tv } else { null_mut() };
    let n = call!(libc::select(nfds, &mut r, &mut w, &mut x, tvp))?;
    let left = Sets {
        read: from_set(&r, &sets.read),
        write: from_set(&w, &sets.write),
        except: from_set(&x, &sets.except),
    };
    Ok((n, left, tv.tv_sec * 1000 + tv.tv_usec / 1000))
}

pub fn pselect(
    nfds: c_int,
    sets: &Sets,
    timeout_ms: Option<i64>,
    mask: Option<&libc::sigset_t>,
) -> Result<(usize, Sets), E> {
    let (mut r, mut w, mut x) = (to_set(&sets.read), to_set(&sets.write), to_set(&sets.except));
    let ts = timespec_ms(timeout_ms.unwrap_or(0));
    let tsp = if timeout_ms.is_some() { &raw const ts } else { null() };
    let mask = mask.map_or(null(), |m| &raw const *m);
    let n = call!(libc::pselect(nfds, &mut r, &mut w, &mut x, tsp, mask))?;
    let left = Sets {
        read: from_set(&r, &sets.read),
        write: from_set(&w, &sets.write),
        except: from_set(&x, &sets.except),
    };
    Ok((n, left))
}

pub fn epoll_create1(flags: c_int) -> Result<Fd, E> {
    fd_of(call!(libc::epoll_create1(flags)))
}

pub fn epoll_create(size: c_int) -> Result<Fd, E> {
    fd_of(call!(libc::epoll_create(size)))
}

pub fn epoll_ctl(set: Fd, op: c_int, fd: Fd, events: u32, data: u64) -> R {
    let mut event = libc::epoll_event { events, u64: data };
    call!(libc::epoll_ctl(set, op, fd, &mut event))
}

/// `epoll_ctl` with a null event.
pub fn epoll_ctl_null(set: Fd, op: c_int, fd: Fd) -> R {
    call!(libc::epoll_ctl(set, op, fd, null_mut()))
}

fn taken(list: &[libc::epoll_event], n: usize) -> Vec<(u32, u64)> {
    list.iter().take(n).map(|e| (e.events, e.u64)).collect()
}

pub fn epoll_wait(set: Fd, max: usize, timeout_ms: c_int) -> Result<Vec<(u32, u64)>, E> {
    let mut list = vec![libc::epoll_event { events: 0, u64: 0 }; max.max(1)];
    let n = call!(libc::epoll_wait(set, list.as_mut_ptr(), max as c_int, timeout_ms))?;
    Ok(taken(&list, n))
}

pub fn epoll_pwait(
    set: Fd,
    max: usize,
    timeout_ms: c_int,
    mask: Option<&libc::sigset_t>,
) -> Result<Vec<(u32, u64)>, E> {
    let mut list = vec![libc::epoll_event { events: 0, u64: 0 }; max.max(1)];
    let mask = mask.map_or(null(), |m| &raw const *m);
    let n = call!(libc::epoll_pwait(set, list.as_mut_ptr(), max as c_int, timeout_ms, mask))?;
    Ok(taken(&list, n))
}

unsafe extern "C" {
    #[link_name = "epoll_pwait2"]
    fn libc_epoll_pwait2(
        set: c_int,
        events: *mut libc::epoll_event,
        max: c_int,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

pub fn epoll_pwait2(
    set: Fd,
    max: usize,
    timeout: Option<libc::timespec>,
) -> Result<Vec<(u32, u64)>, E> {
    let mut list = vec![libc::epoll_event { events: 0, u64: 0 }; max.max(1)];
    let ts = timeout.as_ref().map_or(null(), |t| &raw const *t);
    let n = call!(libc_epoll_pwait2(set, list.as_mut_ptr(), max as c_int, ts, null()))?;
    Ok(taken(&list, n))
}
