//! One end of a connection, or one half of it, in whatever process it is at the moment.

use super::board::{Board, Cell, DECEIVED, DONE, STUCK, Wire, error_end, patience_ms};
use super::plan::{Answer, FILL, Half, Leave, Plan, Side, Stage, mix, odd_option};
use super::{CONNECTIONS, MAX, TAKERS};
use crate::mover::{Receiver, Sender};
use crate::pattern::{Pattern, Rng};
use crate::sys::{self, E, Fd};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

/// The connections of this process, so that a child can close those that are not its own.
pub struct Process {
    pub seed: u64,
    pub board_path: String,
    pub board: &'static Board,
    /// Whoever forks, or changes the numbers, holds this: a child knows all that it has inherited.
    pub lock: Mutex<()>,
    pub fds: [AtomicI32; CONNECTIONS],
    pub takers: [Fd; TAKERS],
}

impl Process {
    pub fn locked(&self) -> std::sync::MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// In a child: closes what it does not want.
    fn close_all(&self, unwanted: impl Fn(usize) -> bool) {
        for (_, fd) in self.fds.iter().enumerate().filter(|(i, _)| unwanted(*i)) {
            let fd = fd.swap(-1, SeqCst);
            if fd >= 0 {
                let _ = sys::close(fd);
            }
        }
    }
}

/// So often in a row poll may promise what a call does not find.
const SPURIOUS: u32 = 100_000;

/// Where a leader is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    None,
    Before,
    /// Does not read until the follower is full.
    Filling,
    /// Has left, and does not read until the follower has answered.
    Held,
}

/// What is left of an end after it has left.
#[derive(PartialEq, Eq)]
pub enum After {
    Stays,
    /// Somebody else goes on.
    Gone,
}

/// One end, or one half of it, in whatever process it is at the moment.
pub struct End {
    process: Option<&'static Process>,
    wire: Wire,
    fd: Fd,
    plan: Side,
    stage: Option<Stage>,
    act: Act,
    /// Has not yet answered the leader.
    follows: bool,
    answers: VecDeque<Answer>,
    leaves: VecDeque<(Half, u64, Leave)>,
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    rng: Rng,
    base: u64,
    peer_stays_open: bool,
    /// The writer waits until the peer has all.
    in_step: bool,
    paused: bool,
    closed: bool,
    idle: Vec<(libc::pid_t, Fd)>,
}

/// Where in the pattern a connection's streams begin: bytes of another one are wrong.
fn base_of(index: usize) -> u64 {
    index as u64 * 77_003
}

impl End {
    /// The end as the board knows it.
    pub fn new(
        process: Option<&'static Process>,
        wire: Wire,
        seed: u64,
        fd: Fd,
        halves: &[Half],
        salt: u64,
    ) -> End {
        let plan = Plan::new(seed, wire.index);
        let side = plan.sides[wire.side].clone();
        let peer_stays_open = plan.sides[1 - wire.side].stays_open;
        let base = base_of(wire.index);
        let salt = mix(&[seed, wire.index as u64, wire.side as u64, salt]);
        let sender = halves.contains(&Half::Write).then(|| {
            let mut sender = Sender::new(fd, salt + 1, Pattern::new(seed + wire.side as u64));
            sender.sent = base + wire.mine(Cell::Sent);
            sender
        });
        let receiver = halves.contains(&Half::Read).then(|| {
            let pattern = Pattern::new(seed + 1 - wire.side as u64);
            let mut receiver = Receiver::new(fd, salt + 2, pattern);
            receiver.received = base + wire.mine(Cell::Received);
            receiver
        });
        let leads = plan.stage.as_ref().is_some_and(|s| s.leader == wire.side);
        End {
            process,
            fd,
            leaves: side
                .leaves
                .iter()
                .filter(|(half, ..)| halves.contains(half))
                .copied()
                .collect(),
            answers: match &plan.stage {
                Some(s) if !leads => s.answers.iter().copied().collect(),
                _ => VecDeque::new(),
            },
            follows: plan.stage.is_some() && !leads && halves.len() == 2,
            act: if leads && receiver.is_some() { Act::Before } else { Act::None },
            plan: side,
            stage: plan.stage,
            sender,
            receiver,
            rng: Rng::new(salt + 3),
            base,
            wire,
            peer_stays_open,
            in_step: false,
            paused: false,
            closed: false,
            idle: Vec::new(),
        }
    }

