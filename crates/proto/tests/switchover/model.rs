//! A model of one direction: a sender process, a carrier, a fast path, shared words and a receiver
//! process.
//!
//! Every [`Action`] is one step that no other can divide: one load of a shared word, one store that
//! becomes visible, one kernel call, one move of bytes by the network. Stores pass through a FIFO
//! store buffer per process (total store order), so that a missing fence shows. The halves under
//! test are driven exactly as their documentation says; [`Mutant`] leaves out one rule at a time.
//!
//! The oracle: byte `i` that the receiver takes is byte `i` that the sender sent; the end comes
//! exactly where TCP would put it.

use crate::explore::{Model, Violation};
use netacc_proto::switchover::{
    Ack, Action as Due, Announce, Coming, Delivery, EofVerdict, Leave, Path, Peer, Plan, Refused,
    Rx, RxState, RxView, Tx, TxDue, TxState, TxView,
};

/// One rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    None,
    /// The armed receiver loads the announcement and then reads, without having peeked.
    SkipPeek,
    /// The sender promotes although the receiver has not followed to the present epoch.
    PromoteUnacked,
    /// The receiver does not load the announcement again after it saw the end of the carrier.
    SkipReloadAtEof,
    /// The receiver looks whether the fast path is empty before it sees the end of the carrier, not
    /// after.
    EmptyBeforeEof,
    /// The sender does not load the ack again after it published a promotion.
    SkipConfirm,
    /// No fence between publishing a promotion and that load.
    NoPromoteFence,
    /// No fence between storing the ack of a freeze and loading the announcement.
    NoFreezeFence,
    /// Bytes go on the carrier before the announcement is visible.
    BytesBeforeAnnounce,
    /// The epoch is stored before the offsets.
    EpochFirst,
    /// The receiver does not discard the bytes left on the fast path by a fail-over before it arms
    /// again.
    KeepFastBytes,
    /// The receiver stores the control word before the consumed offset.
    ControlFirst,
    /// The sender demotes from a lossy path while bytes on it are not acknowledged.
    DemoteUnacked,
    /// A receiver gives up the fast path as soon as it has asked for a pull-back, not when it has
    /// been answered.
    GiveUpFrozen,
    /// A receiver that stays gives up the fast path before all has come again on the carrier.
    GiveUpReplaying,
    /// The sender's FIN does not wait for the bytes that must be sent again.
    FinWhileResending,
    /// A sender that dies while bytes must be sent again leaves a FIN.
    NoReset,
    /// It leaves a reset only when it has announced the fail-over and a moment has passed.
    ResetTooLate,
    /// It leaves a FIN again before the last of these bytes is sent.
    ResetEndsTooEarly,
}

impl Mutant {
    pub const ALL: [Self; 18] = [
        Self::SkipPeek,
        Self::PromoteUnacked,
        Self::SkipReloadAtEof,
        Self::EmptyBeforeEof,
        Self::SkipConfirm,
        Self::NoPromoteFence,
        Self::NoFreezeFence,
        Self::BytesBeforeAnnounce,
        Self::EpochFirst,
        Self::KeepFastBytes,
        Self::ControlFirst,
        Self::DemoteUnacked,
        Self::GiveUpFrozen,
        Self::GiveUpReplaying,
        Self::FinWhileResending,
        Self::NoReset,
        Self::ResetTooLate,
        Self::ResetEndsTooEarly,
    ];

    /// A rule for the case that the receiver leaves the library.
    pub const fn is_about_leaving(self) -> bool {
        self as u32 >= Self::GiveUpFrozen as u32
    }
}

/// When the receiver may give up the fast path and read the carrier as any TCP program does, for
/// good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GiveUp {
    Never,
    /// On the carrier, with nothing to come again: whatever happens then, it misses nothing.
    WhenOpen,
    /// As soon as it is released, because the socket goes to somebody who knows no fast path: the
    /// sender's death may cost it bytes, and must then be an error.
    WhenReleased,
}

/// Bounds of one exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    pub delivery: Delivery,
    pub bytes: u8,
    pub chunk: u8,
    pub promotes: u8,
    pub demotes: u8,
    pub arms: u8,
    pub freezes: u8,
    pub carrier_cap: u8,
    pub fast_cap: u8,
    /// The sender's process may die.
    pub crash: bool,
    pub gives_up: GiveUp,
    pub mutant: Mutant,
    /// Where the stream starts.
    pub epoch: u32,
    pub offset: u64,
}

