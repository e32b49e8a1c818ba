//! Proof that the process at the other end of a link holds the other end of a TCP connection: it
//! shows marks on that very socket.
//!
//! A *mark* is the values of five options which mean nothing on a connected TCP socket. Only who
//! has the socket can set them, and everybody on the host may read them (`NETLINK_SOCK_DIAG`). The
//! marks of a proof are those of its link: they spell the number under which the connecting side's
//! control socket is bound, and the kernel gives no such name twice at a time. So whoever stands
//! between two processes has two links, with two numbers, and the marks that one end shows are not
//! those that the other looks for.
//!
//! Both ends show at the same time, in turns; each goes on only after it has seen the other's mark
//! of that turn. `docs/design/possession.md` says why nothing can be put together from several
//! proofs, and what is done where the kernel shows no options.

use super::auth::Cred;
use super::marks::{NUMBERS, TURNS, at_rest, mark, show, shown_by};
use super::{LINKS, State, Then, Violation, auth, has_peer_ended, names};
use crate::rendezvous::auth::End;
use crate::socket::Socket;
use crate::tuple_table::Key;
use crate::{socket, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::agreement::Event;
use netacc_proto::rendezvous::{Message, Role, Tuple};

/// The proof. Nothing is handed over, and nothing received is mapped into a connection, without
/// one.
#[derive(Debug)]
pub(crate) struct PeerVerified(());

// ---- proofs under way ---------------------------------------------------------------------------

/// Proofs at a time; others wait for theirs.
pub(crate) const PROOFS: usize = 128;
/// Claims to one connection that are looked at in a row.
const RIVALS: usize = 16;
/// A peer that does not go on for so long has no proof. (It may be stopped.)
const PATIENCE_NS: u64 = 2_000_000_000;

/// One of our sockets shows marks to the peer of a link.
#[derive(Clone, Copy)]
pub(crate) struct Proof {
    socket: &'static Socket,
    generation: u32,
    /// SO_COOKIE of its carrier.
    cookie: u64,
    accepting: bool,
    /// The kernel tells this process what the other end shows.
    sees: bool,
    link: usize,
    serial: u32,
    /// The connector's name for the connection.
    token: u64,
    /// The mark that it shows, and when it is given up.
    turn: u8,
    until: u64,
    /// What it shows, or that it cannot show anything.
    shown: Option<u8>,
    at_rest: u8,
}

/// What the service thread has to look at without the lock: whether the other end of a connection
/// shows a mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// As its holder sees it.
    end: Tuple,
    mark: u8,
    peer: Cred,
    link: usize,
    serial: u32,
    token: u64,
    turn: u8,
    /// What is known of that from our own end; `None`: nothing yet.
    sees: Option<bool>,
}

/// What it has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    shown: bool,
    /// Our own end, where it was looked at.
    own: Option<End>,
}

impl Look {
    pub(crate) fn link(&self) -> usize {
        self.link
    }

    /// Asks the kernel.
    pub(crate) fn ask(&self) -> Seen {
        let own = if self.sees.is_none() { auth::look(&self.end.mirrored()) } else { None };
        let sees = self.sees.or(own.map(|own| own.mark.is_some()));
        let shown = match (sees, auth::look(&self.end)) {
            (Some(true), Some(end)) => end.mark == Some(self.mark),
            // Of our own end we are told no options either: the user is all there is to go by.
            (Some(false), Some(end)) => {
                end.mark.is_none_or(|mark| mark == self.mark) && auth::may_be(self.peer, end.owner)
            }
            _ => false,
        };
        Seen { shown, own }
    }
}

const SO_COOKIE: c_int = 57;
/// Linux 5.14.
const SO_NETNS_COOKIE: c_int = 71;

fn number_by(fd: c_int, option: c_int) -> Option<u64> {
    let mut number = 0u64;
    (sys::getsockopt(fd, libc::SOL_SOCKET, option, &mut number) >= 0).then_some(number)
}

/// The two sockets are of one network namespace, as far as the kernel tells.
fn in_one_namespace(a: c_int, b: c_int) -> bool {
    number_by(a, SO_NETNS_COOKIE) == number_by(b, SO_NETNS_COOKIE)
}

impl Proof {
    fn is_of(&self, socket: &Socket) -> bool {
        core::ptr::eq(self.socket, socket)
    }

    fn is_current(&self) -> bool {
        self.socket.generation.load(Acquire) == self.generation
    }

    /// Its socket still waits for an agreement.
    fn is_open(&self) -> bool {
        self.socket.may_be_candidate() && self.may_touch()
    }

