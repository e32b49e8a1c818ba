//! What the hooks do to descriptors that are not accelerated: nothing. Each test runs twice in a
//! process of its own, first without the library, which shows that the test is right, then with it.
#![allow(missing_docs, reason = "a test program")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "libc calls on the test's own descriptors and buffers"
)]

use libc::{c_char, c_int, c_void, pid_t};
use std::ffi::CStr;
use std::process::{Command, exit};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

#[path = "support/library.rs"]
mod library;

/// Runs `body` in two new processes.
fn both_ways(name: &str, body: impl FnOnce()) {
    const MARK: &str = "NETACC_HOOKS_TEST";
    if let Some(mark) = std::env::var_os(MARK) {
        assert_eq!(mark == "hooked", is_hooked(), "the library is not where it should be");
        body();
        return;
    }
    for mark in ["plain", "hooked"] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again
            .args([name, "--include-ignored", "--exact", "--nocapture", "--test-threads=1"])
            .env(MARK, mark);
        if mark == "hooked" {
            again.env("LD_PRELOAD", library::path());
        }
        let output = again.output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        // Where it is shown, its `test result:` must not look like one of this program's.
        let text = text.replace('\n', "\n    ");
        assert!(output.status.success(), "{mark}: {:?}\n    {text}", output.status);
        assert!(text.contains("1 passed"), "{mark}: the test did not run\n    {text}");
    }
}

fn is_hooked() -> bool {
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"recvmmsg".as_ptr()) };
    assert!(unsafe { libc::dladdr(address, &mut info) } != 0);
    unsafe { CStr::from_ptr(info.dli_fname) }.to_str().unwrap().contains("netacc")
}

fn errno() -> c_int {
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    unsafe { *libc::__errno_location() = value }
}

/// The `errno` of a call that must fail with -1.
fn failure(call: impl FnOnce() -> i64) -> c_int {
    set_errno(0);
    assert_eq!(call(), -1);
    errno()
}

fn pipe() -> [c_int; 2] {
    let mut pair = [-1; 2];
    assert_eq!(unsafe { libc::pipe(pair.as_mut_ptr()) }, 0);
    pair
}

fn unix_pair() -> [c_int; 2] {
    let mut pair = [-1; 2];
    assert_eq!(
        unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) },
        0
    );
    pair
}

/// A connected pair of TCP sockets over loopback.
fn tcp_pair() -> [c_int; 2] {
    unsafe {
        let listener = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        let mut addr: libc::sockaddr_in = std::mem::zeroed();
        addr.sin_family = libc::AF_INET as u16;
        addr.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        let mut len = size_of::<libc::sockaddr_in>() as u32;
        let at = (&raw mut addr).cast();
        assert_eq!(libc::bind(listener, at, len), 0);
        assert_eq!(libc::listen(listener, 1), 0);
        assert_eq!(libc::getsockname(listener, at, &mut len), 0);
        let client = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        assert_eq!(libc::connect(client, at, len), 0);
        let server = libc::accept(listener, null_mut(), null_mut());
        assert!(server >= 0);
        libc::close(listener);
        // Time to agree on another path, if the core can find one between a process and itself.
        let mut byte = 0u8;
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            for (from, to) in [(client, server), (server, client)] {
                assert_eq!(libc::send(from, (&raw const byte).cast(), 1, 0), 1);
                assert_eq!(libc::recv(to, (&raw mut byte).cast(), 1, 0), 1);
            }
        }
        [client, server]
    }
}

fn wait_for(pid: pid_t) -> c_int {
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// Runs `child` in a forked process and returns its wait status.
fn in_child(child: impl FnOnce() -> c_int) -> c_int {
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
        unsafe { libc::_exit(code) };
    }
    wait_for(pid)
}