impl Config {
    pub const SMALL: Self = Self {
        delivery: Delivery::Reliable,
        bytes: 3,
        chunk: 2,
        promotes: 1,
        demotes: 1,
        arms: 1,
        freezes: 0,
        carrier_cap: 2,
        fast_cap: 2,
        crash: false,
        gives_up: GiveUp::Never,
        mutant: Mutant::None,
        epoch: 0,
        offset: 0,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    // Sender process.
    Send(u8),
    Promote,
    Confirm,
    Demote,
    LoadAckControl,
    LoadAckConsumed,
    Resend(u8),
    /// From here on the sender's death resets the carrier.
    ArmReset,
    AnnounceFailOver,
    /// From here on it ends it with a FIN.
    DisarmReset,
    Trim,
    Shutdown,
    Fin,
    SenderStoreDrains,
    // Faults.
    CrashFin {
        stores_kept: u8,
    },
    CrashReset {
        stores_kept: u8,
    },
    LinkDies,
    // Network.
    CarrierArrives,
    FastArrives,
    // Receiver process.
    Arm,
    Freeze,
    FreezeFenceAndLoadEpoch,
    LoadEpoch,
    LoadFastFrom,
    LoadCarrierFrom,
    LoadResendTo,
    Peek,
    LoadEpochAfterPeek,
    CheckCarrier,
    Read(u8),
    ReadPeeked,
    ReceiverStoreDrains,
    GiveUp,
    ReadCarrier(u8),
    SeeCarrierEnd,
    /// Only in [`Mutant::EmptyBeforeEof`].
    NoteFastEmpty,
}

impl Action {
    pub const fn is_fault(self) -> bool {
        matches!(self, Self::CrashFin { .. } | Self::CrashReset { .. } | Self::LinkDies)
    }
}

/// Stores of one process that others do not see yet.
const STORE_BUFFER: u8 = 8;

/// A FIFO of a few small items; plain data so that a state copies and hashes quickly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fifo<T, const N: usize> {
    pub len: u8,
    items: [T; N],
}

impl<T: Copy + Default, const N: usize> Fifo<T, N> {
    pub fn new() -> Self {
        Self { len: 0, items: [T::default(); N] }
    }

    pub fn push(&mut self, item: T) {
        self.items[usize::from(self.len)] = item;
        self.len += 1;
    }

    pub fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let first = self.items[0];
        self.items.copy_within(1.., 0);
        self.len -= 1;
        self.items[usize::from(self.len)] = T::default();
        Some(first)
    }

    pub fn truncate(&mut self, len: u8) {
        while self.len > len {
            self.len -= 1;
            self.items[usize::from(self.len)] = T::default();
        }
    }
}

/// Bytes on a path, each tagged with its stream offset (modulo 256); the first `arrived` are at the
/// receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pipe {
    bytes: Fifo<u8, 16>,
    arrived: u8,
}

impl Pipe {
    fn new() -> Self {
        Self { bytes: Fifo::new(), arrived: 0 }
    }

