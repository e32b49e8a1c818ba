//! The events, and the table in words that goes with every file: one line for each, its position
//! is its number. A field takes bits of the event's second word, from the lowest on.
//!
//! ```text
//! event reason reason:16:reason
//! words reason none negotiating …
//! ```

use crate::stats::{Path, Reason};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

macro_rules! events {
    ($($variant:ident $name:literal $fields:literal $doc:literal;)*) => {
        /// What is recorded.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Event { $(#[doc = $doc] $variant),* }

        impl Event {
            /// Every event, by number.
            pub const ALL: &'static [Event] = &[$(Event::$variant),*];
            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $(Event::$variant => $name),* }
            }
            /// Its fields, as in the table.
            pub const fn fields(self) -> &'static str {
                match self { $(Event::$variant => $fields),* }
            }
            /// What it means.
            pub const fn doc(self) -> &'static str {
                match self { $(Event::$variant => $doc),* }
            }
        }
    };
}

events! {
    None "none" "" "Nothing.";
    Connected "connected" "fd:32" "The process made the connection.";
    Accepted "accepted" "fd:32" "The process accepted it.";
    Found "found" "fd:32" "It was there already: it was inherited, passed, or tracing was turned on.";
    Reason "reason" "reason:16:reason" "Why the connection is where it is, from here on: each step and each refusal of the agreement.";
    Noted "noted" "path:8:path" "It is in use: an agreement with its peer is sought.";
    Offered "offered" "path:8:path slot:32" "Both ends have agreed.";
    Attached "attached" "path:8:path slot:24 peer_pid:32" "It has its place on the path: each direction can leave TCP.";
    Promoted "promoted" "side:8:side offset:56" "A direction left TCP for the path, at that byte of the stream.";
    Demoted "demoted" "side:8:side offset:56" "A direction went back to TCP, at that byte.";
    Leaves "leaves" "reason:16:reason strict:1" "It is about to go back to TCP for good.";
    Plain "plain" "reason:16:reason" "It is the kernel's alone.";
    Sent "sent" "path:4:path messages:24 bytes:36" "So much was sent since the event before that says so, by so many calls.";
    Received "received" "path:4:path messages:24 bytes:36" "So much was received since the event before that says so, by so many calls.";
    Full "full" "side:8:side" "A send found no room.";
    Sleep "sleep" "side:8:side" "A thread sleeps in a call on it.";
    Wake "wake" "side:8:side woke:8:woke" "That thread goes on.";
    Doorbell "doorbell" "" "A sleeping peer was woken.";
    SleepInSet "sleep-in-set" "epfd:32" "A thread sleeps in epoll_wait.";
    WakeInSet "wake-in-set" "epfd:32 events:32" "It goes on, with so many events of the kernel's.";
    SleepInPoll "sleep-in-poll" "fds:32" "A thread sleeps in poll or select.";
    WakeInPoll "wake-in-poll" "fds:32 events:32" "It goes on, with so many descriptors ready in the kernel.";
    Shutdown "shutdown" "how:8:how" "The program shut it down.";
    Eof "eof" "" "The program was told that the peer has ended its stream.";
    Error "error" "errno:16" "The program was told an error of the connection.";
    PeerGone "peer-gone" "" "The peer is gone with bytes unread: it counts as reset.";
    TakenOut "taken-out" "mss:16 srtt_us:32" "It was taken out of the kernel (utcp): TCP in user space goes on with it.";
    Retransmitted "retransmitted" "times:24 bytes:40" "Losses were seen and mended without a timeout (utcp): so often, and so many bytes were sent again, since the event before that says so.";
    Rto "rto" "times:16 in_a_row:16 rto_ms:32" "The retransmission timeout has passed (utcp): so often since the event before that says so, and so often in a row.";
    Probed "probed" "times:16 window:48" "The peer was asked for an answer (utcp): its window is closed, or nothing comes.";
    GivenBack "given-back" "reason:16:reason why:8:back" "The kernel has it again (utcp).";
    Slow "slow" "wait:8:slow ms:32" "A wait was too long: of a send for room, of an agreement while the connection was used, of what was sent over RDMA for its arrival.";
    BrokenOff "broken-off" "" "The library broke it off: bytes would be missing.";
    Corrupt "corrupt" "" "The peer broke the rules: it was reset.";
    Closed "closed" "" "The process closed it.";
    Exec "exec" "" "The process becomes another program.";
    Exit "exit" "" "The process ends in order.";
    Send "send" "offset:40 bytes:24" "A call began that sent so many bytes, from that byte of the stream on (NACC_TRACE=2).";
    Receive "receive" "offset:40 bytes:24" "A call has received so many bytes, from that byte of the stream on (NACC_TRACE=2).";
}

/// Words for the values of fields.
const SIDES: &[&str] = &["receive", "send"];
const WOKE: &[&str] = &["news", "timeout", "signal"];
const HOW: &[&str] = &["read", "write", "both"];

