//! The processes, their links, and what may happen next.

use netacc_proto::agreement::{
    Action, Agreement, Event, Links, Slot, SlotAction, SlotEvent, SlotState, State, bit,
};
use netacc_proto::rendezvous::{Peers, Role, refuse};
use std::collections::VecDeque;

/// Connections, and slots of a link: a slot serves one after the other.
const CONNS: usize = 3;
const SLOTS: usize = 2;
const C: usize = 0;
const A: usize = 1;

/// Who else is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Third {
    Nobody,
    /// It accepts at the same port, and has not accepted these.
    Sibling,
    /// It says that the connecting ends are its own.
    Claimant,
    /// It says that it has accepted whatever it is told of.
    Squatter,
}

pub struct Random(pub u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Candidate {
        conn: usize,
        token: u64,
    },
    Withdraw {
        token: u64,
    },
    Offer {
        token: u64,
        slot: usize,
    },
    Accept {
        token: u64,
        slot: usize,
    },
    Refuse {
        token: u64,
        slot: usize,
        reason: u16,
    },
    Freed {
        slot: usize,
    },
    /// An end has left, and asks the other one to.
    Leave {
        token: u64,
        slot: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Up,
    Broken,
    Gone,
}

/// One end's view of a link's slots.
#[derive(Debug, Default)]
struct Side {
    slots: [Slot; SLOTS],
    /// The connection that a slot is for.
    conns: [usize; SLOTS],
    /// This end has said its last word: a shared word, or `CLOSE` on the lane.
    closed: [bool; SLOTS],
    begun: usize,
    released: usize,
}

struct Link {
    state: LinkState,
    /// Whose connector, or acceptor, is the third process.
    third: Option<usize>,
    queues: [VecDeque<Said>; 2],
    sides: [Side; 2],
}

#[derive(Default)]
struct End {
    open: bool,
    agreement: Option<Agreement>,
    token: u64,
    slot: Option<(usize, usize)>,
    /// There will be none, for good.
    ended: bool,
    noted: bool,
}

impl End {
    fn waits(&self) -> bool {
        self.agreement.is_some_and(|a| a.state() != State::Over)
    }
}

pub struct World {
    peers: Peers,
    third: Third,
    random: Random,
    now: u64,
    links: Vec<Link>,
    conns: [[End; 2]; CONNS],
    /// At the acceptor: link, connection, token.
    claims: Vec<(usize, usize, u64)>,
    /// Claims that are seen once more, when a place may be free.
    soon: Vec<usize>,
    tokens: u64,
    /// More than one process has had a claim.
    contested: [bool; CONNS],
    crashed: bool,
    /// Slots of a link that are used.
    slots: usize,
    faults: bool,
    /// Nothing goes wrong any more.
    calm: bool,
}

const ROLES: [Role; 2] = [Role::Connector, Role::Acceptor];

impl World {
    pub fn new(peers: Peers, third: Third, random: Random, faults: bool) -> World {
        let mut w = World {
            peers,
            third,
            random,
            now: 1,
            links: Vec::new(),
            conns: core::array::from_fn(|_| {
                core::array::from_fn(|_| End { open: true, ..End::default() })
            }),
            claims: Vec::new(),
            soon: Vec::new(),
            tokens: 0,
            contested: [false; CONNS],
            crashed: false,
            slots: 0,
            faults,
            calm: !faults,
        };
        w.slots = 1 + w.random.below(SLOTS);
        w.new_link(None);
        match third {
            Third::Nobody => {}
            Third::Claimant => w.new_link(Some(C)),
            Third::Sibling | Third::Squatter => w.new_link(Some(A)),
        }
        w
    }

    fn new_link(&mut self, third: Option<usize>) {
        let (queues, sides) = Default::default();
        self.links.push(Link { state: LinkState::Up, third, queues, sides });
    }

    fn say(&mut self, link: usize, from: usize, said: Said) {
        let l = &mut self.links[link];
        if l.state == LinkState::Up {
            l.queues[from ^ 1].push_back(said);
        }
    }

    // ---- what may happen ------------------------------------------------------------------------

    pub fn go_on(&mut self) {
        let (conn, side) = (self.random.below(CONNS), self.random.below(2));
        match self.random.below(if self.faults { 40 } else { 36 }) {
            0..=3 => self.note(conn, side),
            4 if self.random.below(2) == 0 => self.close(conn, side),
            5 => self.tick(),
            6 => self.again(conn),
            7..=9 => self.memory_comes_back(),
            36..=37 => self.lose_link(false),
            38 => self.resume(),
            39 if self.random.below(8) == 0 => self.lose_link(true),
            10..=13 if self.third == Third::Claimant => {
                let link = self.thiefs_link();
                self.tokens += 1;
                let token = self.tokens | 1 << 40;
                self.say(link, C, Said::Candidate { conn, token });
            }
            _ => {
                let link = self.random.below(self.links.len());
                self.deliver(link, side);
            }
        }
    }

    fn thiefs_link(&self) -> usize {
        self.links.iter().position(|l| l.third.is_some()).unwrap()
    }

    fn note(&mut self, conn: usize, side: usize) {
        let e = &mut self.conns[conn][side];
        if !e.open || e.waits() || e.slot.is_some() || e.ended {
            return;
        }
        e.agreement = Some(Agreement::new(self.peers, ROLES[side], self.now));
        e.noted = true;
        if side == C {
            self.tokens += 1;
            self.conns[conn][C].token = self.tokens;
            self.announce(conn);
        } else {
            self.see_claims(conn);
        }
    }

    fn announce(&mut self, conn: usize) {
        let e = &self.conns[conn][C];
        let (Some(a), token) = (e.agreement.filter(|_| e.waits()), e.token) else { return };
        for link in 0..self.links.len() {
            let l = &self.links[link];
            let leads = l.state == LinkState::Up && l.third != Some(C);
            if leads && !a.is_told(link) {
                self.step(conn, C, Event::Told { link, now: self.now });
                self.say(link, C, Said::Candidate { conn, token });
            }
        }
    }

    /// Calls of a connection that waits ask for another look.
    fn again(&mut self, conn: usize) {
        let action = self.step(conn, C, Event::Again { now: self.now });
        if action == Action::Seek {
            self.seek(conn);
        }
    }

    fn seek(&mut self, conn: usize) {
        // Advertisers are found whose link is gone.
        if self.peers == Peers::OneHost
            && !self.crashed
            && !self.links.iter().any(|l| l.third.is_none() && l.state == LinkState::Up)
        {
            self.new_link(None);
            for conn in 0..CONNS {
                self.announce(conn);
            }
        }
        self.announce(conn);
    }

    fn step(&mut self, conn: usize, side: usize, event: Event) -> Action {
        let e = &mut self.conns[conn][side];
        let Some(a) = e.agreement.as_mut() else {
            // Nothing of it is left.
            return match event {
                Event::Offer { .. } => Action::Refuse(refuse::WITHDRAWN),
                Event::Accepted(_) => Action::Leave,
                _ => Action::None,
            };
        };
        let action = a.step(event);
        if let Action::End(_) = action {
            e.ended = true;
        }
        action
    }

    fn close(&mut self, conn: usize, side: usize) {
        if !self.conns[conn][side].open {
            return;
        }
        self.conns[conn][side].open = false;
        let token = self.conns[conn][side].token;
        if let Action::Withdraw(links) = self.step(conn, side, Event::Closed) {
            self.withdraw(links, token);
        }
        self.leave(conn, side);
    }

    fn withdraw(&mut self, links: Links, token: u64) {
        for link in 0..self.links.len() {
            if links & bit(link) != 0 {
                self.say(link, C, Said::Withdraw { token });
            }
        }
    }

    /// An end says its last word on its slot; its process's books follow now or later.
    fn leave(&mut self, conn: usize, side: usize) {
        let Some((link, slot)) = self.conns[conn][side].slot.take() else { return };
        self.links[link].sides[side].closed[slot] = true;
        if self.peers == Peers::TwoHosts || self.random.below(2) == 0 {
            self.slot_step(link, side, slot, SlotEvent::Left, 0).unwrap();
        }
    }

    fn slot_step(
        &mut self,
        link: usize,
        side: usize,
        slot: usize,
        event: SlotEvent,
        token: u64,
    ) -> Result<SlotAction, netacc_proto::agreement::Malformed> {
        let s = &mut self.links[link].sides[side];
        let was = s.slots[slot].state;
        let action = s.slots[slot].step(event, token, self.peers, ROLES[side])?;
        if was == SlotState::Free && s.slots[slot].state != SlotState::Free {
            s.begun += 1;
            s.closed[slot] = false;
        }
        if action == SlotAction::Release {
            assert_ne!(was, SlotState::Free);
            s.released += 1;
            if side == C && self.peers == Peers::TwoHosts {
                self.say(link, C, Said::Freed { slot });
            }
        }
        Ok(action)
    }

    /// Slots that both ends have left.
    fn memory_comes_back(&mut self) {
        for link in 0..self.links.len() {
            for (slot, side) in (0..SLOTS).flat_map(|slot| [(slot, C), (slot, A)]) {
                let l = &self.links[link];
                if l.state == LinkState::Gone || self.random.below(2) == 0 {
                    continue;
                }
                let (own, peer) = (&l.sides[side], &l.sides[side ^ 1]);
                let closed = own.closed[slot];
                // (Or serves another connection there.)
                let both = peer.closed[slot] || peer.slots[slot].token != own.slots[slot].token;
                if closed && own.slots[slot].is_live() {
                    self.slot_step(link, side, slot, SlotEvent::Left, 0).unwrap();
                }
                if closed && both {
                    self.slot_step(link, side, slot, SlotEvent::Back, 0).unwrap();
                }
            }
        }
        for conn in core::mem::take(&mut self.soon) {
            self.see_claims(conn);
        }
    }

    fn tick(&mut self) {
        let due = |e: &End| e.agreement.map_or(0, |a| a.due());
        let next = self.conns.iter().flatten().map(due).filter(|d| *d != 0).min();
        let Some(now) = next else { return };
        self.now = self.now.max(now);
        for (conn, side) in (0..CONNS).flat_map(|conn| [(conn, C), (conn, A)]) {
            let claimed = self.claims.iter().any(|c| c.1 == conn);
            let tick = Event::Tick { now: self.now, claimed, known: true };
            if self.step(conn, side, tick) == Action::Seek {
                self.seek(conn);
            }
        }
    }

    /// A link breaks, and everything that is on its way; `for_good`: or its processes part.
    fn lose_link(&mut self, for_good: bool) {
        let link = self.random.below(self.links.len());
        let for_good = for_good || self.peers == Peers::OneHost;
        let l = &mut self.links[link];
        if l.state == LinkState::Gone || (l.state == LinkState::Broken && !for_good) {
            return;
        }
        l.queues.iter_mut().for_each(VecDeque::clear);
        l.state = if for_good { LinkState::Gone } else { LinkState::Broken };
        if for_good && self.peers == Peers::TwoHosts && l.third.is_none() {
            self.crashed = true;
        }
        self.claims.retain(|c| c.0 != link);
        for conn in 0..CONNS {
            let gone = Event::LinkGone { link, now: self.now };
            let seek = self.step(conn, C, gone) == Action::Seek;
            if for_good {
                self.step(conn, A, gone);
                for side in [C, A] {
                    let e = &mut self.conns[conn][side];
                    e.slot = e.slot.filter(|s| s.0 != link);
                }
            }
            if seek {
                self.seek(conn);
            }
        }
        for slot in 0..SLOTS {
            self.slot_step(link, A, slot, SlotEvent::LinkGone, 0).unwrap();
            if for_good {
                self.slot_step(link, A, slot, SlotEvent::TakeBack, 0).unwrap();
            }
            let state = self.links[link].sides[A].slots[slot].state;
            assert!(state != SlotState::Done && !(for_good && state == SlotState::Offered));
        }
    }

    /// Both ends say once more what the other may not know.
    fn resume(&mut self) {
        for link in 0..self.links.len() {
            if self.links[link].state != LinkState::Broken {
                continue;
            }
            self.links[link].state = LinkState::Up;
            for slot in 0..SLOTS {
                let [c, a] = [C, A].map(|side| self.links[link].sides[side].slots[slot]);
                if a.state == SlotState::Offered {
                    self.say(link, A, Said::Offer { token: a.token, slot });
                }
                if c.is_free() {
                    self.say(link, C, Said::Freed { slot });
                }
                for (side, s) in [(C, c), (A, a)] {
                    if s.state == SlotState::Left {
                        self.say(link, side, Said::Leave { token: s.token, slot });
                    }
                }
            }
        }
        for conn in 0..CONNS {
            self.announce(conn);
        }
    }

    // ---- messages -------------------------------------------------------------------------------

    fn deliver(&mut self, link: usize, to: usize) -> bool {
        let Some(said) = self.links[link].queues[to].pop_front() else { return false };
        let again =
            matches!(said, Said::Accept { .. } | Said::Freed { .. } | Said::Withdraw { .. });
        if again && !self.calm && self.peers == Peers::TwoHosts && self.random.below(8) == 0 {
            // As after a link has broken.
            self.links[link].queues[to].push_front(said);
        }
        match said {
            Said::Candidate { conn, token } if self.links[link].third != Some(A) => {
                self.on_candidate(link, conn, token)
            }
            // A sibling has nothing to say; who squats offers.
            Said::Candidate { token, .. } if self.third == Third::Squatter => {
                let slot = self.random.below(SLOTS);
                if self.links[link].sides[A].slots[slot].is_free() {
                    self.slot_step(link, A, slot, SlotEvent::Offer, token).unwrap();
                    self.say(link, A, Said::Offer { token, slot });
                }
            }
            Said::Candidate { .. } => {}
            Said::Withdraw { token } => self.claims.retain(|c| (c.0, c.2) != (link, token)),
            Said::Offer { token, slot } => self.on_offer(link, token, slot),
            Said::Accept { token, slot } => self.on_accept(link, token, slot),
            Said::Refuse { token, slot, reason } => self.on_refuse(link, token, slot, reason),
            Said::Freed { slot } => {
                self.slot_step(link, A, slot, SlotEvent::Freed, 0).unwrap();
            }
            Said::Leave { token, slot } => {
                let there = self.links[link].sides[to].slots[slot].token == token;
                let conn = self.conns.iter().position(|c| c[to].slot == Some((link, slot)));
                if let Some(conn) = conn.filter(|_| there) {
                    self.conns[conn][to].ended = true;
                    self.leave(conn, to);
                }
            }
        }
        true
    }

    fn on_candidate(&mut self, link: usize, conn: usize, token: u64) {
        let e = &self.conns[conn][A];
        let claimed = self.claims.iter().filter(|c| c.1 == conn).map(|c| bit(c.0));
        let offered = e.agreement.and_then(|a| a.offered()).map(bit);
        let held = e.slot.map(|s| bit(s.0));
        let all = claimed.chain(offered).chain(held).fold(bit(link), |all, b| all | b);
        let e = &self.conns[conn][A];
        // (Of one that is not known yet there is nothing to end.)
        self.contested[conn] |= self.peers == Peers::TwoHosts
            && all.count_ones() > 1
            && (e.waits() || e.slot.is_some());
        if Agreement::is_contested(self.peers, all.count_ones() as usize) {
            self.claims.retain(|c| c.1 != conn);
            self.step(conn, A, Event::Contested);
            if let Some((link, slot)) = self.conns[conn][A].slot {
                self.conns[conn][A].ended = true;
                let token = self.links[link].sides[A].slots[slot].token;
                self.say(link, A, Said::Leave { token, slot });
                self.leave(conn, A);
            }
            return;
        }
        self.claims.retain(|c| (c.0, c.1) != (link, conn));
        self.claims.push((link, conn, token));
        self.see_claims(conn);
    }

    fn see_claims(&mut self, conn: usize) {
        for _ in 0..4 {
            let claims = self.claims.iter().filter(|c| c.1 == conn);
            let claims = claims.fold(0, |all, c| all | bit(c.0));
            let Action::Prove(link) = self.step(conn, A, Event::Claims(claims)) else { return };
            let at = self.claims.iter().position(|c| (c.0, c.1) == (link, conn)).unwrap();
            let token = self.claims[at].2;
            let thief = self.links[link].third == Some(C);
            // (Between hosts a thief may have guessed.)
            let shown = match self.peers {
                Peers::OneHost => !thief && self.conns[conn][C].waits(),
                Peers::TwoHosts => !thief || self.random.below(2) == 0,
            };
            if !shown {
                self.claims.remove(at);
                if self.step(conn, A, Event::Unproven(link)) != Action::SeeClaims {
                    return;
                }
                continue;
            }
            let free = self.links[link].sides[A].slots[..self.slots].iter().position(Slot::is_free);
            // Its place may be free later.
            let Some(slot) = free else { return self.soon.push(conn) };
            self.claims.remove(at);
            self.step(conn, A, Event::Offered(link));
            self.slot_step(link, A, slot, SlotEvent::Offer, token).unwrap();
            self.links[link].sides[A].conns[slot] = conn;
            self.say(link, A, Said::Offer { token, slot });
            return;
        }
    }

    fn on_offer(&mut self, link: usize, token: u64, slot: usize) {
        if self.links[link].third == Some(C) {
            // The thief takes it.
            if self.links[link].sides[C].slots[slot].is_free() {
                self.slot_step(link, C, slot, SlotEvent::TakeUp, token).unwrap();
            }
            return self.say(link, C, Said::Accept { token, slot });
        }
        let s = &self.links[link].sides[C];
        if s.slots[slot].is_live() && s.closed[slot] && self.peers == Peers::OneHost {
            self.slot_step(link, C, slot, SlotEvent::Left, 0).unwrap();
        }
        let s = self.links[link].sides[C].slots[slot];
        if self.peers == Peers::TwoHosts && !s.is_free() && s.token == token {
            self.say(link, C, Said::Accept { token, slot });
            if s.state == SlotState::Left {
                // What the acceptor says of it is answered so.
                self.say(link, C, Said::Leave { token, slot });
            }
            return;
        }
        let Some(conn) = self.conns.iter().position(|c| c[C].token == token) else {
            return self.say(link, C, Said::Refuse { token, slot, reason: refuse::WITHDRAWN });
        };
        // Somebody else has offered for it before.
        let rival = self.conns[conn][C].slot.filter(|at| at.0 != link);
        if let (Some((link, slot)), Peers::TwoHosts) = (rival, self.peers) {
            self.contested[conn] = true;
            self.conns[conn][C].ended = true;
            self.say(link, C, Said::Leave { token, slot });
            self.leave(conn, C);
        }
        let flaw = match self.peers {
            Peers::OneHost if self.links[link].third.is_some() => Some(refuse::NOT_AUTHENTICATED),
            _ if !s.is_free() => {
                assert!(self.faults, "a slot is given away that the connector has");
                Some(refuse::BUSY)
            }
            _ if !self.calm && self.random.below(8) == 0 => Some(refuse::NO_MEMORY),
            _ if !self.calm && self.random.below(8) == 0 => Some(refuse::LESS_MEMORY),
            _ => None,
        };
        match self.step(conn, C, Event::Offer { link, flaw }) {
            Action::TakeUp(others) => {
                self.slot_step(link, C, slot, SlotEvent::TakeUp, token).unwrap();
                self.conns[conn][C].slot = Some((link, slot));
                self.say(link, C, Said::Accept { token, slot });
                self.withdraw(others, token);
            }
            Action::Refuse(reason) => self.say(link, C, Said::Refuse { token, slot, reason }),
            other => panic!("{other:?} of an offer"),
        }
    }

    fn on_accept(&mut self, link: usize, token: u64, slot: usize) {
        if self.slot_step(link, A, slot, SlotEvent::Accept, token).unwrap() != SlotAction::Open {
            return;
        }
        if self.links[link].third == Some(A) {
            return;
        }
        let conn = self.links[link].sides[A].conns[slot];
        self.claims.retain(|c| (c.0, c.2) != (link, token));
        match self.step(conn, A, Event::Accepted(link)) {
            Action::HandOver => self.conns[conn][A].slot = Some((link, slot)),
            Action::Leave => {
                self.links[link].sides[A].closed[slot] = true;
                self.slot_step(link, A, slot, SlotEvent::Left, 0).unwrap();
                self.say(link, A, Said::Leave { token, slot });
            }
            other => panic!("{other:?} of an answer"),
        }
    }

    fn on_refuse(&mut self, link: usize, token: u64, slot: usize, reason: u16) {
        let conn = self.links[link].sides[A].conns[slot];
        self.slot_step(link, A, slot, SlotEvent::Refuse, token).unwrap();
        if self.links[link].third == Some(A) {
            return;
        }
        match self.step(conn, A, Event::Refused { link, reason }) {
            Action::SeeClaims => self.see_claims(conn),
            Action::SeeClaimsSoon => {
                self.claims.push((link, conn, token));
                self.soon.push(conn);
            }
            Action::None | Action::End(_) => {}
            other => panic!("{other:?} of a refusal"),
        }
    }

    // ---- the oracle -----------------------------------------------------------------------------

    fn empty_queues(&mut self) {
        loop {
            let mut any = false;
            for (link, to) in (0..self.links.len()).flat_map(|link| [(link, C), (link, A)]) {
                while self.deliver(link, to) {
                    any = true;
                }
            }
            if !any {
                return;
            }
        }
    }

    /// Nothing goes wrong any more, and every connection is used on.
    pub fn settle(&mut self) {
        self.calm = true;
        for _ in 0..12 {
            self.resume();
            self.empty_queues();
            for conn in 0..CONNS {
                self.note(conn, C);
                self.note(conn, A);
                self.again(conn);
            }
            self.empty_queues();
            self.memory_comes_back();
        }
        self.empty_queues();
    }

    pub fn attached(&self) -> usize {
        self.conns.iter().filter(|c| c[C].slot.is_some() && c[A].slot.is_some()).count()
    }

    /// No slot is given twice.
    pub fn check_always(&self) {
        for side in [C, A] {
            let mut all: Vec<_> = self.conns.iter().filter_map(|c| c[side].slot).collect();
            for (link, slot) in &all {
                assert!(self.links[*link].sides[side].slots[*slot].is_live());
            }
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), self.conns.iter().filter(|c| c[side].slot.is_some()).count());
        }
    }

    pub fn check(&self) {
        self.check_always();
        for (i, [c, a]) in self.conns.iter().enumerate() {
            let real = |e: &End| e.slot.filter(|s| self.links[s.0].third.is_none());
            if c.open && a.open {
                assert_eq!(real(c), real(a), "connection {i}: both ends with one slot, or without");
            }
            if self.peers == Peers::OneHost {
                assert!([c, a].iter().all(|e| real(e) == e.slot), "{i}: a thief has an end");
            }
            if self.contested[i] && c.open && a.open {
                assert_eq!(a.slot, None, "connection {i}: neither claim is believed");
            }
            // Slots are left over for all that are open, so nobody has to wait.
            let open = self.conns.iter().filter(|c| c[C].open || c[A].open).count();
            let agreed = real(c).is_some();
            let ended = c.ended || a.ended || c.slot.is_some();
            let thief = self.third == Third::Squatter || self.third == Third::Claimant;
            let must = !(self.crashed || ended || thief && self.peers == Peers::TwoHosts);
            if must && c.open && a.open && open <= self.slots {
                assert!(agreed, "connection {i} waits for ever");
            }
            let offered = a.agreement.and_then(|a| a.offered());
            assert!(
                offered.is_none_or(|link| self.links[link].third.is_some()),
                "connection {i} waits for an answer"
            );
        }
    }

    pub fn close_all(&mut self) {
        for (conn, side) in (0..CONNS).flat_map(|conn| [(conn, C), (conn, A)]) {
            self.close(conn, side);
        }
        // A thief lets go, too.
        for l in self.links.iter_mut().filter(|l| l.third.is_some()) {
            let side = l.third.unwrap();
            for slot in 0..SLOTS {
                l.sides[side].closed[slot] |= l.sides[side].slots[slot].is_live();
            }
        }
        for _ in 0..40 {
            self.resume();
            self.empty_queues();
            self.memory_comes_back();
        }
        for l in self.links.iter().filter(|l| l.state == LinkState::Up && l.third.is_none()) {
            for s in &l.sides {
                assert!(s.slots.iter().all(Slot::is_free), "slots are left: {:?}", l.sides);
                assert_eq!(s.begun, s.released, "each is released once");
            }
        }
    }
}