    fn take(&mut self) -> Option<u8> {
        if self.arrived == 0 {
            return None;
        }
        self.arrived -= 1;
        self.bytes.pop()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Store {
    #[default]
    Nothing,
    FastFrom(u64),
    CarrierFrom(u64),
    ResendTo(u64),
    Epoch(u32),
    /// The ring's producer index moves over this many bytes.
    Produced(u8),
    Control(u64),
    Consumed(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SenderStage {
    Idle,
    /// A promotion is published, not confirmed.
    Confirming,
    /// The control word of the ack was loaded, the consumed offset was not.
    AckControl(u64),
    /// A fail-over with bytes to send again: is its death a reset, is it announced?
    FailingOver {
        announce: Announce,
        announced: bool,
    },
    /// The last byte was sent again.
    ResentAll,
    FinPending,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Why {
    Plain,
    Peeked(u8),
    CarrierReadable,
    CarrierEnded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ReceiverStage {
    Idle,
    FreezeFence,
    Peeked(u8),
    /// The epoch was loaded; `next` offsets were.
    Loading {
        why: Why,
        got: Announce,
        next: u8,
    },
    /// Exactly these bytes may be read.
    ReadPeeked(u8),
    /// The receiver saw the end of the carrier or data on it, and has not loaded the announcement
    /// since.
    MustLoad(Why),
    /// Reads the carrier without the library; so much of the stream was taken.
    GivenUp(u64),
    Done(EofVerdict),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CarrierEnd {
    None,
    Fin,
    Reset,
}

/// How the sender ended, for the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Alive,
    /// Shut down, or killed with nothing lost: the receiver must get exactly so many bytes and then
    /// the end.
    Exact(u64),
    /// Bytes were lost with a lossy path or by a reset: a prefix, then the end.
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub config: Config,
    // Sender process.
    pub tx: Tx,
    stage: SenderStage,
    stores: Fifo<Store, { STORE_BUFFER as usize }>,
    // Shared words.
    announce: Announce,
    control: u64,
    consumed: u64,
    // Paths.
    carrier: Pipe,
    on_no_byte: CarrierEnd,
    /// The sender's death resets the carrier.
    resets: bool,
    fast: Pipe,
    link_dead: bool,
    // Receiver process.
    pub rx: Rx,
    receiver: ReceiverStage,
    /// The connection is on its way back, as the receiver's process sees it.
    leave: Option<Leave>,
    ack_stores: Fifo<Store, { STORE_BUFFER as usize }>,
    /// What was stored in the control word last.
    stored_control: u64,
    /// Epoch of the last announcement that the receiver followed: the offsets need not be loaded
    /// again.
    known_epoch: u32,
    noted_empty: bool,
    fate: Fate,
}

/// Runs one world: each byte of `choices` picks the next step; then on at random without faults, to
/// the end.
pub fn run(config: Config, choices: &[u8]) -> Result<World, Violation> {
    let mut world = World::new(config);
    let mut actions = Vec::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for step in 0..choices.len() + 100_000 {
        world.actions(&mut actions);
        let choice = choices.get(step).copied();
        match choice {
            // Faults and the end are rare, so that there is a run before them.
            Some(255) if step % 4 == 0 => {}
            Some(_) if world.config.bytes > 0 => {
                let early = world.rx.epoch() == config.epoch;
                actions.retain(|a| match a {
                    Action::Shutdown => false,
                    // Nothing happens after it.
                    Action::GiveUp => !early,
                    a => !a.is_fault(),
                });
            }
            _ => actions.retain(|a| !a.is_fault()),
        }
        if actions.is_empty() {
            if world.is_finished() {
                return Ok(world);
            }
            if choice.is_some() {
                continue;
            }
            return Err(format!("stuck: {world:?}"));
        }
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = choice.map_or((random >> 33) as usize, usize::from) % actions.len();
        let action = actions[pick];
        world.apply(action).map_err(|violation| format!("{action:?}: {violation}"))?;
    }
    Err(format!("no end after many steps: {world:?}"))
}

impl World {
    pub fn new(config: Config) -> Self {
        let rx = Rx::starting_at(config.epoch, config.offset);
        let ack = rx.ack();
        let tx = Tx::starting_at(config.epoch, config.offset);
        Self {
            config,
            tx,
            stage: SenderStage::Idle,
            stores: Fifo::new(),
            announce: tx.announce(),
            control: ack.control(),
            consumed: ack.consumed,
            carrier: Pipe::new(),
            on_no_byte: CarrierEnd::None,
            resets: false,
            fast: Pipe::new(),
            link_dead: false,
            rx,
            receiver: ReceiverStage::Idle,
            leave: None,
            ack_stores: Fifo::new(),
            stored_control: ack.control(),
            known_epoch: config.epoch,
            noted_empty: false,
            fate: Fate::Alive,
        }
    }

    /// The receiver has delivered the end of the stream.
    pub fn is_finished(&self) -> bool {
        matches!(self.receiver, ReceiverStage::Done(_))
    }

    /// All steps that are possible now.
    pub fn actions(&self, out: &mut Vec<Action>) {
        out.clear();
        if self.is_finished() {
            return;
        }
        self.sender_actions(out);
        if self.carrier.arrived < self.carrier.bytes.len {
            out.push(Action::CarrierArrives);
        }
        if self.config.delivery == Delivery::Lossy && self.fast.arrived < self.fast.bytes.len {
            out.push(Action::FastArrives);
        }
        self.receiver_actions(out);
    }

    fn sender_actions(&self, out: &mut Vec<Action>) {
        use Action as A;
        if self.stores.len > 0 {
            out.push(A::SenderStoreDrains);
        }
        match self.stage {
            SenderStage::Gone => return,
            SenderStage::Idle => self.idle_sender_actions(out),
            SenderStage::Confirming => {
                if self.stores.len == 0 || self.config.mutant == Mutant::NoPromoteFence {
                    out.push(A::Confirm);
                }
            }
            SenderStage::AckControl(_) => out.push(A::LoadAckConsumed),
            SenderStage::FailingOver { announced, .. } => {
                let first = if self.config.mutant == Mutant::ResetTooLate {
                    A::AnnounceFailOver
                } else {
                    A::ArmReset
                };
                out.push(match first {
                    A::ArmReset if self.resets => A::AnnounceFailOver,
                    A::AnnounceFailOver if announced => A::ArmReset,
                    first => first,
                });
            }
            SenderStage::ResentAll => out.push(A::DisarmReset),
            SenderStage::FinPending => out.push(A::Fin),
        }
        if self.config.crash {
            // Stores that were not yet issued when the process died are never seen.
            for stores_kept in 0..=self.stores.len {
                if !self.resets || self.config.mutant == Mutant::NoReset {
                    out.push(A::CrashFin { stores_kept });
                }
                out.push(A::CrashReset { stores_kept });
            }
        }
        if self.config.delivery == Delivery::Lossy
            && self.tx.path() == Path::Fast
            && !self.link_dead
        {
            out.push(A::LinkDies);
        }
    }

    fn idle_sender_actions(&self, out: &mut Vec<Action>) {
        use Action as A;
        let left = self.config.bytes;
        let room = match self.tx.path() {
            Path::Carrier => self.config.carrier_cap.saturating_sub(self.carrier.bytes.len),
            Path::Fast => self.config.fast_cap.saturating_sub(self.fast_in_use()),
        };
        if self.tx.can_accept() {
            for n in 1..=self.config.chunk.min(left).min(room) {
                out.push(A::Send(n));
            }
        }
        if self.tx.state() == TxState::Resending {
            if self.serves(room, false) == TxDue::SendAgain {
                let rest = self.tx.resend();
                let rest = u8::try_from(rest.end - rest.start).unwrap();
                for n in 1..=self.config.chunk.min(rest).min(room) {
                    out.push(A::Resend(n));
                }
            }
            if self.resets && self.config.mutant == Mutant::ResetEndsTooEarly {
                out.push(A::DisarmReset);
            }
        }
        if self.tx.state() == TxState::Carrier && self.config.promotes > 0 {
            out.push(A::Promote);
        }
        if self.tx.state() == TxState::Fast {
            if self.config.demotes > 0 {
                out.push(A::Demote);
            }
            out.push(A::LoadAckControl);
            if self.config.delivery == Delivery::Lossy {
                out.push(A::Trim);
            }
        }
        out.push(A::Shutdown);
    }

    /// What the library's machine has a sender do that serves a peer.
    fn serves(&self, room: u8, asked: bool) -> TxDue {
        let view = TxView {
            delivery: self.config.delivery,
            state: self.tx.state(),
            open: true,
            asked,
            room: room > 0,
            peer: Peer::Lives,
            leaves: false,
        };
        view.next()
    }

    /// Bytes that occupy the fast path, produced or about to be.
    fn fast_in_use(&self) -> u8 {
        match self.config.delivery {
            Delivery::Reliable => self.fast.bytes.len,
            Delivery::Lossy => {
                let kept = self.tx.unacked();
                u8::try_from(kept.end - kept.start).unwrap()
            }
        }
    }

    fn receiver_actions(&self, out: &mut Vec<Action>) {
        use Action as A;
        if self.ack_stores.len > 0 {
            out.push(A::ReceiverStoreDrains);
        }
        match self.receiver {
            ReceiverStage::Idle => self.idle_receiver_actions(out),
            ReceiverStage::FreezeFence => {
                if self.ack_stores.len == 0 || self.config.mutant == Mutant::NoFreezeFence {
                    out.push(A::FreezeFenceAndLoadEpoch);
                }
            }
            ReceiverStage::Peeked(_) => out.push(A::LoadEpochAfterPeek),
            ReceiverStage::MustLoad(_) => out.push(A::LoadEpoch),
            ReceiverStage::Loading { next, .. } => {
                out.push([A::LoadFastFrom, A::LoadCarrierFrom, A::LoadResendTo][usize::from(next)]);
            }
            ReceiverStage::ReadPeeked(_) => out.push(A::ReadPeeked),
            ReceiverStage::GivenUp(_) => {
                for n in 1..=self.carrier.arrived.min(self.config.chunk) {
                    out.push(A::ReadCarrier(n));
                }
                if self.carrier_ended() {
                    out.push(A::SeeCarrierEnd);
                }
            }
            ReceiverStage::Done(_) => {}
        }
    }

    fn idle_receiver_actions(&self, out: &mut Vec<Action>) {
        use Action as A;
        if self.config.arms > 0 && matches!(self.rx.state(), RxState::Open | RxState::Disarming) {
            out.push(A::Arm);
        }
        let may_freeze = self.config.freezes > 0 || self.link_dead;
        if may_freeze
            && !matches!(self.rx.state(), RxState::Open | RxState::Frozen | RxState::FrozenToFast)
        {
            out.push(A::Freeze);
        }
        if self.rx.state() != RxState::Open {
            out.push(A::LoadEpoch);
        }
        if self.may_give_up() {
            out.push(A::GiveUp);
        }
        if self.config.mutant == Mutant::EmptyBeforeEof
            && self.fast.arrived == 0
            && !self.noted_empty
        {
            out.push(A::NoteFastEmpty);
        }
        match self.rx.plan() {
            Plan::Carrier { peek_first: true, .. } => {
                if self.carrier.arrived > 0 || self.carrier_ended() {
                    out.push(A::Peek);
                }
            }
            Plan::Carrier { limit, peek_first: false } => {
                self.read_actions(out, self.carrier.arrived, limit)
            }
            Plan::Fast { limit } => self.read_actions(out, self.fast.arrived, limit),
            Plan::Wait => {}
        }
        let reads_carrier = matches!(self.rx.plan(), Plan::Carrier { peek_first: false, .. });
        let has_data = self.carrier.arrived > 0;
        let checks_carrier =
            if reads_carrier { !has_data } else { !matches!(self.rx.plan(), Plan::Carrier { .. }) };
        if checks_carrier && (has_data || self.carrier_ended()) {
            out.push(A::CheckCarrier);
        }
    }

    /// The library's machine says that the connection is the kernel's.
    fn may_give_up(&self) -> bool {
        let strict = match self.config.gives_up {
            GiveUp::Never => return false,
            GiveUp::WhenOpen => false,
            GiveUp::WhenReleased => true,
        };
        let has_come = u64::from(self.carrier.arrived) >= self.rx.outstanding();
        let coming = match (strict, self.config.mutant) {
            // Any moment may be the last that they are waited for.
            (true, _) => Coming::Short,
            (false, Mutant::GiveUpReplaying) => Coming::All,
            _ if has_come => Coming::All,
            _ => Coming::Waiting,
        };
        let state = match self.rx.state() {
            RxState::Frozen | RxState::FrozenToFast
                if self.config.mutant == Mutant::GiveUpFrozen =>
            {
                RxState::Open
            }
            state => state,
        };
        let rx = RxView { state, coming, unread: true, peer: Peer::Lives };
        let tx = TxView {
            delivery: self.config.delivery,
            state: TxState::Carrier,
            open: true,
            asked: false,
            room: true,
            peer: Peer::Lives,
            leaves: true,
        };
        // (One that has not begun is not kept from that where nothing is armed.)
        let begun = self.leave.or((state == RxState::Open).then_some(Leave::new(strict)));
        let Some(mut leave) = begun else { return false };
        let due = match leave.step(tx, rx, false) {
            Due::Freeze => leave.step(tx, rx, false),
            due => due,
        };
        due == Due::Become
    }

    fn read_actions(&self, out: &mut Vec<Action>, available: u8, limit: u64) {
        let most = available.min(self.config.chunk).min(u8::try_from(limit).unwrap_or(u8::MAX));
        for n in 1..=most {
            out.push(Action::Read(n));
        }
    }

    fn carrier_ended(&self) -> bool {
        self.on_no_byte != CarrierEnd::None && self.carrier.bytes.len == 0
    }

    /// One step.
    pub fn apply(&mut self, action: Action) -> Result<(), Violation> {
        use Action as A;
        match action {
            A::Send(n) => self.send(n)?,
            A::Promote => {
                let mut ack = Ack::from_words(self.control, 0);
                if self.config.mutant == Mutant::PromoteUnacked {
                    ack.epoch = self.tx.epoch();
                }
                let delivery = match self.config.mutant {
                    Mutant::DemoteUnacked => Delivery::Reliable,
                    _ => self.config.delivery,
                };
                match self.tx.promote(ack, delivery) {
                    Ok(announce) => {
                        self.config.promotes -= 1;
                        self.publish(&[
                            Store::FastFrom(announce.fast_from),
                            Store::Epoch(announce.epoch),
                        ]);
                        self.link_dead = false;
                        self.stage = SenderStage::Confirming;
                    }
                    Err(Refused::NotArmed | Refused::NotFollowed) => {}
                    Err(refused) => return Err(format!("promote: {refused:?}")),
                }
            }
            A::Confirm => {
                let mut ack = Ack::from_words(self.control, 0);
                if self.config.mutant == Mutant::SkipConfirm {
                    ack = Ack { armed: true, frozen: false, ..ack };
                }
                if let Some(announce) =
                    self.tx.confirm(ack).map_err(|e| format!("confirm: {e:?}"))?
                {
                    self.publish_demotion(announce);
                }
                self.stage = SenderStage::Idle;
            }
            A::Demote => match self.tx.demote() {
                Ok(announce) => {
                    self.config.demotes -= 1;
                    self.publish_demotion(announce);
                }
                Err(Refused::Unacked) if self.config.delivery == Delivery::Lossy => {}
                Err(refused) => return Err(format!("demote: {refused:?}")),
            },
            A::LoadAckControl => {
                let asked = Ack::from_words(self.control, 0).frozen;
                if self.serves(0, asked) == TxDue::PullBack {
                    self.stage = SenderStage::AckControl(self.control);
                }
            }
            A::LoadAckConsumed => {
                let SenderStage::AckControl(control) = self.stage else { unreachable!() };
                self.stage = SenderStage::Idle;
                let ack = Ack::from_words(control, self.consumed);
                if let Some(fail_over) =
                    self.tx.pull_back(ack).map_err(|e| format!("pull_back: {e:?}"))?
                {
                    if fail_over.resend != self.tx.resend() {
                        return Err("fail_over and resend() disagree".into());
                    }
                    if fail_over.resend.is_empty() || self.config.gives_up == GiveUp::Never {
                        self.publish_demotion(fail_over.announce);
                    } else {
                        self.stage = SenderStage::FailingOver {
                            announce: fail_over.announce,
                            announced: false,
                        };
                    }
                }
            }
            A::ArmReset => {
                self.sender_kernel_call();
                self.resets = true;
                if let SenderStage::FailingOver { announced: true, .. } = self.stage {
                    self.stage = SenderStage::Idle;
                }
            }
            A::AnnounceFailOver => {
                let SenderStage::FailingOver { announce, .. } = self.stage else { unreachable!() };
                self.publish_demotion(announce);
                self.stage = if self.resets {
                    SenderStage::Idle
                } else {
                    SenderStage::FailingOver { announce, announced: true }
                };
            }
            A::DisarmReset => {
                self.sender_kernel_call();
                self.resets = false;
                self.stage = SenderStage::Idle;
            }
            A::Resend(n) => {
                self.sender_kernel_call();
                for i in 0..n {
                    self.carrier.bytes.push(tag(self.tx.resend().start + u64::from(i)));
                }
                self.tx.on_resent(u64::from(n)).map_err(|e| format!("on_resent: {e:?}"))?;
                if self.resets && self.tx.state() != TxState::Resending {
                    self.stage = SenderStage::ResentAll;
                }
            }
            A::Trim => self.tx.acked(self.consumed).map_err(|e| format!("acked: {e:?}"))?,
            A::Shutdown => match self.tx.shutdown() {
                Ok(announce) => {
                    if let Some(announce) = announce {
                        self.publish_demotion(announce);
                    }
                    self.stage = SenderStage::FinPending;
                }
                Err(Refused::Unacked) if self.config.delivery == Delivery::Lossy => {}
                Err(Refused::State(TxState::Resending)) => {
                    if self.config.mutant == Mutant::FinWhileResending {
                        self.stage = SenderStage::FinPending;
                    }
                }
                Err(refused) => return Err(format!("shutdown: {refused:?}")),
            },
            A::Fin => {
                self.sender_kernel_call();
                self.on_no_byte = CarrierEnd::Fin;
                self.stage = SenderStage::Gone;
                self.fate = Fate::Exact(self.tx.offset());
            }
            A::SenderStoreDrains => self.drain_sender_store(),
            A::CrashFin { stores_kept } => self.crash(stores_kept, CarrierEnd::Fin),
            A::CrashReset { stores_kept } => self.crash(stores_kept, CarrierEnd::Reset),
            A::LinkDies => {
                self.link_dead = true;
                self.fast.bytes.truncate(self.fast.arrived);
            }
            A::CarrierArrives => self.carrier.arrived += 1,
            A::FastArrives => self.fast.arrived += 1,
            _ => self.apply_receiver(action)?,
        }
        self.check()
    }

    fn send(&mut self, n: u8) -> Result<(), Violation> {
        self.config.bytes -= n;
        let from = self.tx.offset();
        match self.tx.path() {
            Path::Carrier => {
                self.sender_kernel_call();
                for i in 0..n {
                    self.carrier.bytes.push(tag(from + u64::from(i)));
                }
            }
            Path::Fast => {
                if !self.link_dead {
                    for i in 0..n {
                        self.fast.bytes.push(tag(from + u64::from(i)));
                    }
                }
                if self.config.delivery == Delivery::Reliable {
                    self.sender_store(Store::Produced(n));
                }
            }
        }
        self.tx.on_accepted(u64::from(n)).map_err(|e| format!("on_accepted: {e:?}"))
    }

    fn publish_demotion(&mut self, announce: Announce) {
        self.publish(&[
            Store::CarrierFrom(announce.carrier_from),
            Store::ResendTo(announce.resend_to),
            Store::Epoch(announce.epoch),
        ]);
    }

    fn publish(&mut self, stores: &[Store]) {
        if self.config.mutant == Mutant::EpochFirst {
            stores.iter().rev().for_each(|s| self.sender_store(*s));
        } else {
            stores.iter().for_each(|s| self.sender_store(*s));
        }
    }

    fn sender_store(&mut self, store: Store) {
        if self.stores.len == STORE_BUFFER {
            self.drain_sender_store();
        }
        self.stores.push(store);
    }

    fn receiver_store(&mut self, store: Store) {
        if self.ack_stores.len == STORE_BUFFER {
            self.drain_receiver_store();
        }
        self.ack_stores.push(store);
    }

    /// Whoever sees the effect of a kernel call also sees the stores before it.
    fn sender_kernel_call(&mut self) {
        while self.config.mutant != Mutant::BytesBeforeAnnounce && self.stores.len > 0 {
            self.drain_sender_store();
        }
    }

    fn drain_sender_store(&mut self) {
        match self.stores.pop() {
            Some(Store::FastFrom(v)) => self.announce.fast_from = v,
            Some(Store::CarrierFrom(v)) => self.announce.carrier_from = v,
            Some(Store::ResendTo(v)) => self.announce.resend_to = v,
            Some(Store::Epoch(v)) => self.announce.epoch = v,
            Some(Store::Produced(n)) => self.fast.arrived += n,
            other => unreachable!("{other:?}"),
        }
    }

    fn crash(&mut self, stores_kept: u8, end: CarrierEnd) {
        self.stores.truncate(stores_kept);
        while self.stores.len > 0 {
            self.drain_sender_store();
        }
        let mut lost = false;
        let mut sent = self.tx.offset();
        if self.config.delivery == Delivery::Reliable {
            // Bytes that were copied but never produced were never sent.
            sent -= u64::from(self.fast.bytes.len - self.fast.arrived);
            self.fast.bytes.truncate(self.fast.arrived);
        } else {
            lost |= self.tx.unacked() != (sent..sent);
        }
        if end == CarrierEnd::Reset {
            lost |= self.swallows_bytes();
            self.carrier.bytes.truncate(self.carrier.arrived);
        }
        self.on_no_byte = end;
        self.stage = SenderStage::Gone;
        self.fate = if lost {
            Fate::Cut
        } else if self.fate == Fate::Alive {
            Fate::Exact(sent)
        } else {
            self.fate
        };
    }

    /// A reset now loses bytes for ever: the carrier's that are on their way, unless the fast path
    /// has them too.
    fn swallows_bytes(&self) -> bool {
        let again = self.announce.carrier_from..self.announce.resend_to;
        let kept = self.config.delivery == Delivery::Reliable && self.announce.epoch & 1 == 0;
        let on_the_way = usize::from(self.carrier.arrived)..usize::from(self.carrier.bytes.len);
        self.carrier.bytes.items[on_the_way]
            .iter()
            .any(|&lost| !kept || !again.clone().any(|offset| tag(offset) == lost))
    }

    fn apply_receiver(&mut self, action: Action) -> Result<(), Violation> {
        use Action as A;
        match action {
            A::Arm => {
                self.config.arms -= 1;
                let released = self.rx.is_released();
                self.leave = None;
                if !self.rx.arm() {
                    return Err("arm refused".into());
                }
                if released && self.config.mutant != Mutant::KeepFastBytes {
                    self.fast = Pipe::new();
                }
                self.store_ack();
            }
            A::Freeze => {
                self.config.freezes = self.config.freezes.saturating_sub(1);
                self.leave = Some(Leave::new(self.config.gives_up == GiveUp::WhenReleased));
                self.rx.freeze();
                self.store_ack();
                self.receiver = ReceiverStage::FreezeFence;
            }
            A::FreezeFenceAndLoadEpoch => self.load_epoch(Why::Plain)?,
            A::LoadEpoch => {
                let why = match self.receiver {
                    ReceiverStage::MustLoad(why) => why,
                    _ => Why::Plain,
                };
                if matches!(why, Why::CarrierEnded) && self.config.mutant == Mutant::SkipReloadAtEof
                {
                    let stale = Announce { epoch: self.known_epoch, ..Announce::default() };
                    self.finish_load(why, stale)?;
                } else {
                    self.load_epoch(why)?;
                }
            }
            A::LoadEpochAfterPeek => {
                let ReceiverStage::Peeked(n) = self.receiver else { unreachable!() };
                self.load_epoch(Why::Peeked(n))?;
            }
            A::LoadFastFrom | A::LoadCarrierFrom | A::LoadResendTo => {
                let ReceiverStage::Loading { why, mut got, next } = self.receiver else {
                    unreachable!()
                };
                match action {
                    A::LoadFastFrom => got.fast_from = self.announce.fast_from,
                    A::LoadCarrierFrom => got.carrier_from = self.announce.carrier_from,
                    _ => got.resend_to = self.announce.resend_to,
                }
                if next < 2 {
                    self.receiver = ReceiverStage::Loading { why, got, next: next + 1 };
                } else {
                    self.finish_load(why, got)?;
                }
            }
            A::Peek => {
                self.receiver_kernel_call();
                if self.carrier.arrived == 0 {
                    self.receiver = ReceiverStage::MustLoad(Why::CarrierEnded);
                } else if self.config.mutant == Mutant::SkipPeek {
                    // Not a peek at all: remember only that the announcement has to be loaded now.
                    self.receiver = ReceiverStage::Peeked(u8::MAX);
                } else {
                    self.receiver =
                        ReceiverStage::Peeked(self.carrier.arrived.min(self.config.chunk));
                }
            }
            A::CheckCarrier => {
                self.receiver_kernel_call();
                self.receiver = ReceiverStage::MustLoad(if self.carrier.arrived > 0 {
                    Why::CarrierReadable
                } else {
                    Why::CarrierEnded
                });
            }
            A::Read(n) => self.read(n)?,
            A::ReadPeeked => {
                let ReceiverStage::ReadPeeked(n) = self.receiver else { unreachable!() };
                self.receiver = ReceiverStage::Idle;
                self.read(n.min(self.carrier.arrived))?;
            }
            A::ReceiverStoreDrains => self.drain_receiver_store(),
            A::NoteFastEmpty => self.noted_empty = true,
            A::GiveUp => self.receiver = ReceiverStage::GivenUp(self.rx.offset()),
            A::ReadCarrier(n) => {
                let ReceiverStage::GivenUp(got) = self.receiver else { unreachable!() };
                self.receiver_kernel_call();
                for offset in got..got + u64::from(n) {
                    let byte = self.carrier.take();
                    if byte != Some(tag(offset)) {
                        return Err(format!(
                            "byte {byte:?} instead of {} came after the fast path was given up",
                            tag(offset)
                        ));
                    }
                }
                self.receiver = ReceiverStage::GivenUp(got + u64::from(n));
            }
            A::SeeCarrierEnd => self.end_given_up()?,
            other => unreachable!("{other:?}"),
        }
        Ok(())
    }

    fn load_epoch(&mut self, why: Why) -> Result<(), Violation> {
        let got = Announce { epoch: self.announce.epoch, ..Announce::default() };
        if got.epoch == self.known_epoch {
            self.finish_load(why, got)
        } else {
            self.receiver = ReceiverStage::Loading { why, got, next: 0 };
            Ok(())
        }
    }

    fn finish_load(&mut self, why: Why, got: Announce) -> Result<(), Violation> {
        self.receiver = ReceiverStage::Idle;
        if self.rx.state() != RxState::Open {
            self.known_epoch = got.epoch;
        }
        let corrupt = |c| format!("{why:?}: {c:?}");
        match why {
            Why::Plain => {
                self.rx.on_announce(got).map_err(corrupt)?;
                self.store_ack();
            }
            Why::Peeked(n) => {
                let take = self.rx.after_peek(u64::from(n), got).map_err(corrupt)?;
                self.store_ack();
                if take > 0 {
                    self.receiver = ReceiverStage::ReadPeeked(u8::try_from(take).unwrap());
                }
            }
            Why::CarrierReadable => {
                self.rx.on_carrier_readable(got).map_err(corrupt)?;
                self.store_ack();
            }
            Why::CarrierEnded => {
                if self.config.delivery == Delivery::Lossy && self.rx.state() == RxState::Replaying
                {
                    // The receiver destroys its end of the link: nothing can arrive late.
                    self.fast.bytes.truncate(self.fast.arrived);
                }
                let drained = match self.config.mutant {
                    Mutant::EmptyBeforeEof => self.noted_empty,
                    _ => {
                        self.fast.arrived == 0
                            && (self.config.delivery == Delivery::Reliable
                                || self.fast.bytes.len == 0)
                    }
                };
                match self.rx.on_carrier_eof(got, drained).map_err(corrupt)? {
                    EofVerdict::FollowAnnounce | EofVerdict::DrainFastFirst => self.store_ack(),
                    EofVerdict::SkipThenDrain { skip } => {
                        for _ in 0..skip {
                            self.fast.take();
                        }
                    }
                    verdict => self.end(verdict)?,
                }
            }
        }
        Ok(())
    }

    /// Reads as planned and compares with the oracle.
    fn read(&mut self, n: u8) -> Result<(), Violation> {
        let from_carrier = matches!(self.rx.plan(), Plan::Carrier { .. });
        if from_carrier {
            self.receiver_kernel_call();
        }
        for i in 0..n {
            let byte = if from_carrier { self.carrier.take() } else { self.fast.take() };
            let expected = tag(self.rx.offset() + u64::from(i));
            if byte != Some(expected) {
                return Err(format!(
                    "the receiver took byte {byte:?} instead of {expected} ({:?})",
                    self.rx.state()
                ));
            }
        }
        self.rx.on_delivered(u64::from(n)).map_err(|c| format!("on_delivered: {c:?}"))?;
        self.store_ack();
        if self.config.delivery == Delivery::Lossy && self.tx.path() == Path::Fast {
            self.receiver_store(Store::Consumed(self.rx.ack().consumed));
        }
        Ok(())
    }

    /// Stores the ack when its control word differs from what was stored last.
    fn store_ack(&mut self) {
        let ack = self.rx.ack();
        if ack.control() == self.stored_control {
            return;
        }
        self.stored_control = ack.control();
        let mut stores = [Store::Consumed(ack.consumed), Store::Control(ack.control())];
        if self.config.mutant == Mutant::ControlFirst {
            stores.reverse();
        }
        stores.into_iter().for_each(|s| self.receiver_store(s));
    }

    fn receiver_kernel_call(&mut self) {
        while self.ack_stores.len > 0 {
            self.drain_receiver_store();
        }
    }

    fn drain_receiver_store(&mut self) {
        match self.ack_stores.pop() {
            Some(Store::Control(v)) => self.control = v,
            Some(Store::Consumed(v)) => self.consumed = v,
            other => unreachable!("{other:?}"),
        }
    }

    fn end(&mut self, verdict: EofVerdict) -> Result<(), Violation> {
        self.receiver = ReceiverStage::Done(verdict);
        let got = self.rx.offset();
        match (self.fate, verdict) {
            (Fate::Exact(sent), EofVerdict::Eof) if sent == got => Ok(()),
            (Fate::Cut, EofVerdict::Eof | EofVerdict::Truncated) => Ok(()),
            (fate, verdict) => {
                Err(format!("{verdict:?} at {got}, but the sender's fate is {fate:?}"))
            }
        }
    }

    /// A FIN is believed; an error says that bytes may be missing, which is allowed only where the
    /// fast path was given up early.
    fn end_given_up(&mut self) -> Result<(), Violation> {
        let ReceiverStage::GivenUp(got) = self.receiver else { unreachable!() };
        let reset = self.on_no_byte == CarrierEnd::Reset;
        self.receiver =
            ReceiverStage::Done(if reset { EofVerdict::Truncated } else { EofVerdict::Eof });
        match self.fate {
            Fate::Exact(sent) if sent == got => Ok(()),
            Fate::Exact(_) if reset && self.config.gives_up == GiveUp::WhenReleased => Ok(()),
            Fate::Cut if reset => Ok(()),
            fate => Err(format!(
                "{:?} at {got} after the fast path was given up, but the sender's fate is {fate:?}",
                self.on_no_byte
            )),
        }
    }

    /// What holds in every state.
    fn check(&self) -> Result<(), Violation> {
        if self.rx.offset() > self.tx.offset() {
            return Err("the receiver is ahead of the sender".into());
        }
        let behind = self.tx.epoch().wrapping_sub(self.rx.epoch());
        if behind > 2 && self.config.mutant != Mutant::PromoteUnacked {
            return Err("the receiver is more than two epochs behind".into());
        }
        let kept = self.tx.unacked();
        if kept.start > kept.end || kept.end > self.tx.offset() {
            return Err(format!("impossible window {kept:?}"));
        }
        Ok(())
    }
}

fn tag(offset: u64) -> u8 {
    offset.to_le_bytes()[0]
}

impl Model for World {
    type Action = Action;

    fn actions(&self, out: &mut Vec<Action>) {
        self.actions(out);
    }

    fn apply(&mut self, action: Action) -> Result<(), Violation> {
        self.apply(action)
    }

    fn is_finished(&self) -> bool {
        self.is_finished()
    }

    fn is_settled(&self) -> bool {
        self.is_finished()
    }

    fn is_due(&self, action: Action) -> bool {
        !action.is_fault()
    }

    fn states(&self) -> (u32, u32) {
        (self.tx.state() as u32, self.rx.state() as u32)
    }
}