fn exited(status: c_int) -> Option<c_int> {
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

fn read_all(fd: c_int) -> Vec<u8> {
    let mut bytes = vec![0; 65536];
    let mut length = 0;
    loop {
        let n =
            unsafe { libc::read(fd, bytes[length..].as_mut_ptr().cast(), bytes.len() - length) };
        assert!(n >= 0);
        if n == 0 {
            bytes.truncate(length);
            return bytes;
        }
        length += n as usize;
    }
}

// ---- errno --------------------------------------------------------------------------------------

#[test]
fn success_leaves_errno_alone() {
    both_ways("success_leaves_errno_alone", || unsafe {
        set_errno(77);
        let [reader, writer] = pipe();
        let mut byte = [0u8; 1];
        let at = byte.as_mut_ptr().cast::<c_void>();
        assert_eq!(libc::write(writer, at, 1), 1);
        assert_eq!(libc::read(reader, at, 1), 1);
        let copy = libc::dup(reader);
        assert_eq!(libc::dup2(reader, copy), copy);
        assert!(libc::fcntl(copy, libc::F_GETFD) >= 0);
        let [one, other] = tcp_pair();
        assert_eq!(libc::send(one, at, 1, 0), 1);
        let mut poll = libc::pollfd { fd: other, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&mut poll, 1, -1), 1);
        assert_eq!(libc::recv(other, at, 1, 0), 1);
        assert_eq!(libc::shutdown(one, libc::SHUT_WR), 0);
        assert_eq!(libc::recv(other, at, 1, 0), 0);
        let set = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 5 };
        assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, other, &mut event), 0);
        assert_eq!(libc::epoll_wait(set, &mut event, 1, -1), 1);
        let stream = libc::open_memstream(&mut null_mut(), &mut 0);
        assert_eq!(libc::fclose(stream), 0);
        for fd in [reader, writer, copy, one, other, set] {
            assert_eq!(libc::close(fd), 0);
        }
        assert_eq!(errno(), 77);
    });
}

#[test]
fn failures_are_minus_one_and_the_kernels_errno() {
    both_ways("failures_are_minus_one_and_the_kernels_errno", || unsafe {
        let mut byte = 0u8;
        let at = (&raw mut byte).cast::<c_void>();
        for fd in [-1, 900, c_int::MAX, c_int::MIN] {
            assert_eq!(failure(|| libc::read(fd, at, 1) as i64), libc::EBADF);
            assert_eq!(failure(|| libc::send(fd, at, 1, 0) as i64), libc::EBADF);
            assert_eq!(failure(|| libc::close(fd).into()), libc::EBADF);
            assert_eq!(failure(|| libc::dup(fd).into()), libc::EBADF);
            assert_eq!(failure(|| libc::dup2(fd, 3).into()), libc::EBADF);
            assert_eq!(failure(|| libc::fcntl(fd, libc::F_DUPFD, 0).into()), libc::EBADF);
            assert_eq!(failure(|| libc::ioctl(fd, libc::FIONREAD, at).into()), libc::EBADF);
            assert_eq!(failure(|| libc::shutdown(fd, 0).into()), libc::EBADF);
            assert_eq!(failure(|| libc::listen(fd, 0).into()), libc::EBADF);
            assert_eq!(failure(|| libc::accept(fd, null_mut(), null_mut()).into()), libc::EBADF);
            assert_eq!(failure(|| libc::epoll_wait(fd, at.cast(), 1, 0).into()), libc::EBADF);
            assert_eq!(failure(|| libc::syscall(libc::SYS_close, fd as i64)), libc::EBADF);
        }
        let [reader, writer] = pipe();
        assert_eq!(failure(|| libc::send(writer, at, 1, 0) as i64), libc::ENOTSOCK);
        assert_eq!(failure(|| libc::connect(writer, null(), 0).into()), libc::ENOTSOCK);
        assert_eq!(failure(|| libc::dup3(reader, reader, 0).into()), libc::EINVAL);
        assert_eq!(failure(|| libc::epoll_wait(writer, at.cast(), 1, 0).into()), libc::EINVAL);
        assert_eq!(failure(|| libc::open(c"/nowhere/at/all".as_ptr(), 0).into()), libc::ENOENT);
        assert_eq!(
            failure(|| libc::execv(c"/nowhere".as_ptr(), [c"x".as_ptr(), null()].as_ptr()).into()),
            libc::ENOENT
        );
        assert_eq!(failure(|| libc::socket(999, 0, 0).into()), libc::EAFNOSUPPORT);
    });
}

// ---- variadic functions -------------------------------------------------------------------------