    /// A successor does nothing but come to the end.
    pub fn forget_the_plan(&mut self) {
        self.act = Act::None;
        self.follows = false;
        self.leaves.clear();
    }

    fn sent(&self) -> u64 {
        self.sender.as_ref().map_or(0, |s| s.sent - self.base)
    }

    fn received(&self) -> u64 {
        self.receiver.as_ref().map_or(0, |r| r.received - self.base)
    }

    fn is_writing(&self) -> bool {
        self.sender.is_some() && self.wire.mine(Cell::SendEnd) == 0
    }

    fn is_reading(&self) -> bool {
        self.receiver.is_some() && self.wire.mine(Cell::RecvEnd) == 0
    }

    // ---- single operations

    fn write_step(&mut self, flags: i32) -> sys::R {
        let left = (self.plan.budget - self.sent()) as usize;
        let Some(sender) = &mut self.sender else {
            return Ok(0);
        };
        let n = sender.step(MAX.min(left), flags | libc::MSG_NOSIGNAL)?;
        self.wire.note(Cell::Sent, self.sent());
        self.wire.full(false);
        self.in_step = self.plan.in_step > 0 && self.rng.range(1, self.plan.in_step) == 1;
        Ok(n)
    }

    fn is_in_step(&self) -> bool {
        self.wire.theirs(Cell::Received) >= self.sent() || self.wire.theirs(Cell::RecvEnd) != 0
    }

    fn end_writing(&mut self, end: u64) {
        if end == DONE {
            if self.plan.closes {
                self.close();
            } else if !self.plan.stays_open {
                let _ = sys::shutdown(self.fd, libc::SHUT_WR);
            }
        }
        self.wire.note(Cell::SendEnd, end);
        self.wire.full(true);
        self.wire.ring_peer();
        self.wire.ring(0);
    }

    /// `Ok(0)` is the end.
    fn read_step(&mut self, flags: i32) -> sys::R {
        let Some(receiver) = &mut self.receiver else {
            return Ok(0);
        };
        if self.rng.range(0, 30) == 0 {
            let mut buf = [0; 700];
            let peek = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            match sys::recv(self.fd, &mut buf, peek) {
                Ok(n) => {
                    let mut probe = Receiver::new(self.fd, 1, receiver.pattern());
                    probe.received = receiver.received;
                    probe.accept(&buf[..n]);
                    if let Some(at) = probe.error {
                        self.wire.note(Cell::Wrong, at - self.base + 1);
                    }
                }
                Err(E(libc::EAGAIN | libc::EINTR)) => {}
                // It is told once.
                Err(e) => return Err(e),
            }
        }
        let n = receiver.step(MAX, flags)?;
        if let Some(at) = receiver.error {
            self.wire.note(Cell::Wrong, at - self.base + 1);
        }
        self.wire.note(Cell::Received, self.received());
        if self.wire.theirs(Cell::InStep) != 0 {
            self.wire.ring(3);
        }
        Ok(n)
    }

    fn end_reading(&mut self, end: u64) {
        if self.plan.closes && self.is_writing() {
            // It writes from now on.
            self.wire.full(false);
        }
        self.wire.note(Cell::RecvEnd, end);
        self.wire.ring_peer();
    }

    pub fn close(&mut self) {
        if self.closed {
            return;
        }
        self.closed = true;
        let guard = self.process.map(|p| p.locked());
        if let Some(p) = self.process {
            p.fds[self.wire.index % CONNECTIONS].store(-1, SeqCst);
        }
        let _ = sys::close(self.fd);
        drop(guard);
        if self.receiver.is_some() {
            self.wire.note(Cell::Closed, 1);
            self.wire.ring_peer();
        }
    }

    /// Both ends have said all, and the peer will close without this end's reading.
    fn waits_for_close(&self) -> bool {
        self.plan.lingers
            && !self.plan.closes
            && !self.plan.stays_open
            && self.wire.mine(Cell::SendEnd) != 0
            && self.wire.theirs(Cell::SendEnd) != 0
            && self.wire.theirs(Cell::Closed) == 0
    }

