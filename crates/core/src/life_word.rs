//! The lives of a carrier, as this process knows them: what the word that both ends of a slot
//! change says to ours (`netacc_proto::lives`). Who steps is `io::park`.

use crate::channel::Channel;
use crate::socket::{Socket, State, flag};
use core::sync::atomic::Ordering::*;
use netacc_proto::lives::{self, End, Refused, Seen, Word};
use netacc_proto::rendezvous::Role;

/// Tries of an exchange, before a peer is taken for one that only disturbs.
const TRIES: usize = 100;

fn end_of(s: &Socket, state: lives::State) -> End {
    let role = if s.has(flag::CONNECTOR) { Role::Connector } else { Role::Acceptor };
    End { role, life: s.life.load(Relaxed), state }
}

fn parsed(bits: u64) -> Result<Word, Refused> {
    // (Nobody has written it yet.)
    if bits == 0 { Ok(Word::FIRST) } else { Ok(Word::from_bits(bits)?) }
}

/// Makes a step of an end that is in that state. What stood in the word before.
pub(crate) fn step(
    s: &Socket,
    channel: &Channel,
    state: lives::State,
    event: lives::Event,
) -> Result<Word, Refused> {
    let word = channel.life(s.slot.load(Relaxed) as usize);
    let end = end_of(s, state);
    let mut bits = word.load(SeqCst);
    for _ in 0..TRIES {
        let now = parsed(bits)?;
        let (to, new) = end.step(event, now)?;
        match word.compare_exchange(bits, new.bits(), SeqCst, SeqCst) {
            Ok(_) => {
                s.life.store(to.life, Relaxed);
                return Ok(now);
            }
            Err(other) => bits = other,
        }
    }
    Err(Refused::Broken)
}

/// What the word says to an end that is in that state. `None`: what no honest peer writes.
pub(crate) fn look(s: &Socket, channel: &Channel, state: lives::State) -> Option<Seen> {
    let bits = channel.life(s.slot.load(Relaxed) as usize).load(SeqCst);
    end_of(s, state).look(parsed(bits).ok()?).ok()
}

/// Of a connector's end that has closed: where its peer announces its listener, if the carrier can
/// be taken.
pub(crate) fn parked_for(s: &Socket, channel: &Channel) -> Option<u16> {
    let word = parsed(channel.life(s.slot.load(Relaxed) as usize).load(SeqCst)).ok()?;
    let seen = end_of(s, lives::State::Closed).look(word);
    (seen == Ok(Seen::Parked)).then_some(word.place)
}

/// The peer's application has closed this life in good order, as far as the words say: behind what
/// the ring has comes the end. The caller has found that the peer takes nothing more.
#[cold]
#[inline(never)]
pub(crate) fn has_closed(s: &Socket) -> bool {
    // (A receiver that has frozen waits for what the peer answers, or for the carrier's end.)
    let known = s.life.load(Relaxed) != 0
        && s.is(State::Attached)
        && !s.is_inherited()
        && !s.published.is_frozen();
    known && s.channel().is_some_and(|c| look(s, c, lives::State::Open) == Some(Seen::PeerClosed))
}