macro_rules! words {
    ($all:ident $what:ident $says:literal $($variant:ident $name:literal $doc:literal;)*) => {
        #[doc = $says]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $what { $(#[doc = $doc] $variant),* }
        const $all: &[&str] = &[$($name),*];
    };
}

words! {
    BACK Back "What made the kernel go on with a connection that was out of it."
    Asked "asked" "This process wants it there.";
    Fin "fin" "The peer sends no more.";
    Reset "reset" "A reset came.";
    Urgent "urgent" "Urgent data came.";
    Foreign "foreign" "An option came that is not understood.";
    NoTimeStamp "no-time-stamp" "A segment came without the time stamp that was agreed on.";
    Timeouts "timeouts" "Too many timeouts in a row.";
    UserTimeout "user-timeout" "TCP_USER_TIMEOUT has passed.";
    KeepAlive "keep-alive" "Probes of SO_KEEPALIVE were not answered.";
    Device "device" "The device did not take its packets.";
    Rerouted "rerouted" "Its packets go another way, or in shorter pieces.";
    NotKept "not-kept" "The keeper is gone.";
}

words! {
    SLOW Slow "Which wait was too long."
    Send "send" "A send found no room.";
    Agreement "agreement" "An agreement was sought, while the connection was used.";
    Rdma "rdma" "Nothing arrived on a queue pair.";
}

/// Says the table, piece by piece.
pub fn write_table(say: &mut dyn FnMut(&str)) {
    for event in Event::ALL {
        for part in ["event ", event.name(), " ", event.fields(), "\n"] {
            say(part);
        }
    }
    let mut words = |name: &str, words: &mut dyn Iterator<Item = &'static str>| {
        say("words ");
        say(name);
        for word in words {
            say(" ");
            say(word);
        }
        say("\n");
    };
    words("reason", &mut Reason::ALL.iter().map(|reason| reason.name()));
    words("path", &mut Path::ALL.iter().map(|path| path.name()));
    words("side", &mut SIDES.iter().copied());
    words("woke", &mut WOKE.iter().copied());
    words("how", &mut HOW.iter().copied());
    words("back", &mut BACK.iter().copied());
    words("slow", &mut SLOW.iter().copied());
}

/// A field of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    bits: u32,
    words: Option<String>,
}

/// What an event says: the fields with their values, and words where there are such.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meaning<'a> {
    /// The event's name.
    pub name: &'a str,
    /// Its fields.
    pub fields: Vec<(&'a str, u64, Option<&'a str>)>,
}

/// The table of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    events: Vec<(String, Vec<Field>)>,
    words: Vec<(String, Vec<String>)>,
}

/// No table has more of anything.
const MOST: usize = 256;
/// No event has more.
const FIELDS_MAX: usize = 8;

impl Table {
    /// Reads it. What is no line of a table does not count.
    pub fn parse(text: &str) -> Table {
        let mut table = Table::default();
        for line in text.lines().take(MOST) {
            let mut parts = line.split(' ').filter(|part| !part.is_empty());
            match (parts.next(), parts.next()) {
                (Some("event"), Some(name)) => {
                    let fields = parts.take(FIELDS_MAX).filter_map(field).collect();
                    table.events.push((tidy(name), fields));
                }
                (Some("words"), Some(name)) => {
                    table.words.push((tidy(name), parts.take(MOST).map(tidy).collect()));
                }
                _ => {}
            }
        }
        table
    }

    /// What an event means, by its number and its second word; `None`: the table does not have it.
    pub fn meaning(&self, number: u32, what: u64) -> Option<Meaning<'_>> {
        let (name, fields) = self.events.get(number as usize)?;
        let mut rest = what;
        let mut said = Vec::new();
        for field in fields {
            let mask = u64::MAX.checked_shr(64 - field.bits).unwrap_or(0);
            let value = rest & mask;
            rest = rest.checked_shr(field.bits).unwrap_or(0);
            said.push((field.name.as_str(), value, self.word(field, value)));
        }
        Some(Meaning { name, fields: said })
    }

    fn word(&self, field: &Field, value: u64) -> Option<&str> {
        let (_, words) = self.words.iter().find(|(name, _)| Some(name) == field.words.as_ref())?;
        words.get(usize::try_from(value).ok()?).map(String::as_str)
    }

    /// The names of all events.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.events.iter().map(|(name, _)| name.as_str())
    }
}

fn field(text: &str) -> Option<Field> {
    let mut parts = text.split(':');
    let (name, bits) = (parts.next()?, parts.next()?.parse().ok()?);
    (1..=64).contains(&bits).then(|| Field {
        name: tidy(name),
        bits,
        words: parts.next().map(tidy),
    })
}

/// A word of a table can be printed as it is.
fn tidy(text: &str) -> String {
    const LONGEST: usize = 64;
    let printable = |c: &char| c.is_ascii_graphic();
    match text.chars().all(|c| printable(&c)) && text.len() <= LONGEST {
        true => text.to_owned(),
        false => text.chars().filter(printable).take(LONGEST).collect(),
    }
}