#[test]
fn variadic_exec_passes_every_argument() {
    both_ways("variadic_exec_passes_every_argument", || unsafe {
        // More arguments than registers: the rest travels on the stack.
        let script = c"test $# = 9 && test $1$2$3$4$5$6$7$8$9 = 123456789 && exit 42";
        let p = |text: &'static CStr| text.as_ptr();
        let end = null::<c_char>();
        let status = in_child(|| {
            libc::execl(
                p(c"/bin/sh"),
                p(c"sh"),
                p(c"-c"),
                p(script),
                p(c"0"),
                p(c"1"),
                p(c"2"),
                p(c"3"),
                p(c"4"),
                p(c"5"),
                p(c"6"),
                p(c"7"),
                p(c"8"),
                p(c"9"),
                end,
            )
        });
        assert_eq!(exited(status), Some(42));
        let status = in_child(|| {
            libc::execlp(
                p(c"sh"),
                p(c"sh"),
                p(c"-c"),
                p(script),
                p(c"0"),
                p(c"1"),
                p(c"2"),
                p(c"3"),
                p(c"4"),
                p(c"5"),
                p(c"6"),
                p(c"7"),
                p(c"8"),
                p(c"9"),
                end,
            )
        });
        assert_eq!(exited(status), Some(42));
        let environment = [c"ONLY=this".as_ptr(), null()];
        let status = in_child(|| {
            libc::execle(
                p(c"/bin/sh"),
                p(c"sh"),
                p(c"-c"),
                p(c"test $ONLY$1 = this5 && exit 43"),
                p(c"0"),
                p(c"5"),
                end,
                environment.as_ptr(),
            )
        });
        assert_eq!(exited(status), Some(43));
    });
}

#[test]
fn dprintf_passes_every_argument() {
    both_ways("dprintf_passes_every_argument", || unsafe {
        let [reader, writer] = pipe();
        let n = dprintf(
            writer,
            c"%d %g %s %g %d %g %g %g %g %g %g %g %d %d %d".as_ptr(),
            1 as c_int,
            0.5,
            c"two".as_ptr(),
            1.5,
            3 as c_int,
            2.5,
            3.5,
            4.5,
            5.5,
            6.5,
            7.5,
            8.5,
            4 as c_int,
            5 as c_int,
            6 as c_int,
        );
        let expected = b"1 0.5 two 1.5 3 2.5 3.5 4.5 5.5 6.5 7.5 8.5 4 5 6";
        assert_eq!(n as usize, expected.len());
        libc::close(writer);
        assert_eq!(read_all(reader), expected);
    });
}

#[test]
fn open_and_fcntl_pass_their_optional_argument() {
    both_ways("open_and_fcntl_pass_their_optional_argument", || unsafe {
        let path = format!("/tmp/netacc-hooks-{}\0", libc::getpid());
        libc::umask(0);
        let fd = libc::open(
            path.as_ptr().cast(),
            libc::O_CREAT | libc::O_EXCL | libc::O_RDWR,
            0o640 as libc::mode_t as c_int,
        );
        assert!(fd >= 0);
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(fd, &mut stat), 0);
        assert_eq!(stat.st_mode & 0o777, 0o640);
        libc::unlink(path.as_ptr().cast());
        assert_eq!(libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC), 0);
        assert_eq!(libc::fcntl(fd, libc::F_GETFD), libc::FD_CLOEXEC);
        let high = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 200);
        assert!(high >= 200);
        let lock = libc::flock {
            l_type: libc::F_WRLCK as i16,
            l_whence: 0,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        assert_eq!(libc::fcntl(fd, libc::F_SETLK, &lock), 0);
        let mut available: c_int = -1;
        let [reader, writer] = pipe();
        libc::write(writer, c"abc".as_ptr().cast(), 3);
        assert_eq!(libc::ioctl(reader, libc::FIONREAD, &mut available), 0);
        assert_eq!(available, 3);
    });
}

// ---- syscall ------------------------------------------------------------------------------------

#[test]
fn syscall_passes_six_arguments_straight_on() {
    both_ways("syscall_passes_six_arguments_straight_on", || unsafe {
        let fd = libc::memfd_create(c"six".as_ptr(), 0);
        assert_eq!(libc::ftruncate(fd, 8192), 0);
        assert_eq!(libc::pwrite(fd, c"second".as_ptr().cast(), 6, 4096), 6);
        // mmap's sixth argument, the offset, is the seventh of syscall: the first on the stack.
        let map = libc::syscall(
            libc::SYS_mmap,
            0usize,
            4096usize,
            libc::PROT_READ as usize,
            libc::MAP_SHARED as usize,
            fd as usize,
            4096usize,
        );
        assert!(map > 0);
        assert_eq!(CStr::from_ptr(map as *const c_char), c"second");
        assert_eq!(libc::syscall(libc::SYS_getpid), libc::getpid().into());
        assert_eq!(failure(|| libc::syscall(100_000)), libc::ENOSYS);
        assert_eq!(failure(|| libc::syscall(-1)), libc::ENOSYS);
    });
}

