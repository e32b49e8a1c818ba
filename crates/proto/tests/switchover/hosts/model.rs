//! A model of one direction between two hosts: a sender process, a carrier, a pair with a ring at
//! its end, a link, and a receiver process.
//!
//! Every [`Action`] is one step that no other can divide: one frame taken from the link or given to
//! it, one load of a word, one kernel call, one move of bytes by the network. Each process has its
//! own copy of the words and sees those of the other one only as frames bring them. A process is
//! its application and its engine, which work on the same words of its host: loads that take two
//! steps have frames arrive in between. [`Mutant`] leaves out one rule at a time.
//!
//! The oracle: byte `i` that the receiver takes is byte `i` that the sender sent; a sender that
//! ends in order, or is killed while all its bytes are the kernel's, makes a clean end exactly
//! behind its last byte; no other end is clean.
//!
//! The death of the *receiver's* process is not modelled: nobody is left for whom anything could be
//! wrong.

use crate::explore::Model;
use crate::explore::Violation;
use crate::model::{CarrierEnd, Fifo};
use netacc_proto::switchover::{
    Ack, Action as Due, Announce, Coming, Delivery, EofVerdict, Leave, Path, Peer, Plan, Refused,
    Rx, RxState, RxView, Tx, TxDue, TxState, TxView,
};

/// One rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    None,
    /// Frames overtake each other.
    FramesOvertake,
    /// After the link was broken an end does not send its words again.
    WordsNotRepeated,
    /// The sender does not look at the ack again after it published a promotion.
    SkipConfirm,
    /// Bytes go to the carrier before the receiver has the announcement.
    BytesBeforeEcho,
    /// The FIN does.
    FinBeforeEcho,
    /// A receiver that disarms is released without knowing what the sender knows.
    OpenUnseen,
    /// It believes an announcement that it loaded before it took the echo.
    LookBeforeEcho,
    /// It takes back the armed word before the sender has seen it.
    TakeBackUnseen,
    /// The sender demotes while bytes are not consumed.
    DemoteUnconsumed,
    /// The sender does not ask the receiver to freeze.
    NeverAsks,
    /// The receiver arms again before its end of a lost pair is closed.
    ArmOnOpenPair,
    /// The receiver arms again on a living pair that has not said that the lane's last byte has
    /// come.
    ArmBeforeLaneEnd,
    /// An empty ring at the end of the carrier is the end of the stream.
    CleanEndOnFast,
    /// A sender that dies while bytes may be missing leaves a FIN.
    DeathIsFin,
    /// It does as soon as it has announced the fail-over.
    DeathIsFinTooEarly,
    /// When the sender dies while it sends again, the rest is taken from the ring of a pair that is
    /// open.
    ReplayFromOpenRing,
    /// The same from a ring that nothing can arrive in any more. Not a mistake.
    ReplayFromClosedRing,
    /// A receiver that leaves the library does not say so.
    ReceiverLeavesSilently,
    /// A sender that does.
    SenderLeavesSilently,
}

impl Mutant {
    pub const ALL: [Self; 18] = [
        Self::FramesOvertake,
        Self::WordsNotRepeated,
        Self::SkipConfirm,
        Self::BytesBeforeEcho,
        Self::FinBeforeEcho,
        Self::OpenUnseen,
        Self::LookBeforeEcho,
        Self::TakeBackUnseen,
        Self::DemoteUnconsumed,
        Self::NeverAsks,
        Self::ArmOnOpenPair,
        Self::ArmBeforeLaneEnd,
        Self::CleanEndOnFast,
        Self::DeathIsFin,
        Self::DeathIsFinTooEarly,
        Self::ReplayFromOpenRing,
        Self::ReceiverLeavesSilently,
        Self::SenderLeavesSilently,
    ];
}

/// Who can be relied on to notice that the pair is lost. The other end may, at any time or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notices {
    Sender,
    Receiver,
}

/// Bounds of one exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    pub bytes: u8,
    pub chunk: u8,
    pub carrier_cap: u8,
    pub fast_cap: u8,
    /// Frames on their way in one direction; an end that finds no room merges.
    pub frames: u8,
    pub promotes: u8,
    pub demotes: u8,
    /// How often the sender wants to leave the fast path although it has more to send.
    pub asks: u8,
    pub arms: u8,
    /// How often the receiver wants to leave it.
    pub freezes: u8,
    /// The receiver may leave the library when it is released.
    pub receiver_leaves: bool,
    /// The sender may when it is on the carrier.
    pub sender_leaves: bool,
    /// The sender's process may die.
    pub crash: bool,
    pub pair_losses: u8,
    pub notices: Notices,
    pub link_losses: u8,
    pub mutant: Mutant,
    /// Where the stream starts.
    pub epoch: u32,
    pub offset: u64,
}