    // ---- leaving

    /// The next planned one, if its time has come.
    fn due(&mut self) -> Option<Leave> {
        let &(half, at, leave) = self.leaves.front()?;
        let now = match half {
            Half::Read => self.received(),
            Half::Write => self.sent(),
        };
        let over = match half {
            Half::Read => !self.is_reading(),
            Half::Write => !self.is_writing(),
        };
        if now < at && !over {
            return None;
        }
        self.leaves.pop_front();
        (!over).then_some(leave)
    }

    /// `leads`: this is what the follower waits for; `answers`: what the leader waits for.
    fn leave(&mut self, leave: Leave, leads: bool, answers: bool) -> After {
        let Some(process) = self.process else {
            return After::Stays;
        };
        if self.sender.is_some() && leave != Leave::Duplicate {
            // Nobody shall wait for bytes meanwhile.
            self.wire.full(true);
        }
        let both = self.sender.is_some() && self.receiver.is_some();
        match leave {
            Leave::Option(which) => {
                // A connection that has been broken off may refuse.
                let _ = odd_option(self.fd, which);
            }
            Leave::Duplicate => {
                let _guard = process.locked();
                // The lowest free number, often that of a connection that has just been closed.
                let new = sys::dup(self.fd).expect("dup");
                sys::close(self.fd).expect("close");
                let _ = sys::fcntl(new, libc::F_SETFD, libc::FD_CLOEXEC);
                self.fd = new;
                process.fds[self.wire.index % CONNECTIONS].store(new, SeqCst);
                if let Some(s) = &mut self.sender {
                    s.set_fd(new);
                }
                if let Some(r) = &mut self.receiver {
                    r.set_fd(new);
                }
            }
            Leave::IdleChild => {
                let guard = process.locked();
                let [from, to] = sys::pipe();
                match sys::fork().expect("fork") {
                    0 => {
                        // It keeps the names of those before it, so that they end after it: never
                        // in a circle.
                        let place = self.wire.index % CONNECTIONS;
                        process.close_all(|other| other > place);
                        let _ = sys::read(from, &mut [0]);
                        sys::exit_now(0);
                    }
                    pid => {
                        drop(guard);
                        let _ = sys::close(from);
                        self.idle.push((pid, to));
                    }
                }
            }
            Leave::Fork => {
                let guard = process.locked();
                match sys::fork().expect("fork") {
                    0 => {
                        drop(guard);
                        self.as_child(process, leads, answers)
                    }
                    pid => {
                        drop(guard);
                        if both {
                            self.close();
                        }
                        reap(pid);
                    }
                }
                return After::Gone;
            }
            Leave::Pass { taker } => {
                let [a, b, c, d] = self.wire.bells;
                sys::send_fds(
                    process.takers[taker],
                    self.order(leads).join(" ").as_bytes(),
                    &[self.fd, a, b, c, d],
                )
                .expect("sendmsg");
                if both {
                    self.close();
                }
                if answers {
                    self.answered();
                }
                return After::Gone;
            }
            Leave::Exec { spawn, library } => {
                self.exec(process, spawn, library, leads, answers, both);
                return After::Gone;
            }
        }
        After::Stays
    }

    /// A forked child that goes on, with the rest of the plan.
    fn as_child(&mut self, process: &'static Process, leads: bool, answers: bool) -> ! {
        let place = self.wire.index % CONNECTIONS;
        process.close_all(|other| other != place);
        // Not children of this one.
        self.idle.clear();
        if answers && self.answers.is_empty() {
            self.write_some(libc::MSG_DONTWAIT);
            self.answered();
        }
        self.go_on(leads);
        self.close();
        sys::exit_now(i32::from(FAILED_CHILDREN.load(SeqCst) > 0))
    }

    /// `INDEX SIDE HALVES LEADS`: what a successor is told.
    fn order(&self, leads: bool) -> Vec<String> {
        let halves = match (&self.receiver, &self.sender) {
            (Some(_), Some(_)) => "both",
            (Some(_), None) => "read",
            _ => "write",
        };
        vec![
            self.wire.index.to_string(),
            self.wire.side.to_string(),
            halves.into(),
            u8::from(leads).to_string(),
        ]
    }