#[test]
fn syscall_does_what_the_hooked_calls_do() {
    both_ways("syscall_does_what_the_hooked_calls_do", || unsafe {
        let mut pair = [-1 as c_int; 2];
        assert_eq!(libc::syscall(libc::SYS_pipe2, pair.as_mut_ptr(), 0), 0);
        let mut bytes = [0u8; 4];
        assert_eq!(libc::syscall(libc::SYS_write, pair[1], c"abcd".as_ptr(), 4usize), 4);
        let mut poll = libc::pollfd { fd: pair[0], events: libc::POLLIN, revents: 0 };
        let mut timeout = libc::timespec { tv_sec: 5, tv_nsec: 0 };
        assert_eq!(
            libc::syscall(
                libc::SYS_ppoll,
                &mut poll,
                1usize,
                &mut timeout,
                null::<c_void>(),
                8usize
            ),
            1
        );
        assert!(timeout.tv_sec == 4, "ppoll writes what is left back");
        assert_eq!(libc::syscall(libc::SYS_read, pair[0], bytes.as_mut_ptr(), 2usize), 2);
        let vector =
            libc::iovec { iov_base: bytes.as_mut_ptr().wrapping_add(2).cast(), iov_len: 2 };
        // The flags are the sixth argument; an unknown one is refused and no byte is lost.
        assert_eq!(
            failure(|| libc::syscall(
                libc::SYS_preadv2,
                pair[0],
                &vector,
                1usize,
                -1i64,
                0usize,
                1usize << 30
            )),
            libc::EOPNOTSUPP
        );
        assert_eq!(
            libc::syscall(
                libc::SYS_preadv2,
                pair[0],
                &vector,
                1usize,
                -1i64,
                0usize,
                libc::RWF_NOWAIT as usize
            ),
            2
        );
        assert_eq!(&bytes, b"abcd");
        let copy = libc::syscall(libc::SYS_dup, pair[0]);
        assert!(copy >= 0);
        assert_eq!(libc::syscall(libc::SYS_close, copy), 0);
        let fd = libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/dev/null".as_ptr(),
            libc::O_RDONLY,
            0,
        );
        assert!(fd >= 0);
        assert_eq!(libc::syscall(libc::SYS_close_range, fd, fd, 0), 0);
        assert_eq!(failure(|| libc::fcntl(fd as c_int, libc::F_GETFD).into()), libc::EBADF);
        let set = libc::syscall(libc::SYS_epoll_create1, 0) as c_int;
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        assert_eq!(
            libc::syscall(libc::SYS_epoll_ctl, set, libc::EPOLL_CTL_ADD, pair[0], &mut event),
            0
        );
        assert_eq!(
            libc::syscall(libc::SYS_epoll_pwait, set, &mut event, 1, 0, null::<c_void>(), 8usize),
            0
        );
        libc::write(pair[1], bytes.as_ptr().cast(), 1);
        assert_eq!(
            libc::syscall(libc::SYS_epoll_pwait, set, &mut event, 1, -1, null::<c_void>(), 8usize),
            1
        );
        assert_eq!({ event.u64 }, 7);
    });
}

#[test]
fn syscall_forks() {
    both_ways("syscall_forks", || unsafe {
        let pid =
            libc::syscall(libc::SYS_clone, libc::SIGCHLD as usize, 0usize, 0usize, 0usize, 0usize)
                as pid_t;
        if pid == 0 {
            let [reader, writer] = pipe();
            libc::_exit(if libc::write(writer, (&raw const reader).cast(), 4) == 4 {
                44
            } else {
                1
            });
        }
        assert_eq!(exited(wait_for(pid)), Some(44));
    });
}

// ---- time-outs ----------------------------------------------------------------------------------

#[test]
fn select_writes_what_is_left_back() {
    both_ways("select_writes_what_is_left_back", || unsafe {
        let [reader, writer] = pipe();
        let mut set: libc::fd_set = std::mem::zeroed();
        libc::FD_SET(reader, &mut set);
        let mut timeout = libc::timeval { tv_sec: 0, tv_usec: 30_000 };
        assert_eq!(libc::select(reader + 1, &mut set, null_mut(), null_mut(), &mut timeout), 0);
        assert_eq!((timeout.tv_sec, timeout.tv_usec), (0, 0));
        assert!(!libc::FD_ISSET(reader, &set));
        libc::write(writer, c"x".as_ptr().cast(), 1);
        libc::FD_SET(reader, &mut set);
        // More than a million microseconds are allowed.
        timeout = libc::timeval { tv_sec: 1, tv_usec: 4_000_000 };
        assert_eq!(libc::select(reader + 1, &mut set, null_mut(), null_mut(), &mut timeout), 1);
        assert!(libc::FD_ISSET(reader, &set));
        assert_eq!(timeout.tv_sec, 4);
        for bad in
            [libc::timeval { tv_sec: -1, tv_usec: 0 }, libc::timeval { tv_sec: 0, tv_usec: -1 }]
        {
            timeout = bad;
            assert_eq!(
                failure(|| libc::select(0, null_mut(), null_mut(), null_mut(), &mut timeout).into()),
                libc::EINVAL
            );
        }
    });
}

