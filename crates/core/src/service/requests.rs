//! What an operator asks of this process while it runs (`netacc cfg set`, `docs/design/cfg.md`).
//!
//! Requests come through a pipe of the process's own: who may open it in `/proc/PID/fd` may ask.
//! Answers stand in the statistics segment. The thread "netacc" carries them out.

use crate::log::log;
use crate::{config, fd_table, fd_words, io, numbers, stats, sys, trace};
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering::*};
use libc::epoll_event;
use netacc_control::config::{Answer, Key, LogLevel, REQUEST_BYTES_MAX, Request};

/// The epoll item of the pipe.
pub(super) const EVENT_REQUESTS: u64 = 1 << 59;

/// Both ends of the pipe: without one of its own to write to it would end with the first that is
/// closed. -1: there is none.
pub(super) struct Requests([AtomicI32; 2]);

impl Requests {
    pub(super) const fn new() -> Requests {
        Requests([const { AtomicI32::new(-1) }; 2])
    }

    /// Has `epoll` hear requests, and says where they go. Without a pipe there are none.
    pub(super) fn open(&self, epoll: c_int) {
        let Some([read, write]) = numbers::make_pipe() else { return };
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: EVENT_REQUESTS };
        // SAFETY: a live event.
        let heard = unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, read, &mut event) } >= 0
            // (Another process may take what the thread was told of.)
            && sys::fcntl(read, libc::F_SETFL, libc::O_NONBLOCK as usize) >= 0;
        let inode = sys::inode(read).map(|(_, inode)| inode as u32);
        let (true, Some(inode)) = (heard, inode) else {
            fd_table::close_internal(read);
            fd_table::close_internal(write);
            return;
        };
        for (place, end) in self.0.iter().zip([read, write]) {
            place.store(end, Release);
        }
        stats::hear_requests(write as u32, inode);
    }

    /// Something is in the pipe.
    pub(super) fn hear(&self) {
        let [read, write] = &self.0;
        let mut bytes = [0; REQUEST_BYTES_MAX];
        let n = sys::read(read.load(Acquire), &mut bytes);
        if n == 0 {
            // The program has closed the end to write to past the library: the number is its own
            // now. Heard on, the pipe would never be silent.
            write.store(-1, Release);
            return self.close();
        }
        let n = n.max(0) as usize;
        let text = core::str::from_utf8(bytes.get(..n).unwrap_or(&[])).unwrap_or("");
        // (Of several that do not fit one is cut short: it has no answer, and its tool says so.)
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            if let Some(request) = Request::parse(line)
                && request.until_unix_ns > sys::unix_ns()
            {
                carry_out(&request);
            }
        }
    }

    /// There is no thread to hear them.
    pub(super) fn close(&self) {
        stats::hear_requests(0, 0);
        self.leave();
    }

    /// This is a forked child: the pipe, and where its name stands, are the parent's.
    pub(super) fn leave(&self) {
        for end in &self.0 {
            let fd = end.swap(-1, AcqRel);
            if fd >= 0 {
                fd_table::close_internal(fd);
            }
        }
    }
}

/// The answer comes first: to take connections back may take long, where there is no thread for it,
/// and a tool without an answer says that nothing has changed.
fn carry_out(request: &Request<'_>) {
    let files = config::Files {
        open: |name| numbers::make(|| sys::open(name, config::TO_READ, 0)),
        close: fd_words::close_internal,
    };
    let is_trace = request.name == Key::Trace.name();
    if is_trace {
        trace::before_turn();
    }
    let answer = config::change(request.name, request.value, &files);
    stats::answer(request.number, answer);
    if answer == Answer::Done {
        log(LogLevel::Info, format_args!("{}={} from here on", request.name, request.value));
        if request.name == Key::AccelerateByDefault.name() {
            io::follow_switch();
        }
        // (Connections that are there get their place in it with their next events, where no file
        // could be made.)
        if is_trace {
            trace::turned();
            io::follow_trace();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_the_program_has_closed_is_heard_no_more() {
        // SAFETY: epoll_create1(2).
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let requests = Requests::new();
        requests.open(epoll);
        let [read, write] = requests.0.each_ref().map(|end| end.load(Acquire));
        assert!(read >= 0 && write >= 0);
        let said = || {
            let mut event = epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event.
            unsafe { libc::epoll_wait(epoll, &mut event, 1, 0) }
        };
        assert_eq!(said(), 0);
        // Nothing is there, and the pipe stays.
        requests.hear();
        assert_eq!(requests.0.each_ref().map(|end| end.load(Acquire)), [read, write]);
        // The program closes it, and has another file under its number.
        // SAFETY: dup2(2); the number is this test's.
        assert_eq!(unsafe { libc::dup2(epoll, write) }, write);
        assert_eq!(said(), 1);
        requests.hear();
        assert_eq!(requests.0.each_ref().map(|end| end.load(Acquire)), [-1, -1]);
        assert_eq!(said(), 0, "it is not told of for ever");
        // SAFETY: fcntl(2); close(2) of the two numbers.
        unsafe {
            assert!(libc::fcntl(write, libc::F_GETFD) >= 0, "the program's file is not closed");
            libc::close(write);
            libc::close(epoll);
        }
    }
}