    fn exec(
        &mut self,
        process: &'static Process,
        spawn: bool,
        library: bool,
        leads: bool,
        answers: bool,
        both: bool,
    ) {
        let program = crate::ctx::own_program();
        let mut words = vec![program.clone(), "helper".into(), "stress-end".into()];
        words.extend(["leave-carry".into(), process.seed.to_string()]);
        words.extend([process.board_path.clone(), self.wire.board.connections.to_string()]);
        words.extend(self.order(leads));
        let passed = [&[self.fd], &self.wire.bells[..]].concat();
        words.extend(passed.iter().map(Fd::to_string));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let marked = |flag| {
            for &fd in &passed {
                let _ = sys::fcntl(fd, libc::F_SETFD, flag);
            }
        };
        let guard = process.locked();
        let pid = if spawn {
            marked(0);
            let pid = sys::spawn(&program, &words, &[], 1).expect("posix_spawn");
            marked(libc::FD_CLOEXEC);
            pid
        } else {
            match sys::fork().expect("fork") {
                0 => {
                    marked(0);
                    let e = sys::exec(&program, &words, library);
                    eprintln!("exec: {e:?}");
                    sys::exit_now(99)
                }
                pid => pid,
            }
        };
        drop(guard);
        if both {
            self.close();
        }
        if answers {
            self.answered();
        }
        reap(pid);
    }

    fn answered(&mut self) {
        self.follows = false;
        self.wire.note(Cell::Answered, 1);
        self.wire.ring_peer();
    }

    /// After a hand-over, and from the very beginning. `leads`: the leader has left by this.
    pub fn go_on(&mut self, leads: bool) {
        self.act = if leads { Act::Held } else { self.act };
        if leads {
            // A forked child has left when it has used the connection.
            match self.read_step(libc::MSG_DONTWAIT) {
                Ok(0) => self.end_reading(DONE),
                Err(E(libc::EAGAIN | libc::EINTR)) | Ok(_) => {}
                Err(e) => self.end_reading(error_end(e)),
            }
            self.wire.note(Cell::Left, 1);
            self.wire.ring_peer();
        }
        match (self.receiver.is_some(), self.sender.is_some()) {
            (true, true) => self.alternate(),
            (true, false) => self.read_on(),
            _ => self.write_on(),
        }
        for (pid, pipe) in self.idle.drain(..) {
            let _ = sys::write(pipe, b"x");
            let _ = sys::close(pipe);
            reap(pid);
        }
    }

    // ---- the three ways to work

    fn write_on(&mut self) {
        while self.sent() < self.plan.budget {
            if let Some(leave) = self.due()
                && self.leave(leave, false, false) == After::Gone
            {
                return;
            }
            if self.in_step {
                self.in_step = false;
                self.wire.full(true);
                self.wire.note(Cell::InStep, 1);
                let came = self.wire.wait(Half::Write, |_| self.is_in_step());
                self.wire.note(Cell::InStep, 0);
                if !came {
                    return self.end_writing(STUCK);
                }
            }
            match self.write_step(libc::MSG_DONTWAIT) {
                Ok(_) | Err(E(libc::EINTR)) => continue,
                Err(E(libc::EAGAIN)) => self.wire.full(true),
                Err(e) => return self.end_writing(error_end(e)),
            }
            match self.write_step(0) {
                Ok(_) | Err(E(libc::EINTR)) => {}
                Err(e) => return self.end_writing(error_end(e)),
            }
        }
        self.end_writing(DONE);
    }