#[test]
fn invalid_timeouts_are_refused() {
    both_ways("invalid_timeouts_are_refused", || unsafe {
        let set = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        for (tv_sec, tv_nsec) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            let timeout = libc::timespec { tv_sec, tv_nsec };
            assert_eq!(
                failure(|| libc::ppoll(null_mut(), 0, &timeout, null()).into()),
                libc::EINVAL
            );
            assert_eq!(
                failure(|| libc::pselect(0, null_mut(), null_mut(), null_mut(), &timeout, null())
                    .into()),
                libc::EINVAL
            );
            assert_eq!(
                failure(|| epoll_pwait2(set, &mut event, 1, &timeout, null()).into()),
                libc::EINVAL
            );
        }
    });
}

unsafe extern "C" {
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
    fn epoll_pwait2(
        set: c_int,
        events: *mut libc::epoll_event,
        max: c_int,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
    fn __read_chk(fd: c_int, buf: *mut c_void, len: usize, room: usize) -> isize;
    fn __recv_chk(fd: c_int, buf: *mut c_void, len: usize, room: usize, flags: c_int) -> isize;
    fn __poll_chk(fds: *mut libc::pollfd, count: u64, timeout: c_int, room: usize) -> c_int;
    fn _Fork() -> pid_t;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn closefrom(low: c_int);
    fn close_range(first: u32, last: u32, flags: c_int) -> c_int;
}

#[test]
fn waits_last_as_long_as_asked() {
    both_ways("waits_last_as_long_as_asked", || unsafe {
        let [reader, _writer] = pipe();
        let set = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, reader, &mut event);
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: 40_000_000 };
        let poll = libc::pollfd { fd: reader, events: libc::POLLIN, revents: 0 };
        let waits: [&mut dyn FnMut() -> c_int; 5] = [
            &mut || libc::epoll_wait(set, &mut { event }, 1, 40),
            &mut || libc::epoll_pwait(set, &mut { event }, 1, 40, null()),
            &mut || epoll_pwait2(set, &mut { event }, 1, &timeout, null()),
            &mut || libc::poll(&mut { poll }, 1, 40),
            &mut || libc::ppoll(&mut { poll }, 1, &timeout, null()),
        ];
        for wait in waits {
            let start = Instant::now();
            assert_eq!(wait(), 0);
            let elapsed = start.elapsed();
            assert!(
                elapsed >= Duration::from_millis(39) && elapsed < Duration::from_secs(5),
                "{elapsed:?}"
            );
        }
    });
}

// ---- fortified calls ----------------------------------------------------------------------------

#[test]
fn fortified_calls_abort_on_overflow_only() {
    both_ways("fortified_calls_abort_on_overflow_only", || unsafe {
        let [one, other] = unix_pair();
        let mut bytes = [0u8; 4];
        let at = bytes.as_mut_ptr().cast::<c_void>();
        assert_eq!(libc::send(one, c"abcdef".as_ptr().cast(), 6, 0), 6);
        assert_eq!(__read_chk(other, at, 4, 4), 4);
        assert_eq!(__recv_chk(other, at, 1, 4, 0), 1);
        let mut poll = libc::pollfd { fd: other, events: libc::POLLIN, revents: 0 };
        assert_eq!(__poll_chk(&mut poll, 1, -1, size_of_val(&poll)), 1);
        let overflow = |call: &dyn Fn()| {
            let status = in_child(|| {
                libc::close(2);
                call();
                0
            });
            assert!(
                libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT,
                "{status:#x}"
            );
        };
        overflow(&|| assert!(__read_chk(other, at, 5, 4) > 5));
        overflow(&|| assert!(__recv_chk(other, at, 5, 4, 0) > 5));
        overflow(&|| assert!(__poll_chk(&mut { poll }, 2, 0, size_of::<libc::pollfd>()) > 2));
    });
}

// ---- descriptors --------------------------------------------------------------------------------