impl Config {
    pub const SMALL: Self = Self {
        bytes: 2,
        chunk: 1,
        carrier_cap: 2,
        fast_cap: 2,
        frames: 2,
        promotes: 1,
        demotes: 0,
        asks: 0,
        arms: 1,
        freezes: 0,
        receiver_leaves: false,
        sender_leaves: false,
        crash: false,
        pair_losses: 0,
        notices: Notices::Sender,
        link_losses: 0,
        mutant: Mutant::None,
        epoch: 0,
        offset: 0,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    // Sender process.
    Send(u8),
    LoadAckToPromote,
    Promote,
    Confirm,
    Demote,
    AskToLeave,
    LoadAckControl,
    LoadAckConsumed,
    Resend(u8),
    /// From here on the sender's death ends the carrier with a FIN again.
    DisarmReset,
    Trim,
    Close,
    Shutdown,
    Fin,
    SenderLeaves,
    SenderLearnsLoss,
    SenderSendsFrame,
    SenderTakesFrame(u8),
    // Faults.
    CrashFin {
        frames_kept: u8,
    },
    CrashReset {
        frames_kept: u8,
    },
    PairBreaks,
    LinkBreaks,
    // Network.
    CarrierArrives,
    FastArrives,
    /// The two ends, having closed the old one, make a new pair.
    NewPair,
    // Receiver process.
    Arm,
    FreezeAtWill,
    FreezeAsAsked,
    TakeEcho,
    LoadEpoch,
    LoadOffsets,
    Peek,
    ReadPeeked,
    CheckCarrier,
    CheckLink,
    Read(u8),
    ReceiverLearnsLoss,
    ReceiverClosesPair,
    ReceiverSendsFrame,
    ReceiverTakesFrame(u8),
    ReceiverLeaves,
    ReadCarrier(u8),
    SeeCarrierEnd,
    ReadLeftover,
}

impl Action {
    /// Little or nothing happens after it.
    pub const fn is_last(self) -> bool {
        matches!(
            self,
            Self::CrashFin { .. }
                | Self::CrashReset { .. }
                | Self::SenderLeaves
                | Self::ReceiverLeaves
        )
    }
}

/// What the sender wants of the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Asks {
    #[default]
    Nothing,
    ToLeave,
    /// The pair of this number is lost.
    PairLost(u8),
}

/// The sender's words, and what it has of the receiver's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct SenderWords {
    announce: Announce,
    asks: Asks,
    seen_ack: u64,
    /// The last word: it is on the carrier for good.
    left: bool,
}