    /// Under the service's lock its descriptor stays what it is: who closes the number of a
    /// candidate, or of what was one, or makes it anything but plain, comes by here before he goes
    /// on (`service/agent.rs`: `forget`, `renamed`, `leave_carrier`).
    fn may_touch(&self) -> bool {
        (self.socket.may_be_candidate() || self.socket.is(socket::State::Plain))
            && self.has_carrier()
    }

    /// (A number that was closed unseen is another file by now.)
    fn has_carrier(&self) -> bool {
        self.is_current() && self.fd() >= 0 && number_by(self.fd(), SO_COOKIE) == Some(self.cookie)
    }

    fn fd(&self) -> c_int {
        self.socket.fd.load(Acquire)
    }

    /// False: its socket is no candidate any more. (Where options cannot be set it shows nothing,
    /// which the peer sees, or the kernel shows none.)
    fn show(&mut self, mark: u8) -> bool {
        if !self.is_open() {
            return false;
        }
        if let Some(shown) = self.shown {
            show(self.fd(), shown, mark);
            self.shown = Some(mark);
        }
        true
    }

    /// The socket is as it was before. Only while its descriptor stays what it is.
    fn undo(&self) {
        if let Some(shown) = self.shown.filter(|_| self.has_carrier()) {
            show(self.fd(), shown, self.at_rest);
        }
    }
}

impl State {
    /// The number of a link, as the name says under which its connecting side is bound.
    fn number(&self, i: usize) -> Option<u16> {
        self.link(i)?.number
    }

    /// Begins the proof for a waiting accepted socket and a candidate of a peer's, if there are
    /// both. `own`: what the kernel tells of our end. Service thread only.
    pub(crate) fn prove(&mut self, tuple: &Tuple, own: Option<End>) {
        for _ in 0..RIVALS {
            let Some((waiting, candidate)) = self.pair_for(tuple) else { return };
            let Some(t) = self.tables.as_ref() else { return };
            let (Some((_, m)), Some((_, theirs))) =
                (t.accepted.get(waiting), t.candidates.get(candidate))
            else {
                return;
            };
            let (socket, generation, i, token) =
                (m.socket, m.generation, theirs.link, theirs.token);
            if self.proofs.iter().flatten().any(|p| p.is_of(socket)) {
                return;
            }
            if !self.may_prove() {
                if self.to_agree.len() < self.to_agree.capacity() {
                    self.to_agree.push(waiting);
                }
                return;
            }
            if self.begin(i, (socket, generation), token, own, true) {
                if let Err(why) = self.post(i, Message::Turn { token, turn: 0 }, -1) {
                    self.end_link(i, why);
                }
                return;
            }
            self.offer(waiting, candidate, None);
        }
    }

    /// Whether another proof can begin.
    pub(crate) fn may_prove(&self) -> bool {
        self.proofs.iter().any(Option::is_none)
    }