#[test]
fn close_range_and_closefrom_close_what_they_should() {
    both_ways("close_range_and_closefrom_close_what_they_should", || {
        let status = in_child(|| unsafe {
            let open = |fd| libc::fcntl(fd, libc::F_GETFD) >= 0;
            let [reader, _] = tcp_pair();
            for fd in 300..310 {
                assert_eq!(libc::dup2(reader, fd), fd);
            }
            assert_eq!(close_range(303, 305, 0), 0);
            assert!((300..310).all(|fd| open(fd) != (303..=305).contains(&fd)));
            assert_eq!(failure(|| close_range(5, 4, 0).into()), libc::EINVAL);
            assert_eq!(failure(|| close_range(5, 6, 1 << 20).into()), libc::EINVAL);
            closefrom(307);
            assert!(open(306) && !open(307) && !open(309));
            for fd in 3..1024 {
                libc::close(fd);
            }
            let [reader, writer] = pipe();
            assert_eq!((reader, writer), (3, 4));
            0
        });
        assert_eq!(exited(status), Some(0));
    });
}

#[test]
fn streams_work_over_sockets() {
    both_ways("streams_work_over_sockets", || unsafe {
        for pair in [unix_pair(), tcp_pair()] {
            let stream = libc::fdopen(pair[0], c"r+".as_ptr());
            assert!(!stream.is_null());
            assert!(libc::fputs(c"line\n".as_ptr(), stream) >= 0);
            assert_eq!(libc::fflush(stream), 0);
            let mut bytes = [0u8; 16];
            assert_eq!(libc::recv(pair[1], bytes.as_mut_ptr().cast(), 16, 0), 5);
            assert!(dprintf(pair[0], c"%d\n".as_ptr(), 12 as c_int) == 3);
            assert_eq!(libc::recv(pair[1], bytes.as_mut_ptr().cast(), 16, 0), 3);
            // Written by fclose itself.
            assert!(libc::fputs(c"tail\n".as_ptr(), stream) >= 0);
            assert_eq!(libc::fclose(stream), 0);
            assert_eq!(&read_all(pair[1]), b"tail\n");
            assert_eq!(failure(|| libc::fcntl(pair[0], libc::F_GETFD).into()), libc::EBADF);
        }
        let stream = libc::popen(c"echo popen".as_ptr(), c"r".as_ptr());
        assert_eq!(&read_all(libc::fileno(stream)), b"popen\n");
        assert_eq!(libc::pclose(stream), 0);
        let file = libc::tmpfile();
        let file = libc::freopen(c"/dev/null".as_ptr(), c"r".as_ptr(), file);
        assert_eq!(libc::fgetc(file), libc::EOF);
        assert_eq!(libc::fclose(file), 0);
    });
}

#[test]
fn sockets_work_as_standard_input_and_output() {
    both_ways("sockets_work_as_standard_input_and_output", || unsafe {
        let [one, other] = tcp_pair();
        assert_eq!(libc::send(other, c"A".as_ptr().cast(), 1, 0), 1);
        let status = in_child(|| {
            for fd in 0..=2 {
                assert_eq!(libc::dup2(one, fd), fd);
            }
            assert_eq!(libc::close(one), 0);
            libc::printf(c"%d\n".as_ptr(), 5 as c_int);
            libc::fflush(null_mut());
            libc::getchar()
        });
        assert_eq!(exited(status), Some(c_int::from(b'A')));
        let mut bytes = [0u8; 2];
        assert_eq!(libc::recv(other, bytes.as_mut_ptr().cast(), 2, 0), 2);
        assert_eq!(&bytes, b"5\n");
    });
}

#[test]
fn spawned_programs_use_the_sockets_they_are_given() {
    both_ways("spawned_programs_use_the_sockets_they_are_given", || unsafe {
        let [one, other] = tcp_pair();
        // Closed on exec itself, but a duplicate is asked for.
        libc::fcntl(one, libc::F_SETFD, libc::FD_CLOEXEC);
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        libc::posix_spawn_file_actions_init(&mut actions);
        libc::posix_spawn_file_actions_adddup2(&mut actions, one, 5);
        let mut pid = 0;
        let arguments = [
            c"sh".as_ptr(),
            c"-c".as_ptr(),
            c"unset LD_PRELOAD; read word <&5; echo got $word >&5".as_ptr(),
            null(),
        ];
        let result = libc::posix_spawn(
            &mut pid,
            c"/bin/sh".as_ptr(),
            &actions,
            null(),
            arguments.as_ptr().cast(),
            null(),
        );
        assert_eq!(result, 0);
        assert_eq!(libc::send(other, c"this\n".as_ptr().cast(), 5, 0), 5);
        assert_eq!(exited(wait_for(pid)), Some(0));
        let mut bytes = [0u8; 9];
        assert_eq!(libc::recv(other, bytes.as_mut_ptr().cast(), 9, libc::MSG_WAITALL), 9);
        assert_eq!(&bytes, b"got this\n");
    });
}

