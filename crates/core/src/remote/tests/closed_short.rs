//! A close when not all has come again over the carrier that was there to be read: it is a reset,
//! as TCP's is with bytes unread.

use super::*;
use crate::socket::flag;

/// When it is closed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// While bytes come again, and there is room for more of them.
    Comes,
    /// The kernel has had no room for all, and has the connection.
    Plain,
    /// As that, shut down for receiving before.
    Deaf,
}

impl Rig {
    /// A connection whose acceptor has bytes to read, of which its kernel takes some only.
    fn goes_back_short(model: Model, when: When) -> (Rig, usize) {
        let (mut rig, i) = Rig::full(model);
        let s = rig.conns[i][A].socket;
        let fd = rig.conns[i][A].fd;
        if when == When::Deaf {
            assert_eq!(api::shutdown(fd, libc::SHUT_RD), 0);
        } else {
            let channel = s.channel().unwrap();
            channel.far.demote(s.slot.load(Relaxed) as usize, Reason::SocketOption, false);
        }
        match when {
            When::Comes => rig.until("some come again", |r| {
                s.is(State::Attached) && !s.published.receives_fast() && r.there(i, A) > 0
            }),
            _ => rig.until("it is the kernel's", |_| s.is(State::Plain)),
        }
        (rig, i)
    }

    /// What is there is read, to the last byte that came. The other end's library has no turn.
    fn reads_what_is_there(&mut self, i: usize, side: usize) {
        while self.receive(i, side, 5000) > 0 {}
        // (Behind SHUT_RD the kernel says that this is the end.)
        self.conns[i][side].over = None;
        assert!(self.conns[i][side].received < self.conns[i][side ^ 1].sent);
    }

    fn ends_short(&mut self, i: usize, exits: bool) {
        let (s, fd) = (self.conns[i][A].socket, self.conns[i][A].fd);
        if !exits {
            return self.close(i, A);
        }
        if io::begin_exit(s) {
            self.until("it is the kernel's", |_| !s.is(State::Attached));
        }
        io::at_exit(s, fd);
        self.kill(self.conns[i][A].host);
    }
}

/// The peer had them all in its ring. (It got a FIN, read the end of the stream, and was reset when
/// it sent the rest.)
#[test]
fn a_close_resets_where_what_was_there_has_not_come_again() {
    for model in MODELS {
        for when in [When::Comes, When::Plain, When::Deaf] {
            for exits in [false, true] {
                let (mut rig, i) = Rig::goes_back_short(model, when);
                rig.reads_what_is_there(i, A);
                rig.ends_short(i, exits);
                rig.until("the end is told", |r| {
                    r.receive(i, C, 1000);
                    r.conns[i][C].over.is_some()
                });
                let told = rig.conns[i][C].over;
                let at = format!("{model:?} {when:?} exits {exits}");
                assert_eq!(told, Some(-(libc::ECONNRESET as isize)), "{at}\n{}", rig.describe());
                rig.finish();
            }
        }
    }
}

/// Who reads all that was there, when it has come, closes in good order.
#[test]
fn a_close_behind_all_that_came_again_is_in_good_order() {
    for model in MODELS {
        for when in [When::Comes, When::Plain, When::Deaf] {
            let (mut rig, i) = Rig::goes_back_short(model, when);
            rig.until("all comes", |r| {
                while r.receive(i, A, 5000) > 0 {}
                r.conns[i][A].over = None;
                r.has_come(i)
            });
            assert!(!rig.conns[i][A].socket.has(flag::BROKEN_OFF));
            rig.ends_short(i, false);
            rig.gets_all(i, C, 1000, &format!("{model:?} {when:?}"));
            rig.finish();
        }
    }
}