    /// Shows the first mark. False: that cannot be done.
    fn begin(
        &mut self,
        i: usize,
        (socket, generation): (&'static Socket, u32),
        token: u64,
        own: Option<End>,
        accepting: bool,
    ) -> bool {
        let until = sys::now_ns() + PATIENCE_NS;
        let Some((number, serial, control)) =
            self.link(i).and_then(|l| Some((l.number?, l.serial, l.fd)))
        else {
            return false;
        };
        let fd = socket.fd.load(Acquire);
        let Some((own, cookie)) = own.zip(number_by(fd, SO_COOKIE)) else { return false };
        // What is looked at is this very connection, and the link's number is one of a kind where
        // it is.
        let same = if own.cookie != 0 {
            own.cookie == cookie
        } else {
            sys::inode(fd).is_some_and(|(_, inode)| inode == u64::from(own.inode))
        };
        let sees = own.mark.is_some();
        if !same
            || !in_one_namespace(control, fd)
            || !(sees || self.is_first_time(socket, accepting))
        {
            return false;
        }
        let mut p = Proof {
            socket,
            generation,
            cookie,
            accepting,
            sees,
            link: i,
            serial,
            token,
            turn: 0,
            until,
            shown: None,
            at_rest: 0,
        };
        let Some(free) = self.proofs.iter_mut().find(|p| p.is_none()).filter(|_| p.is_open())
        else {
            return false;
        };
        p.shown = shown_by(fd);
        p.at_rest = p.shown.map_or(0, at_rest);
        p.show(mark(number, 0));
        *free = Some(p);
        if self.next_proof_end == 0 {
            self.next_proof_end = until;
        }
        true
    }

    /// Who does not see the other end goes from turn to turn as he is told. He goes through one
    /// proof alone for a connection: the marks of several could be put together to what somebody
    /// else looks for.
    fn is_first_time(&mut self, socket: &'static Socket, accepting: bool) -> bool {
        let tuple = socket.tuple();
        let Some(t) = self.tables.as_mut() else { return false };
        let table = if accepting { &mut t.accepted } else { &mut t.connected };
        let m = table.find(&tuple, |m| m.is(socket)).and_then(|key| table.get_mut(key));
        m.is_some_and(|m| !core::mem::replace(&mut m.shown_blindly, true))
    }

    /// Ends proofs: their sockets are as they were.
    pub(super) fn end_proofs(&mut self, which: impl Fn(&Proof) -> bool) {
        for place in &mut self.proofs {
            // (One whose socket is on its way to something else is ended by who takes it there, in
            // a moment.)
            if let Some(p) = place.filter(|p| which(p) && (p.may_touch() || !p.has_carrier())) {
                p.undo();
                *place = None;
            }
        }
    }

    pub(crate) fn end_proofs_of(&mut self, socket: &Socket) {
        self.end_proofs(|p| p.is_of(socket));
    }

    /// As [`end_proofs_of`](Self::end_proofs_of), for who is about to close the socket's
    /// descriptor, or has changed its state.
    pub(crate) fn end_proofs_at_last(&mut self, socket: &Socket) {
        for place in &mut self.proofs {
            if let Some(p) = place.filter(|p| p.is_of(socket)) {
                p.undo();
                *place = None;
            }
        }
    }

    pub(super) fn end_proofs_over(&mut self, i: usize) {
        self.end_proofs(|p| p.link == i);
    }

    /// Ends the proof for what a peer has withdrawn, and says for which connection it was.
    pub(super) fn withdraw_proof(&mut self, i: usize, token: u64) -> Option<Tuple> {
        let p = self.proof(i, token).copied()?;
        self.end_proofs_of(p.socket);
        Some(p.socket.tuple())
    }

    fn proof(&mut self, i: usize, token: u64) -> Option<&mut Proof> {
        let serial = self.link(i)?.serial;
        self.proofs
            .iter_mut()
            .flatten()
            .find(|p| p.link == i && p.serial == serial && p.token == token)
    }

    /// The peer shows the mark of `turn` for a connection: what is to be looked at.
    pub(super) fn on_turn(&mut self, i: usize, token: u64, turn: u8) -> Then {
        let Some((role, peer, serial)) = self.link(i).map(|l| (l.role, l.peer, l.serial)) else {
            return Then::Nothing;
        };
        let Some(number) = self.number(i) else { return Then::Nothing };
        let expected = match self.proof(i, token) {
            Some(p) if role == Role::Acceptor => p.turn,
            Some(p) => p.turn + 1,
            None => 0,
        };
        let tuple = match role {
            Role::Acceptor => {
                self.proof(i, token).filter(|p| p.accepting).map(|p| p.socket.tuple())
            }
            // (Only who was told of it.)
            Role::Connector => self
                .tables
                .as_ref()
                .and_then(|t| t.connected.get(Key(token)))
                .filter(|(_, m)| m.agreement.is_told(i))
                .map(|(t, _)| *t),
        };
        // What comes late, of a proof that was given up, says nothing. A connector begins anew
        // whenever it is asked.
        let begins = turn == 0 && role == Role::Connector;
        let Some(tuple) = tuple.filter(|_| (turn == expected || begins) && turn < TURNS) else {
            return Then::Nothing;
        };
        let sees = self.proof(i, token).filter(|_| !begins).map(|p| p.sees);
        if begins && !self.may_prove() && self.proof(i, token).is_none() {
            // When there is a place. (As many as acceptors have places.)
            if self.turns_put_off.len() < LINKS * PROOFS
                && self.turns_put_off.try_reserve(1).is_ok()
            {
                self.turns_put_off.push_back((i, serial, token));
            }
            return Then::Nothing;
        }
        Then::Look(Look {
            end: tuple.mirrored(),
            mark: mark(number, turn),
            peer,
            link: i,
            serial,
            token,
            turn,
            sees,
        })
    }

    /// A connector's proof for which there was no place.
    pub(crate) fn next_turn(&mut self) -> Option<Then> {
        while self.may_prove() {
            let (i, serial, token) = self.turns_put_off.pop_front()?;
            if self.link(i).is_some_and(|l| l.serial == serial && l.is_read()) {
                return Some(self.on_turn(i, token, 0));
            }
        }
        None
    }

    /// Somebody waits for a place for his proof, and there is one.
    pub(crate) fn could_prove(&self) -> bool {
        !(self.to_agree.is_empty() && self.turns_put_off.is_empty()) && self.may_prove()
    }

    /// The other end was looked at: on with the proof, or an end to it.
    pub(crate) fn looked(&mut self, look: Look, seen: Seen) -> Result<Then, Violation> {
        let Look { link: i, token, turn, .. } = look;
        let Some(role) =
            self.link(i).filter(|l| l.serial == look.serial && l.is_read()).map(|l| l.role)
        else {
            return Ok(Then::Nothing);
        };
        match role {
            Role::Acceptor => self.looked_at_connector(i, token, turn, seen.shown),
            Role::Connector => {
                self.looked_at_acceptor(i, token, turn, seen).map(|()| Then::Nothing)
            }
        }
    }

    fn looked_at_connector(
        &mut self,
        i: usize,
        token: u64,
        turn: u8,
        shown: bool,
    ) -> Result<Then, Violation> {
        let number = self.number(i);
        let Some(p) = self.proof(i, token).filter(|p| p.accepting && p.turn == turn && p.is_open())
        else {
            return Ok(Then::Nothing);
        };
        let tuple = p.socket.tuple();
        let next = turn + 1;
        if shown && next < TURNS {
            p.turn = next;
            p.until = sys::now_ns() + PATIENCE_NS;
            if number.is_some_and(|n| p.show(mark(n, next))) {
                self.post(i, Message::Turn { token, turn: next }, -1)?;
                return Ok(Then::Nothing);
            }
        }
        let (socket, proof) = (p.socket, (shown && next == TURNS).then_some(PeerVerified(())));
        self.end_proofs_of(socket);
        if proof.is_none() {
            self.post(i, Message::Unproven { token }, -1)?;
        }
        // Somebody else may have a claim to it.
        let then = if proof.is_some() { Then::Nothing } else { Then::Agree(tuple) };
        let t = self.tables.as_ref();
        let found = t.and_then(|t| {
            Some((
                t.accepted.find(&tuple, |m| m.is(socket))?,
                t.candidates.find_number(token, |x| x.link == i)?,
            ))
        });
        if let Some((waiting, candidate)) = found {
            self.offer(waiting, candidate, proof);
        }
        Ok(then)
    }

    fn looked_at_acceptor(
        &mut self,
        i: usize,
        token: u64,
        turn: u8,
        seen: Seen,
    ) -> Result<(), Violation> {
        let shown = seen.shown;
        let number = self.number(i);
        let Some((_, m)) = self.tables.as_ref().and_then(|t| t.connected.get(Key(token))) else {
            return Ok(());
        };
        let (socket, generation) = (m.socket, m.generation);
        let mut on = shown;
        if shown && turn == 0 {
            self.end_proofs_of(socket);
            on = self.begin(i, (socket, generation), token, seen.own, false);
        } else if shown {
            let Some(p) = self.proof(i, token).filter(|p| p.turn + 1 == turn) else {
                return Ok(());
            };
            p.turn = turn;
            p.until = sys::now_ns() + PATIENCE_NS;
            on = number.is_some_and(|n| p.show(mark(n, turn)));
        }
        if on {
            if let Some(l) = self.link_mut(i).filter(|_| turn + 1 == TURNS) {
                l.proven = true;
            }
            return self.post(i, Message::Turn { token, turn }, -1);
        }
        self.doubt(i, token);
        self.post(i, Message::Unproven { token }, -1)
    }

    /// Connector: the peer does not hold the other end, as far as can be seen.
    fn doubt(&mut self, i: usize, token: u64) {
        self.end_proofs(|p| p.link == i && p.token == token);
        if let Some((_, m)) = self.tables.as_ref().and_then(|t| t.connected.get(Key(token))) {
            m.is_unproven();
        }
    }

    /// The peer says that our end of a connection does not show what it looks for.
    pub(super) fn on_unproven(&mut self, i: usize, token: u64) -> Then {
        let Some(p) = self.proof(i, token).copied() else { return Then::Nothing };
        self.end_proofs_of(p.socket);
        // (Behind the last turn: the peer has no offer to make.)
        let all_shown = !p.accepting && p.turn + 1 >= TURNS;
        if !all_shown && p.has_carrier() && !has_peer_ended(p.socket) {
            p.socket.set_reason(Reason::NotAuthenticated);
        }
        if !p.accepting {
            return Then::Nothing;
        }
        self.bar(p.socket, i, token);
        Then::Agree(p.socket.tuple())
    }

    /// Connector: whether the peer of link `i` has shown, for this connection, all there is to
    /// show. The proof ends with the answer.
    pub(super) fn take_proof(&mut self, i: usize, token: u64) -> Option<PeerVerified> {
        let done = self.proof(i, token).is_some_and(|p| !p.accepting && p.turn + 1 == TURNS);
        self.end_proofs(|p| p.link == i && p.token == token);
        done.then_some(PeerVerified(()))
    }

    /// Gives up proofs that do not go on. Returns a connection to which somebody else may have a
    /// claim. Service thread only.
    pub(crate) fn give_up_proofs(&mut self) -> Option<Tuple> {
        let now = sys::now_ns();
        if self.next_proof_end == 0 || self.next_proof_end > now {
            return None;
        }
        for p in self
            .proofs
            .iter_mut()
            .flatten()
            .filter(|p| p.until <= now && !p.may_touch() && p.has_carrier())
        {
            // It ends in a moment.
            p.until = now + PATIENCE_NS;
        }
        let late = self.proofs.iter().flatten().find(|p| p.until <= now).copied();
        let Some(p) = late else {
            self.next_proof_end = self.proofs.iter().flatten().map(|p| p.until).min().unwrap_or(0);
            return None;
        };
        self.end_proofs_of(p.socket);
        if p.accepting {
            self.bar(p.socket, p.link, p.token);
        }
        Some(p.socket.tuple())
    }

    /// Acceptor: the peer of link `i` could not prove its claim to a socket. Others come first from
    /// here on.
    pub(super) fn bar(&mut self, socket: &Socket, i: usize, token: u64) {
        self.forget_candidate(i, token);
        let tuple = socket.tuple();
        if let Some(t) = self.tables.as_mut()
            && let Some(m) =
                t.accepted.find(&tuple, |m| m.is(socket)).and_then(|key| t.accepted.get_mut(key))
        {
            m.agreement.step(Event::Unproven(i));
        }
    }

    /// Acceptor: drops what the peer of link `i` said of a connection.
    pub(super) fn forget_candidate(&mut self, i: usize, token: u64) {
        let known = self.tables.as_mut().and_then(|t| {
            t.candidates
                .find_number(token, |x| x.link == i)
                .and_then(|key| t.candidates.remove(key))
        });
        if let Some(l) = self.links.get_mut(i).filter(|_| known.is_some()) {
            l.candidates = l.candidates.saturating_sub(1);
        }
    }
}

// ---- names --------------------------------------------------------------------------------------

/// `sockaddr_un` of the connecting side of link `number`, and its length.
fn link_name(number: u16) -> ([u8; 48], usize) {
    names::name_of(b"link", u32::from(number))
}

/// Binds a control socket that is about to connect to a name that says the link's number. False:
/// there is none to be had.
pub(crate) fn name_link(control: c_int) -> bool {
    let mut random = [0u8; 2 * TRIES];
    sys::random(&mut random);
    let (numbers, _) = random.as_chunks::<2>();
    numbers.iter().any(|n| {
        let (name, len) = link_name(u16::from_le_bytes(*n) % NUMBERS);
        sys::bind(control, name.get(..len).unwrap_or(&[])) >= 0
    })
}

/// So many numbers are tried. (Of a thousand links on a host every 25th is taken.)
const TRIES: usize = 8;

/// The number of a link, over its control socket.
pub(crate) fn number_of(control: c_int, role: Role) -> Option<u16> {
    let mut name = [0u8; 128];
    let len = sys::socket_name(control, role == Role::Acceptor, &mut name);
    let text = name.get(..usize::try_from(len).ok()?)?;
    let digits = text.rsplit(|b| *b == b'/').next()?;
    let number: u16 = core::str::from_utf8(digits).ok()?.parse().ok()?;
    let (same, len) = link_name(number);
    (number < NUMBERS && same.get(..len) == Some(text)).then_some(number)
}

/// Its options are the kernel's own.
#[cfg(test)]
pub(crate) fn is_at_rest(fd: c_int) -> bool {
    shown_by(fd) == Some(super::marks::ODD | 4)
}

/// Shows, by hand, the mark of a turn.
#[cfg(test)]
pub(crate) fn show_turn(fd: c_int, number: u16, turn: u8) {
    assert!(shown_by(fd).is_some_and(|before| show(fd, before, mark(number, turn))));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may fail loudly")]
mod tests;