#[test]
fn a_ring_made_through_syscall_leaves_sockets_working() {
    both_ways("a_ring_made_through_syscall_leaves_sockets_working", || unsafe {
        let mut parameters = [0u8; 256];
        let before = tcp_pair();
        let ring = libc::syscall(libc::SYS_io_uring_setup, 4usize, parameters.as_mut_ptr());
        let after = tcp_pair();
        for [one, other] in [before, after] {
            assert_eq!(libc::send(one, c"x".as_ptr().cast(), 1, 0), 1);
            assert_eq!(libc::shutdown(one, libc::SHUT_WR), 0);
            assert_eq!(&read_all(other), b"x");
        }
        // Containers forbid io_uring; then this was an ordinary test.
        assert!(ring != 0);
    });
}

#[test]
fn descriptors_pass_over_unix_sockets() {
    both_ways("descriptors_pass_over_unix_sockets", || unsafe {
        let [one, other] = unix_pair();
        let [reader, writer] = tcp_pair();
        let mut control = [0u64; 8];
        let mut byte = 1u8;
        let mut vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(reader);
        assert_eq!(libc::sendmsg(one, &message, 0), 1);
        assert_eq!(libc::recvmsg(other, &mut message, 0), 1);
        let received =
            libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&message)).cast::<c_int>().read_unaligned();
        assert!(received > 2 && received != reader);
        libc::close(reader);
        assert_eq!(libc::send(writer, (&raw const byte).cast(), 1, 0), 1);
        assert_eq!(libc::read(received, (&raw mut byte).cast(), 1), 1);
    });
}

#[test]
fn sendfile_and_splice_reach_sockets() {
    both_ways("sendfile_and_splice_reach_sockets", || unsafe {
        let [one, other] = tcp_pair();
        let file = libc::memfd_create(c"file".as_ptr(), 0);
        libc::write(file, c"0123456789".as_ptr().cast(), 10);
        let mut offset = 2;
        assert_eq!(libc::sendfile(one, file, &mut offset, 4), 4);
        assert_eq!(offset, 6);
        let [reader, writer] = pipe();
        libc::write(writer, c"ab".as_ptr().cast(), 2);
        assert_eq!(libc::splice(reader, null_mut(), one, null_mut(), 2, 0), 2);
        libc::shutdown(one, libc::SHUT_WR);
        assert_eq!(&read_all(other), b"2345ab");
    });
}

// ---- processes and threads ----------------------------------------------------------------------

#[test]
fn every_kind_of_child_works() {
    both_ways("every_kind_of_child_works", || unsafe {
        let [one, other] = tcp_pair();
        let mut byte = [0u8; 1];
        let talk = || {
            libc::send(other, c"x".as_ptr().cast(), 1, 0);
            let mut byte = [0u8; 1];
            if libc::recv(one, byte.as_mut_ptr().cast(), 1, 0) == 1 { 45 } else { 1 }
        };
        assert_eq!(exited(in_child(talk)), Some(45));
        let pid = _Fork();
        if pid == 0 {
            libc::_exit(talk());
        }
        assert_eq!(exited(wait_for(pid)), Some(45));
        let status = in_child(|| {
            let [reader, writer] = pipe();
            if libc::daemon(0, 0) != 0 {
                return 1;
            }
            libc::write(writer, (&raw const reader).cast(), 1);
            talk()
        });
        assert_eq!(exited(status), Some(0));
        let mut terminal = -1;
        let pid = libc::forkpty(&mut terminal, null_mut(), null(), null());
        if pid == 0 {
            libc::_exit(if libc::isatty(0) == 1 && libc::isatty(1) == 1 { talk() } else { 1 });
        }
        assert_eq!(exited(wait_for(pid)), Some(45));
        assert_eq!(exited(libc::system(c"exit 7".as_ptr())), Some(7));
        assert!(Command::new("true").status().unwrap().success());
        // Both ends still work here.
        assert_eq!(libc::send(one, c"y".as_ptr().cast(), 1, 0), 1);
        assert_eq!(libc::recv(other, byte.as_mut_ptr().cast(), 1, 0), 1);
    });
}