    fn read_on(&mut self) {
        loop {
            if let Some(leave) = self.due()
                && self.leave(leave, false, false) == After::Gone
            {
                return;
            }
            self.raise_curtain();
            if self.act == Act::Filling {
                if !self.wire.wait(Half::Read, |_| self.follower_is_full()) {
                    return self.end_reading(STUCK);
                }
                if self.lead() == After::Gone {
                    return;
                }
            }
            if self.act == Act::Held {
                if !self.wire.wait(Half::Read, |_| self.may_read_on()) {
                    return self.end_reading(STUCK);
                }
                self.act = Act::None;
            }
            let pause = self.plan.pauses > 0 && self.rng.range(1, self.plan.pauses) == 1;
            if pause && !self.wire.wait(Half::Read, Wire::peer_is_full) {
                return self.end_reading(STUCK);
            }
            if !self.is_reading() {
                return;
            }
            if !self.wire.wait(Half::Read, |_| !self.waits_for_close()) {
                return self.end_reading(STUCK);
            }
            match self.read_step(0) {
                Ok(0) => return self.end_reading(DONE),
                Ok(_) | Err(E(libc::EINTR)) => {}
                Err(e) => return self.end_reading(error_end(e)),
            }
        }
    }

    /// Both halves in one thread, without blocking.
    fn alternate(&mut self) {
        if self.plan.nonblocking {
            sys::set_nonblocking(self.fd, true);
        }
        let flags = if self.plan.nonblocking { 0 } else { libc::MSG_DONTWAIT };
        let mut spurious = [0; 2];
        loop {
            while let Some(leave) = self.due() {
                if self.leave(leave, false, false) == After::Gone {
                    return;
                }
            }
            if self.is_reading() && self.plan.closes && self.has_all() {
                self.end_reading(DONE);
            }
            self.raise_curtain();
            if self.act == Act::Filling && self.follower_is_full() && self.lead() == After::Gone {
                return;
            }
            if self.act == Act::Held && self.may_read_on() {
                self.act = Act::None;
            }
            if self.follows
                && self.wire.theirs(Cell::Left) != 0
                && self.answer(flags) == After::Gone
            {
                return;
            }
            if self.is_writing() && self.sent() >= self.plan.budget && !self.waits_to_close() {
                self.end_writing(DONE);
            }
            if !self.is_reading() && !self.is_writing() {
                return self.last_act();
            }
            self.paused &= !self.wire.peer_is_full();
            self.in_step &= !self.is_in_step();
            if self.sender.is_some() {
                self.wire.note(Cell::InStep, u64::from(self.in_step));
                self.in_step &= !self.is_in_step();
            }
            let reads = self.is_reading()
                && !self.paused
                && !self.waits_for_close()
                && matches!(self.act, Act::None | Act::Before);
            let writes = self.is_writing() && !self.in_step && !self.waits_to_close();
            let mut events = 0;
            if reads {
                events |= libc::POLLIN;
            }
            if writes {
                events |= libc::POLLOUT;
            }
            let set = [
                // A connection that has failed would end each wait at once.
                (if events == 0 { -1 } else { self.fd }, events),
                (self.wire.bells[0], libc::POLLIN),
                (self.wire.bells[1], libc::POLLIN),
            ];
            if self.sender.is_some() && sys::poll(&set, 0).is_ok_and(|(n, _)| n == 0) {
                // About to sleep: nobody shall wait for bytes.
                self.wire.full(true);
            }
            let revents = match sys::poll(&set, patience_ms()) {
                Ok((0, _)) => return self.stuck(),
                Ok((_, revents)) => revents,
                Err(_) => continue,
            };
            for bell in 0..2 {
                if revents[bell + 1] != 0 {
                    self.wire.hush(bell);
                }
            }
            let failed = revents[0] & (libc::POLLHUP | libc::POLLERR) != 0;
            if writes && (revents[0] & libc::POLLOUT != 0 || failed) {
                let before = self.sent();
                self.write_some(flags);
                spurious[1] = if self.sent() > before { 0 } else { spurious[1] + 1 };
                if spurious[1] > SPURIOUS && self.is_writing() {
                    self.end_writing(DECEIVED);
                }
            }
            if reads && (revents[0] & libc::POLLIN != 0 || failed) {
                match self.read_step(flags) {
                    Ok(0) => self.end_reading(DONE),
                    Ok(_) => {
                        spurious[0] = 0;
                        self.paused =
                            self.plan.pauses > 0 && self.rng.range(1, self.plan.pauses) == 1;
                    }
                    Err(E(libc::EAGAIN | libc::EINTR)) => {
                        spurious[0] += 1;
                        if spurious[0] > SPURIOUS {
                            self.end_reading(DECEIVED);
                        }
                    }
                    Err(e) => self.end_reading(error_end(e)),
                }
            }
        }
    }