/// The receiver's words, and what it has of the sender's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct ReceiverWords {
    control: u64,
    consumed: u64,
    seen_epoch: u32,
    /// The last word: it was released and takes nothing more from the link.
    left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SenderStage {
    Idle,
    /// This word was found armed.
    Promoting(u64),
    /// A promotion is published, not confirmed.
    Confirming,
    /// The control word of the ack was loaded, the consumed offset was not.
    AckControl(u64),
    FinPending,
    /// It has ended, and its process lives.
    Ended,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Why {
    Plain,
    Peeked(u8),
    CarrierReadable,
    CarrierEnded,
    /// The sender's process is gone, which the link shows, too.
    LinkEnded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ReceiverStage {
    Idle,
    /// The receiver saw this, and has not loaded the announcement since.
    MustLoad(Why),
    /// The epoch was loaded, the offsets were not.
    Loading {
        why: Why,
        epoch: u32,
    },
    /// Exactly these bytes may be read.
    ReadPeeked(u8),
    /// Reads the carrier without the library; so much of the stream was taken.
    Left(u64),
    /// The carrier has ended while bytes came again: the ring has the rest. So much of the stream
    /// was taken.
    Leftover(u64),
    Done(EofVerdict),
}

/// How the sender ended, for the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Alive,
    /// The receiver must get all bytes and then a clean end.
    Exact,
    /// It may get fewer bytes and an error, or all of them and a clean end.
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub config: Config,
    // Sender process: the half, the words, the copy of the receiver's.
    pub tx: Tx,
    stage: SenderStage,
    /// The application has sent its last byte.
    closing: bool,
    words: SenderWords,
    receivers: ReceiverWords,
    /// The words that the link has been given last.
    told: Option<SenderWords>,
    /// The sender's death resets the carrier.
    resets: bool,
    // Link.
    to_receiver: Fifo<SenderWords, 4>,
    to_sender: Fifo<ReceiverWords, 4>,
    // Carrier, bytes tagged with their stream offset (modulo 256).
    carrier: Fifo<u8, 8>,
    arrived: Fifo<u8, 8>,
    on_no_byte: CarrierEnd,
    // Pair.
    pair: u8,
    flying: Fifo<u8, 8>,
    ring: Fifo<u8, 8>,
    broken: bool,
    sender_closed_pair: bool,
    receiver_closed_pair: bool,
    /// Stretches of which the last word has come, on this pair.
    lane_ends: u8,
    /// The sender's epoch when it was made.
    pair_epoch: u32,
    // Receiver process.
    pub rx: Rx,
    receiver: ReceiverStage,
    acks: ReceiverWords,
    senders: SenderWords,
    /// The connection is on its way back, as the receiver's process sees it.
    leave: Option<Leave>,
    told_back: Option<ReceiverWords>,
    knows_loss: bool,
    /// Epoch of the last announcement that the receiver followed: the offsets need not be loaded
    /// again.
    known_epoch: u32,
    fate: Fate,
}

impl World {
    pub fn new(config: Config) -> Self {
        let rx = Rx::starting_at_over(Delivery::Lossy, config.epoch, config.offset);
        let tx = Tx::starting_at(config.epoch, config.offset);
        let acks = ReceiverWords {
            control: rx.ack().control(),
            consumed: rx.ack().consumed,
            seen_epoch: tx.epoch(),
            left: false,
        };
        let words = SenderWords {
            announce: tx.announce(),
            asks: Asks::Nothing,
            seen_ack: acks.control,
            left: false,
        };
        Self {
            config,
            tx,
            stage: SenderStage::Idle,
            closing: false,
            words,
            receivers: acks,
            told: Some(words),
            resets: false,
            to_receiver: Fifo::new(),
            to_sender: Fifo::new(),
            carrier: Fifo::new(),
            arrived: Fifo::new(),
            on_no_byte: CarrierEnd::None,
            pair: 0,
            flying: Fifo::new(),
            ring: Fifo::new(),
            broken: false,
            sender_closed_pair: false,
            receiver_closed_pair: false,
            lane_ends: 0,
            pair_epoch: config.epoch,
            rx,
            receiver: ReceiverStage::Idle,
            acks,
            senders: words,
            leave: None,
            told_back: Some(acks),
            knows_loss: false,
            known_epoch: config.epoch,
            fate: Fate::Alive,
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.config.mutant == mutant
    }

    fn sender_actions(&self, out: &mut Vec<Action>) {
        use Action as A;
        match self.stage {
            SenderStage::Dead => return,
            SenderStage::Idle => self.idle_sender_actions(out),
            SenderStage::Promoting(_) => out.push(A::Promote),
            SenderStage::Confirming => out.push(A::Confirm),
            SenderStage::AckControl(_) => out.push(A::LoadAckConsumed),
            SenderStage::FinPending => {
                if !self.resets && (self.has_echo() || self.is(Mutant::FinBeforeEcho)) {
                    out.push(A::Fin);
                }
            }
            SenderStage::Ended => {}
        }
        let too_early = match self.config.mutant {
            Mutant::FinBeforeEcho => self.tx.path() == Path::Carrier,
            Mutant::DeathIsFinTooEarly => self.tx.state() == TxState::Resending,
            _ => false,
        };
        let must_reset = self.tx.must_end_in_reset(self.receivers.seen_epoch);
        if self.resets && (!must_reset || too_early) {
            out.push(A::DisarmReset);
        }
        if self.broken && !self.sender_closed_pair {
            out.push(A::SenderLearnsLoss);
        }
        let settles = self.stage == SenderStage::Idle && !self.resets && !self.words.left;
        if self.config.sender_leaves && settles && self.sender_is_done() {
            out.push(A::SenderLeaves);
        }
        let has_room = self.to_receiver.len < self.config.frames;
        if self.told != Some(self.words) && has_room && !self.words.left && !self.left() {
            out.push(A::SenderSendsFrame);
        }
        self.take_actions(out, self.to_sender.len, A::SenderTakesFrame);
        if self.config.crash && self.stage != SenderStage::Ended {
            // Frames that were not sent yet are never sent.
            for frames_kept in 0..=self.to_receiver.len {
                if !self.resets {
                    out.push(A::CrashFin { frames_kept });
                }
                out.push(A::CrashReset { frames_kept });
            }
        }
    }

    fn idle_sender_actions(&self, out: &mut Vec<Action>) {
        use Action as A;
        let state = self.tx.state();
        let open = self.has_echo() || self.is(Mutant::BytesBeforeEcho);
        let room = match self.tx.path() {
            Path::Carrier if open => {
                self.config.carrier_cap.saturating_sub(self.carrier.len + self.arrived.len)
            }
            Path::Carrier => 0,
            Path::Fast => self.config.fast_cap.saturating_sub(length(&self.tx.unacked())),
        };
        if self.tx.can_accept() && !self.closing {
            for n in 1..=self.config.chunk.min(self.config.bytes).min(room) {
                out.push(A::Send(n));
            }
        }
        // (Whether the carrier may speak is the machine's to say.)
        let room = self.config.carrier_cap.saturating_sub(self.carrier.len + self.arrived.len);
        match self.tx_view(room).next() {
            TxDue::SendAgain => {
                for n in 1..=self.config.chunk.min(length(&self.tx.resend())).min(room) {
                    out.push(A::Resend(n));
                }
            }
            TxDue::PullBack => out.push(A::LoadAckControl),
            _ => {}
        }
        if state == TxState::Carrier
            && self.config.promotes > 0
            && !self.closing
            && !self.words.left
        {
            let ack = Ack::from_words(self.receivers.control, 0);
            if ack.armed && ack.epoch == self.tx.epoch() && !self.sender_closed_pair {
                out.push(A::LoadAckToPromote);
            }
        }
        if state == TxState::Fast {
            let flushed = self.tx.unacked().is_empty();
            if self.config.demotes > 0 && (flushed || self.is(Mutant::DemoteUnconsumed)) {
                out.push(A::Demote);
            }
            if self.config.asks > 0 && self.words.asks == Asks::Nothing {
                out.push(A::AskToLeave);
            }
            let trims = self.rx.offset() > self.tx.unacked().start && !flushed;
            if trims && !self.broken && !self.sender_closed_pair {
                out.push(A::Trim);
            }
        }
        if !self.closing && self.config.bytes == 0 {
            out.push(A::Close);
        }
        if self.closing
            && state != TxState::Resending
            && (self.tx.unacked().is_empty() || self.words.asks == Asks::Nothing)
        {
            out.push(A::Shutdown);
        }
    }

    /// What the library's machine sees of the sender.
    fn tx_view(&self, room: u8) -> TxView {
        let ack = Ack::from_words(self.receivers.control, 0);
        TxView {
            delivery: Delivery::Lossy,
            state: self.tx.state(),
            open: self.has_echo() || self.is(Mutant::BytesBeforeEcho),
            asked: ack.frozen && ack.epoch | 1 == self.tx.epoch(),
            room: room > 0,
            peer: if self.receivers.left { Peer::Left } else { Peer::Lives },
            leaves: true,
        }
    }

    /// The connection may become the kernel's, as far as the sender's process knows.
    fn sender_is_done(&self) -> bool {
        let tx = TxView { open: self.has_echo(), ..self.tx_view(0) };
        let rx = RxView { state: RxState::Open, coming: Coming::All, unread: false, peer: tx.peer };
        step(Leave::new(false), tx, rx) == Due::Become
    }

    /// What the library's machine has the receiver's process do.
    fn due_of_receiver(&self) -> Due {
        let peer = match self.stage {
            _ if self.senders.left => Peer::Left,
            SenderStage::Dead if self.to_receiver.len == 0 => Peer::Gone,
            _ => Peer::Lives,
        };
        let (state, delivery) = (self.rx.state(), Delivery::Lossy);
        // Any moment may be the last that bytes which come again are waited for.
        let rx = RxView { state, coming: Coming::Short, unread: true, peer };
        let tx = TxView {
            delivery,
            state: TxState::Carrier,
            open: true,
            asked: false,
            room: true,
            peer,
            leaves: true,
        };
        match self.leave {
            Some(leave) => step(leave, tx, rx),
            // It has not begun, but nothing keeps it from that.
            None if state == RxState::Open => step(Leave::new(false), tx, rx),
            None => Due::Later,
        }
    }

    fn receiver_actions(&self, out: &mut Vec<Action>) {
        use Action as A;
        match self.receiver {
            ReceiverStage::Idle => self.idle_receiver_actions(out),
            ReceiverStage::MustLoad(_) => out.push(A::LoadEpoch),
            ReceiverStage::Loading { .. } => {
                out.push(A::LoadOffsets);
                if self.is(Mutant::LookBeforeEcho) && self.echo_tells() {
                    out.push(A::TakeEcho);
                }
            }
            ReceiverStage::ReadPeeked(_) => out.push(A::ReadPeeked),
            ReceiverStage::Left(_) => {
                for n in 1..=self.arrived.len.min(self.config.chunk) {
                    out.push(A::ReadCarrier(n));
                }
                if self.carrier_ended() {
                    out.push(A::SeeCarrierEnd);
                }
                return;
            }
            ReceiverStage::Leftover(_) => {
                out.push(A::ReadLeftover);
                return;
            }
            ReceiverStage::Done(_) => return,
        }
        if self.broken && !self.knows_loss {
            out.push(A::ReceiverLearnsLoss);
        }
        if self.knows_loss && !self.receiver_closed_pair && !self.is(Mutant::ArmOnOpenPair) {
            out.push(A::ReceiverClosesPair);
        }
        if self.told_back != Some(self.acks)
            && self.to_sender.len < self.config.frames
            && self.stage != SenderStage::Dead
            && !self.words.left
        {
            out.push(A::ReceiverSendsFrame);
        }
        self.take_actions(out, self.to_receiver.len, A::ReceiverTakesFrame);
    }

    fn idle_receiver_actions(&self, out: &mut Vec<Action>) {
        use Action as A;
        let state = self.rx.state();
        if self.config.arms > 0 && state == RxState::Open && self.may_arm() {
            out.push(A::Arm);
        }
        if matches!(state, RxState::Armed | RxState::ToFast | RxState::Fast) {
            if self.config.freezes > 0 {
                out.push(A::FreezeAtWill);
            }
            if self.knows_loss || self.senders.asks == Asks::ToLeave {
                out.push(A::FreezeAsAsked);
            }
        }
        if self.echo_tells() && !self.is(Mutant::LookBeforeEcho) {
            out.push(A::TakeEcho);
        }
        let news = match state {
            RxState::Open | RxState::Replaying | RxState::Leftover => false,
            RxState::Disarming => true,
            _ => self.senders.announce.epoch != self.known_epoch,
        };
        if news {
            out.push(A::LoadEpoch);
        }
        let leaves = self.config.receiver_leaves && self.config.arms == 0;
        if leaves && self.due_of_receiver() == Due::Become {
            out.push(A::ReceiverLeaves);
        }
        let plan = self.rx.plan();
        let has_data = self.arrived.len > 0;
        match plan {
            Plan::Carrier { peek_first: true, .. } => {
                if has_data || self.carrier_ended() {
                    out.push(A::Peek);
                }
                return;
            }
            Plan::Carrier { limit, .. } => {
                self.read_actions(out, self.arrived.len, limit);
                if !has_data && self.carrier_ended() {
                    out.push(A::CheckCarrier);
                }
                return;
            }
            Plan::Fast { limit } => self.read_actions(out, self.ring.len, limit),
            Plan::Wait => {}
        }
        if has_data || self.carrier_ended() {
            out.push(A::CheckCarrier);
        }
        if self.stage == SenderStage::Dead && self.to_receiver.len == 0 {
            out.push(A::CheckLink);
        }
    }

    /// Nothing of an earlier stretch may come into the ring once it is in use again.
    fn may_arm(&self) -> bool {
        let behind = self.pair_epoch.wrapping_sub(self.rx.epoch()) <= 2;
        let stretches = self.rx.epoch().wrapping_sub(self.pair_epoch) / 2;
        let ended = behind || u32::from(self.lane_ends) >= stretches;
        !self.knows_loss
            && !self.receiver_closed_pair
            && self.senders.asks == Asks::Nothing
            && (ended || self.is(Mutant::ArmBeforeLaneEnd))
    }

    fn echo_tells(&self) -> bool {
        let mut rx = self.rx;
        take_echo(&mut rx, self.senders);
        rx != self.rx
    }

    fn take_actions(&self, out: &mut Vec<Action>, waiting: u8, take: fn(u8) -> Action) {
        let choices = if self.is(Mutant::FramesOvertake) { waiting } else { waiting.min(1) };
        out.extend((0..choices).map(take));
    }

    fn read_actions(&self, out: &mut Vec<Action>, available: u8, limit: u64) {
        let most = available.min(self.config.chunk).min(u8::try_from(limit).unwrap_or(u8::MAX));
        out.extend((1..=most).map(Action::Read));
    }

    fn carrier_ended(&self) -> bool {
        self.on_no_byte != CarrierEnd::None && self.carrier.len + self.arrived.len == 0
    }

    /// The receiver's engine is gone.
    fn left(&self) -> bool {
        matches!(self.receiver, ReceiverStage::Left(_))
    }

    /// Bytes and FIN may go to the carrier.
    fn has_echo(&self) -> bool {
        if self.is(Mutant::DemoteUnconsumed) {
            return self.tx.path() == Path::Carrier && self.receivers.seen_epoch == self.tx.epoch();
        }
        self.tx.carrier_is_open(self.receivers.seen_epoch)
    }

    /// Bytes that the application has sent may be missing if the sender dies now.
    fn is_exposed(&self) -> bool {
        self.tx.path() == Path::Fast || self.tx.state() == TxState::Resending
    }

    fn send(&mut self, n: u8) -> Result<(), Violation> {
        self.config.bytes -= n;
        for offset in self.tx.offset()..self.tx.offset() + u64::from(n) {
            match self.tx.path() {
                Path::Carrier => self.carrier.push(tag(offset)),
                Path::Fast => self.post(tag(offset)),
            }
        }
        self.tx.on_accepted(u64::from(n)).map_err(|e| format!("on_accepted: {e:?}"))
    }

    /// Gives the pair one byte for the receiver's ring, or [`LANE_END`].
    fn post(&mut self, byte: u8) {
        if !self.broken && !self.sender_closed_pair {
            self.flying.push(byte);
        }
    }

    fn publish(&mut self) {
        let returned = self.words.announce.epoch & 1 == 1 && self.tx.path() == Path::Carrier;
        self.words.announce = self.tx.announce();
        if returned {
            // The last word about the lane on this pair: nothing of this stretch comes behind it.
            if self.config.arms > 0 {
                self.post(LANE_END);
            }
            if self.words.asks == Asks::ToLeave {
                self.words.asks = Asks::Nothing;
            }
        }
    }

    fn crash(&mut self, frames_kept: u8, end: CarrierEnd) {
        self.to_receiver.truncate(frames_kept);
        self.to_sender = Fifo::new();
        if end == CarrierEnd::Reset {
            self.carrier = Fifo::new();
        }
        if self.on_no_byte == CarrierEnd::None {
            self.on_no_byte = end;
            self.fate =
                if end == CarrierEnd::Fin && !self.is_exposed() { Fate::Exact } else { Fate::Cut };
        }
        self.stage = SenderStage::Dead;
    }

    fn store_ack(&mut self) {
        let ack = self.rx.ack();
        if ack.control() != self.acks.control {
            self.acks.control = ack.control();
            self.acks.consumed = ack.consumed;
        }
    }

    fn freeze(&mut self) {
        self.leave = Some(Leave::new(false));
        self.rx.freeze();
        if self.is(Mutant::TakeBackUnseen) && self.rx.ack().armed {
            self.rx.ack_seen(self.rx.ack().control());
        }
        self.store_ack();
    }

    fn load_epoch(&mut self, why: Why) -> Result<(), Violation> {
        let epoch = self.senders.announce.epoch;
        if epoch == self.known_epoch && !self.is(Mutant::LookBeforeEcho) {
            self.finish_load(why, epoch)
        } else {
            self.receiver = ReceiverStage::Loading { why, epoch };
            Ok(())
        }
    }

    fn finish_load(&mut self, why: Why, epoch: u32) -> Result<(), Violation> {
        self.receiver = ReceiverStage::Idle;
        let latest = Announce { epoch, ..self.senders.announce };
        if self.rx.state() != RxState::Open {
            self.known_epoch = epoch;
        }
        if self.is(Mutant::OpenUnseen) && self.rx.state() == RxState::Disarming {
            while self.rx.ack_seen(self.rx.ack().control()) {}
        }
        let corrupt = |c| format!("{why:?}: {c:?}");
        match why {
            Why::Plain => {
                self.rx.on_announce(latest).map_err(corrupt)?;
            }
            Why::Peeked(n) => {
                let take = self.rx.after_peek(u64::from(n), latest).map_err(corrupt)?;
                if take > 0 {
                    self.receiver = ReceiverStage::ReadPeeked(u8::try_from(take).unwrap());
                }
            }
            Why::CarrierReadable => {
                self.rx.on_carrier_readable(latest).map_err(corrupt)?;
            }
            Why::CarrierEnded | Why::LinkEnded => {
                self.receiver_closed_pair |= self.is(Mutant::ReplayFromClosedRing);
                self.on_end(why, latest)?;
            }
        }
        self.store_ack();
        Ok(())
    }

    fn on_end(&mut self, why: Why, latest: Announce) -> Result<(), Violation> {
        let (state, offset) = (self.rx.state(), self.rx.offset());
        let verdict = self
            .rx
            .on_carrier_eof(latest, self.ring.len == 0)
            .map_err(|c| format!("{why:?}: {c:?}"))?;
        match verdict {
            EofVerdict::FollowAnnounce | EofVerdict::DrainFastFirst => Ok(()),
            EofVerdict::Truncated
                if state == RxState::Replaying
                    && offset >= latest.carrier_from
                    && matches!(
                        self.config.mutant,
                        Mutant::ReplayFromOpenRing | Mutant::ReplayFromClosedRing
                    ) =>
            {
                for _ in latest.carrier_from..offset {
                    self.ring.pop();
                }
                self.receiver = ReceiverStage::Leftover(offset);
                Ok(())
            }
            EofVerdict::Truncated
                if self.is(Mutant::CleanEndOnFast)
                    && matches!(state, RxState::Fast | RxState::Frozen) =>
            {
                self.end(why, EofVerdict::Eof, offset)
            }
            EofVerdict::SkipThenDrain { .. } => Err("the ring is used after a fail-over".into()),
            verdict => self.end(why, verdict, offset),
        }
    }

    /// Reads as planned and compares with the oracle.
    fn read(&mut self, n: u8) -> Result<(), Violation> {
        let from_carrier = matches!(self.rx.plan(), Plan::Carrier { .. });
        for offset in self.rx.offset()..self.rx.offset() + u64::from(n) {
            let byte = if from_carrier { self.arrived.pop() } else { self.ring.pop() };
            expect(byte, offset)?;
        }
        self.rx.on_delivered(u64::from(n)).map_err(|c| format!("on_delivered: {c:?}"))?;
        self.store_ack();
        Ok(())
    }

    fn end(&mut self, why: Why, verdict: EofVerdict, got: u64) -> Result<(), Violation> {
        self.receiver = ReceiverStage::Done(verdict);
        // An error that the kernel reports is passed on.
        let reset = why == Why::CarrierEnded && self.on_no_byte == CarrierEnd::Reset;
        let clean = verdict == EofVerdict::Eof && !reset;
        let sent = self.tx.offset();
        match self.fate {
            _ if clean && sent == got => Ok(()),
            Fate::Cut if !clean => Ok(()),
            fate => Err(format!(
                "{verdict:?} ({why:?}) at {got} of {sent}, but the sender's fate is {fate:?}"
            )),
        }
    }

    fn apply_sender(&mut self, action: Action) -> Result<(), Violation> {
        use Action as A;
        match action {
            A::Send(n) => self.send(n)?,
            A::LoadAckToPromote => self.stage = SenderStage::Promoting(self.receivers.control),
            A::Promote => {
                let SenderStage::Promoting(control) = self.stage else { unreachable!() };
                let delivery = match self.config.mutant {
                    Mutant::DemoteUnconsumed => Delivery::Reliable,
                    _ => Delivery::Lossy,
                };
                self.stage = SenderStage::Idle;
                match self.tx.promote(Ack::from_words(control, 0), delivery) {
                    Ok(_) => {
                        self.config.promotes -= 1;
                        self.resets = !self.is(Mutant::DeathIsFin);
                        self.publish();
                        self.stage = SenderStage::Confirming;
                    }
                    // The receiver has left meanwhile.
                    Err(Refused::Pinned) => {}
                    Err(refused) => return Err(format!("promote: {refused:?}")),
                }
            }
            A::Confirm => {
                let mut ack = Ack::from_words(self.receivers.control, 0);
                if self.is(Mutant::SkipConfirm) {
                    ack.armed = true;
                    ack.frozen = false;
                }
                self.tx.confirm(ack).map_err(|e| format!("confirm: {e:?}"))?;
                self.publish();
                self.stage = SenderStage::Idle;
            }
            A::Demote => {
                self.config.demotes -= 1;
                self.tx.demote().map_err(|e| format!("demote: {e:?}"))?;
                self.publish();
            }
            A::AskToLeave => {
                self.config.asks -= 1;
                self.words.asks = Asks::ToLeave;
            }
            A::LoadAckControl => self.stage = SenderStage::AckControl(self.receivers.control),
            A::LoadAckConsumed => {
                let SenderStage::AckControl(control) = self.stage else { unreachable!() };
                self.stage = SenderStage::Idle;
                let ack = Ack::from_words(control, self.receivers.consumed);
                self.tx.pull_back(ack).map_err(|e| format!("pull_back: {e:?}"))?;
                self.publish();
            }
            A::Resend(n) => {
                for offset in self.tx.resend().take(usize::from(n)) {
                    self.carrier.push(tag(offset));
                }
                self.tx.on_resent(u64::from(n)).map_err(|e| format!("on_resent: {e:?}"))?;
            }
            A::DisarmReset => self.resets = false,
            A::Trim => self.tx.acked(self.rx.offset()).map_err(|e| format!("acked: {e:?}"))?,
            A::Close => self.closing = true,
            A::Shutdown => {
                if self.tx.shutdown().is_ok() {
                    self.publish();
                    self.stage = SenderStage::FinPending;
                } else if !self.is(Mutant::NeverAsks) {
                    self.words.asks = Asks::ToLeave;
                }
            }
            A::Fin => {
                self.on_no_byte = CarrierEnd::Fin;
                self.stage = SenderStage::Ended;
                self.fate = Fate::Exact;
            }
            A::SenderLearnsLoss => {
                self.sender_closed_pair = true;
                if !self.is(Mutant::NeverAsks) {
                    self.words.asks = Asks::PairLost(self.pair);
                }
            }
            A::SenderSendsFrame => {
                self.to_receiver.push(self.words);
                self.told = Some(self.words);
            }
            A::SenderTakesFrame(which) => {
                self.receivers = take(&mut self.to_sender, which);
                self.words.seen_ack = self.receivers.control;
                if self.receivers.left {
                    self.tx.peer_left();
                }
            }
            A::SenderLeaves => {
                self.to_sender = Fifo::new();
                self.words.left = true;
                if !self.is(Mutant::SenderLeavesSilently) {
                    self.to_receiver.push(self.words);
                }
            }
            other => self.apply_network(other)?,
        }
        Ok(())
    }

    fn apply_network(&mut self, action: Action) -> Result<(), Violation> {
        use Action as A;
        match action {
            A::CrashFin { frames_kept } => self.crash(frames_kept, CarrierEnd::Fin),
            A::CrashReset { frames_kept } => self.crash(frames_kept, CarrierEnd::Reset),
            A::PairBreaks => {
                self.config.pair_losses -= 1;
                self.broken = true;
            }
            A::LinkBreaks => {
                self.config.link_losses -= 1;
                self.to_receiver = Fifo::new();
                self.to_sender = Fifo::new();
                if !self.is(Mutant::WordsNotRepeated) {
                    self.told = None;
                    self.told_back = None;
                }
            }
            A::CarrierArrives => {
                let byte = self.carrier.pop().unwrap();
                self.arrived.push(byte);
            }
            A::FastArrives => match self.flying.pop() {
                Some(LANE_END) => self.lane_ends = self.lane_ends.wrapping_add(1),
                byte => self.ring.push(byte.unwrap()),
            },
            A::NewPair => {
                self.pair += 1;
                self.broken = false;
                self.sender_closed_pair = false;
                self.receiver_closed_pair = false;
                self.lane_ends = 0;
                self.pair_epoch = self.tx.epoch();
                self.knows_loss = false;
                self.words.asks = Asks::Nothing;
                self.ring = Fifo::new();
                if !self.is(Mutant::ArmOnOpenPair) {
                    self.flying = Fifo::new();
                }
            }
            other => self.apply_receiver(other)?,
        }
        Ok(())
    }

    fn apply_receiver(&mut self, action: Action) -> Result<(), Violation> {
        use Action as A;
        match action {
            A::Arm => {
                self.config.arms -= 1;
                self.leave = None;
                if !self.rx.arm() {
                    return Err("arm refused".into());
                }
                self.ring = Fifo::new();
                self.store_ack();
            }
            A::FreezeAtWill => {
                self.config.freezes -= 1;
                self.freeze();
            }
            A::FreezeAsAsked => self.freeze(),
            A::TakeEcho => {
                take_echo(&mut self.rx, self.senders);
                self.store_ack();
            }
            A::LoadEpoch => {
                let why = match self.receiver {
                    ReceiverStage::MustLoad(why) => why,
                    _ => Why::Plain,
                };
                self.load_epoch(why)?;
            }
            A::LoadOffsets => {
                let ReceiverStage::Loading { why, epoch } = self.receiver else { unreachable!() };
                self.finish_load(why, epoch)?;
            }
            A::Peek => {
                self.receiver = ReceiverStage::MustLoad(match self.arrived.len {
                    0 => Why::CarrierEnded,
                    n => Why::Peeked(n.min(self.config.chunk)),
                });
            }
            A::CheckCarrier => {
                self.receiver = ReceiverStage::MustLoad(match self.arrived.len {
                    0 => Why::CarrierEnded,
                    _ => Why::CarrierReadable,
                });
            }
            A::CheckLink => self.receiver = ReceiverStage::MustLoad(Why::LinkEnded),
            A::Read(n) => self.read(n)?,
            A::ReadPeeked => {
                let ReceiverStage::ReadPeeked(n) = self.receiver else { unreachable!() };
                self.receiver = ReceiverStage::Idle;
                self.read(n)?;
            }
            A::ReceiverLearnsLoss => self.knows_loss = true,
            A::ReceiverClosesPair => self.receiver_closed_pair = true,
            A::ReceiverSendsFrame => {
                self.to_sender.push(self.acks);
                self.told_back = Some(self.acks);
            }
            A::ReceiverTakesFrame(which) => {
                self.senders = take(&mut self.to_receiver, which);
                self.acks.seen_epoch = self.senders.announce.epoch;
                self.knows_loss |= self.senders.asks == Asks::PairLost(self.pair);
            }
            A::ReceiverLeaves => {
                self.receiver = ReceiverStage::Left(self.rx.offset());
                self.to_receiver = Fifo::new();
                self.receiver_closed_pair = true;
                if self.is(Mutant::ReceiverLeavesSilently) {
                    self.to_sender = Fifo::new();
                } else {
                    self.acks.left = true;
                    self.to_sender.push(self.acks);
                }
            }
            A::ReadCarrier(n) => {
                let ReceiverStage::Left(got) = self.receiver else { unreachable!() };
                for offset in got..got + u64::from(n) {
                    expect(self.arrived.pop(), offset)?;
                }
                self.receiver = ReceiverStage::Left(got + u64::from(n));
            }
            A::SeeCarrierEnd => {
                let ReceiverStage::Left(got) = self.receiver else { unreachable!() };
                self.end(Why::CarrierEnded, EofVerdict::Eof, got)?;
            }
            A::ReadLeftover => {
                let ReceiverStage::Leftover(got) = self.receiver else { unreachable!() };
                match self.ring.pop() {
                    None => self.end(Why::LinkEnded, EofVerdict::Truncated, got)?,
                    byte => {
                        expect(byte, got)?;
                        self.receiver = ReceiverStage::Leftover(got + 1);
                    }
                }
            }
            other => unreachable!("{other:?}"),
        }
        Ok(())
    }

    /// What holds in every state.
    fn check(&self) -> Result<(), Violation> {
        if self.rx.offset() > self.tx.offset() {
            return Err("the receiver is ahead of the sender".into());
        }
        if self.tx.epoch().wrapping_sub(self.rx.epoch()) > 2 {
            return Err("the receiver is more than two epochs behind".into());
        }
        // The machine breaks nothing off that could have gone on. (It is asked behind a look.)
        if self.stage == SenderStage::Idle && self.tx_view(0).next() == TxDue::Broken {
            return Err("the sender breaks off a connection whose peer is honest".into());
        }
        let has_looked = self.receiver == ReceiverStage::Idle
            && self.known_epoch == self.senders.announce.epoch
            && !self.echo_tells();
        if has_looked && self.fate != Fate::Cut && self.due_of_receiver() == Due::BreakOff {
            return Err("the receiver breaks off a connection whose peer is honest".into());
        }
        Ok(())
    }
}

/// One step of the machine, behind the freeze.
fn step(mut leave: Leave, tx: TxView, rx: RxView) -> Due {
    match leave.step(tx, rx, false) {
        Due::Freeze => leave.step(tx, rx, false),
        due => due,
    }
}

impl Model for World {
    type Action = Action;

    fn actions(&self, out: &mut Vec<Action>) {
        use Action as A;
        out.clear();
        if self.is_finished() {
            return;
        }
        self.sender_actions(out);
        if self.carrier.len > 0 {
            out.push(A::CarrierArrives);
        }
        if self.flying.len > 0 && !self.receiver_closed_pair {
            out.push(A::FastArrives);
        }
        let lives = self.stage != SenderStage::Dead && !self.words.left && !self.left();
        if lives && self.config.pair_losses > 0 && !self.broken {
            out.push(A::PairBreaks);
        }
        if lives && self.config.link_losses > 0 {
            out.push(A::LinkBreaks);
        }
        let closed = self.receiver_closed_pair || self.is(Mutant::ArmOnOpenPair);
        if lives && self.config.arms > 0 && self.sender_closed_pair && self.knows_loss && closed {
            let off = self.tx.path() == Path::Carrier && self.rx.state() == RxState::Open;
            if off && self.receiver == ReceiverStage::Idle {
                out.push(A::NewPair);
            }
        }
        self.receiver_actions(out);
    }

    fn apply(&mut self, action: Action) -> Result<(), Violation> {
        self.apply_sender(action)?;
        self.check()
    }

    fn is_finished(&self) -> bool {
        matches!(self.receiver, ReceiverStage::Done(_))
    }

    /// All that was sent has come, more can be sent, and nobody waits for anything.
    fn is_settled(&self) -> bool {
        let got = match self.receiver {
            ReceiverStage::Left(got) => got,
            ReceiverStage::Done(_) => return true,
            _ => self.rx.offset(),
        };
        let sends = self.tx.can_accept()
            && self.stage == SenderStage::Idle
            && (self.tx.path() == Path::Fast || self.has_echo());
        let waits =
            matches!(self.rx.state(), RxState::Disarming | RxState::FrozenToFast | RxState::Frozen);
        sends
            && !self.closing
            && self.words.asks != Asks::ToLeave
            && got == self.tx.offset()
            && !waits
    }

    /// Nobody has to decide anything, and no fault has to happen, for this step.
    fn is_due(&self, action: Action) -> bool {
        use Action as A;
        match action {
            A::Send(_)
            | A::LoadAckToPromote
            | A::Demote
            | A::AskToLeave
            | A::Close
            | A::CrashFin { .. }
            | A::CrashReset { .. }
            | A::PairBreaks
            | A::LinkBreaks
            | A::NewPair
            | A::Arm
            | A::FreezeAtWill
            | A::ReceiverLeaves
            | A::SenderLeaves => false,
            A::SenderLearnsLoss => self.config.notices == Notices::Sender,
            A::ReceiverLearnsLoss => self.config.notices == Notices::Receiver,
            // What flies in a lost pair need not arrive.
            A::FastArrives => !self.broken && self.stage != SenderStage::Dead,
            _ => true,
        }
    }

    fn states(&self) -> (u32, u32) {
        (self.tx.state() as u32, self.rx.state() as u32)
    }
}

/// Behind the last byte of a stretch on the pair.
const LANE_END: u8 = u8::MAX;

fn tag(offset: u64) -> u8 {
    offset.to_le_bytes()[0] & 0x7f
}

fn expect(byte: Option<u8>, offset: u64) -> Result<(), Violation> {
    if byte == Some(tag(offset)) {
        Ok(())
    } else {
        Err(format!("the receiver took byte {byte:?} instead of {}", tag(offset)))
    }
}

/// What the receiver learns of what the sender has seen.
fn take_echo(rx: &mut Rx, senders: SenderWords) {
    if senders.left {
        rx.peer_left();
    } else {
        rx.ack_seen(senders.seen_ack);
    }
}

fn length(range: &core::ops::Range<u64>) -> u8 {
    u8::try_from(range.end - range.start).unwrap()
}

fn take<T: Copy + Default, const N: usize>(fifo: &mut Fifo<T, N>, which: u8) -> T {
    let mut rest = Fifo::new();
    let mut taken = T::default();
    for at in 0..fifo.len {
        let item = fifo.pop().unwrap();
        if at == which {
            taken = item;
        } else {
            rest.push(item);
        }
    }
    *fifo = rest;
    taken
}