#[test]
fn a_vfork_child_changes_nothing_for_its_parent() {
    both_ways("a_vfork_child_changes_nothing_for_its_parent", || unsafe {
        let [one, other] = tcp_pair();
        let null_fd = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        let pid = vfork_and(one, null_fd);
        assert_eq!(exited(wait_for(pid)), Some(46));
        assert_eq!(exited(wait_for(vfork_and(one, -1))), Some(1));
        let mut byte = [0u8; 1];
        assert_eq!(libc::send(other, c"x".as_ptr().cast(), 1, 0), 1);
        assert_eq!(libc::recv(one, byte.as_mut_ptr().cast(), 1, 0), 1);
        assert_eq!(&byte, b"x");
    });
}

/// What a shell does: the child closes and replaces descriptors, then starts a program.
#[inline(never)]
unsafe fn vfork_and(socket: c_int, null_fd: c_int) -> pid_t {
    let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), c"exit 46".as_ptr(), null()];
    unsafe {
        #[allow(deprecated, reason = "the call under test")]
        let pid = libc::vfork();
        if pid == 0 {
            libc::close(socket);
            libc::dup2(null_fd, socket);
            libc::fcntl(socket, libc::F_SETFD, libc::FD_CLOEXEC);
            if null_fd >= 0 {
                libc::execv(c"/bin/sh".as_ptr(), arguments.as_ptr());
            }
            libc::_exit(1);
        }
        pid
    }
}

type Sleeper = (extern "C" fn(*mut c_void) -> *mut c_void, c_int);

extern "C" fn sleep_in_recv(fd: *mut c_void) -> *mut c_void {
    let mut byte = 0u8;
    unsafe { libc::recv(fd as c_int, (&raw mut byte).cast(), 1, 0) };
    null_mut()
}

extern "C" fn send_for_ever(fd: *mut c_void) -> *mut c_void {
    let bytes = [0u8; 65536];
    while unsafe { libc::send(fd as c_int, bytes.as_ptr().cast(), bytes.len(), 0) } > 0 {}
    null_mut()
}

extern "C" fn sleep_in_accept(fd: *mut c_void) -> *mut c_void {
    unsafe { libc::accept(fd as c_int, null_mut(), null_mut()) };
    null_mut()
}

extern "C" fn sleep_in_poll(fd: *mut c_void) -> *mut c_void {
    let mut poll = libc::pollfd { fd: fd as c_int, events: libc::POLLIN, revents: 0 };
    unsafe { libc::poll(&mut poll, 1, -1) };
    null_mut()
}

extern "C" fn sleep_in_epoll(fd: *mut c_void) -> *mut c_void {
    unsafe {
        let set = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd as c_int, &mut event);
        libc::epoll_wait(set, &mut event, 1, -1);
    }
    null_mut()
}

/// Cancels a thread that sleeps in each of the ways.
fn cancel(sleepers: &[Sleeper]) {
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(20));
        eprintln!("does not end");
        exit(1);
    });
    for (index, (sleep, fd)) in sleepers.iter().enumerate() {
        eprintln!("sleeper {index}");
        let (mut thread, mut result) = (0, null_mut());
        unsafe {
            assert_eq!(
                libc::pthread_create(&mut thread, null(), *sleep, *fd as usize as *mut c_void),
                0
            );
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(pthread_cancel(thread), 0);
            assert_eq!(libc::pthread_join(thread, &mut result), 0);
        }
        assert_eq!(result as isize, -1, "not PTHREAD_CANCELED");
    }
}

#[test]
fn cancelled_threads_end() {
    both_ways("cancelled_threads_end", || {
        let listener = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
        assert_eq!(unsafe { libc::listen(listener, 1) }, 0);
        let unix = unix_pair()[0];
        cancel(&[
            (sleep_in_recv, unix),
            (sleep_in_poll, unix),
            (sleep_in_epoll, unix),
            (sleep_in_accept, listener),
        ]);
    });
}

fn on_tcp(sleeps: &[extern "C" fn(*mut c_void) -> *mut c_void]) {
    let sleepers: Vec<_> =
        sleeps.iter().flat_map(|sleep| tcp_pair().map(|fd| (*sleep, fd))).collect();
    cancel(&sleepers);
}

#[test]
fn threads_that_wait_for_readiness_of_tcp_end_when_cancelled() {
    both_ways("threads_that_wait_for_readiness_of_tcp_end_when_cancelled", || {
        on_tcp(&[sleep_in_poll, sleep_in_epoll])
    });
}

#[test]
fn threads_in_recv_on_tcp_end_when_cancelled() {
    both_ways("threads_in_recv_on_tcp_end_when_cancelled", || on_tcp(&[sleep_in_recv]));
}

#[test]
fn threads_that_send_on_tcp_end_when_cancelled() {
    both_ways("threads_that_send_on_tcp_end_when_cancelled", || on_tcp(&[send_for_ever]));
}