    /// Up to eight sends.
    fn write_some(&mut self, flags: i32) {
        for _ in 0..8 {
            if self.sent() >= self.plan.budget || self.in_step || self.waits_to_close() {
                break;
            }
            match self.write_step(flags) {
                Ok(_) | Err(E(libc::EINTR)) => {}
                Err(E(libc::EAGAIN)) => break,
                Err(e) => {
                    self.end_writing(error_end(e));
                    break;
                }
            }
        }
    }

    /// The peer, which does not shut down, sends no more.
    fn has_all(&self) -> bool {
        self.peer_stays_open
            && self.wire.theirs(Cell::SendEnd) == DONE
            && self.received() >= self.wire.theirs(Cell::Sent)
    }

    /// An end that closes keeps more than the way holds for after the peer's EOF; a follower that
    /// is to close, until then.
    fn waits_to_close(&self) -> bool {
        if !self.plan.closes {
            return false;
        }
        let left = self.plan.budget - self.sent();
        // (An EOF comes before the peer has noted that it has sent all. Until then it may still
        // read on, and would not leave where it is to.)
        let hears = self.is_reading() || self.wire.theirs(Cell::SendEnd) == 0;
        (hears && left <= FILL.min(self.plan.budget / 2))
            || (left == 0 && self.follows && self.wire.theirs(Cell::RecvEnd) == 0)
    }

    fn stuck(&mut self) {
        if self.is_reading() {
            self.end_reading(STUCK);
        }
        if self.is_writing() {
            self.end_writing(STUCK);
        }
        self.last_act();
    }

    /// Nobody waits for this end any more.
    fn last_act(&mut self) {
        if self.follows {
            self.answered();
        }
        if self.act != Act::None {
            self.wire.note(Cell::Left, 1);
            self.wire.ring_peer();
        }
    }

    // ---- the stage

    /// The leader stops reading when it has come so far.
    fn raise_curtain(&mut self) {
        if self.act == Act::Before
            && let Some(stage) = &self.stage
            && self.received() >= stage.at
            && (!stage.has_close() || self.wire.mine(Cell::SendEnd) != 0)
        {
            self.act = Act::Filling;
        }
    }

    fn follower_is_full(&self) -> bool {
        let has_read = |s: &Stage| !s.has_close() || self.wire.theirs(Cell::RecvEnd) != 0;
        self.stage.as_ref().is_none_or(has_read) && self.wire.peer_is_full()
    }

    fn lead(&mut self) -> After {
        let Some(leave) = self.stage.as_ref().map(|s| s.leave) else {
            return After::Stays;
        };
        if self.leave(leave, true, false) == After::Gone {
            return After::Gone;
        }
        self.act = Act::Held;
        self.wire.note(Cell::Left, 1);
        self.wire.ring_peer();
        After::Stays
    }

    fn may_read_on(&self) -> bool {
        self.stage.as_ref().is_none_or(|s| !s.hold) || self.wire.has_answer()
    }

    /// The follower's: all of it at once.
    fn answer(&mut self, flags: i32) -> After {
        while let Some(answer) = self.answers.pop_front() {
            // With bytes on the way that cannot go on before what has to be sent again.
            if self.is_writing() && self.sent() < self.plan.budget {
                self.write_some(flags);
            }
            match answer {
                Answer::Leave(leave) => {
                    // A forked child gives the rest of the answers.
                    if self.leave(leave, false, true) == After::Gone {
                        return After::Gone;
                    }
                }
                Answer::Shutdown | Answer::Close => {
                    if self.is_writing() {
                        self.end_writing(DONE);
                    }
                }
            }
        }
        self.answered();
        After::Stays
    }
}

pub static FAILED_CHILDREN: AtomicU64 = AtomicU64::new(0);

/// Waits for a child, which must have ended well.
fn reap(pid: libc::pid_t) {
    let end = sys::wait_child(pid);
    if end != Ok(0) {
        eprintln!("a child ended with {end:?}");
        FAILED_CHILDREN.fetch_add(1, SeqCst);
    }
}
