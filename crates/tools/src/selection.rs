//! Which connections are shown, and in which order.

use netacc_control::stats::{Connection, Path, Reason};
use netacc_control::trace::Latency;
use std::cmp::Reverse;
use std::net::IpAddr;

/// An address, or all that begin as it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    /// `10.0.0.1`, `10.0.0.0/8`, `2001:db8::/32`.
    pub fn parse(text: &str) -> Result<Network, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let valid = "an address, or a network such as 10.0.0.0/8";
        let address: IpAddr = address.parse().map_err(|_| String::from(valid))?;
        let address = address.to_canonical();
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => {
                let bits = bits.parse().ok().filter(|bits| *bits <= most);
                bits.ok_or_else(|| format!("behind the slash 0 to {most}"))?
            }
        };
        Ok(Network { address, bits })
    }

    /// Whether an address is in it.
    pub fn contains(self, other: IpAddr) -> bool {
        let begins = |a: u128, b: u128, width: u32| {
            let shift = width - self.bits.min(width);
            // (All 128 bits at once are shifted out by no single shift.)
            a.checked_shr(shift) == b.checked_shr(shift)
        };
        match (self.address, other.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => begins(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => begins(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }
}

/// The order of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// By descriptor.
    #[default]
    Fd,
    /// By the peer's address and port.
    Peer,
    /// By the path of what is sent.
    Path,
    /// By reason.
    Reason,
    /// Most bytes sent first.
    Sent,
    /// Most bytes received first.
    Received,
    /// Most calls that sent or received something first.
    Messages,
    /// Longest median of its answers first, unmeasured ones last.
    AnswerP50,
    /// Longest of what 99 of 100 of its answers do not exceed first, as before.
    AnswerP99,
    /// The same of what it takes to answer.
    ServeP99,
    /// Oldest first.
    Age,
}

impl Order {
    /// Every order.
    pub const ALL: [Order; 11] = [
        Order::Fd,
        Order::Peer,
        Order::Path,
        Order::Reason,
        Order::Sent,
        Order::Received,
        Order::Messages,
        Order::AnswerP50,
        Order::AnswerP99,
        Order::ServeP99,
        Order::Age,
    ];

    /// The word of `--sort`.
    pub fn word(self) -> &'static str {
        match self {
            Order::Fd => "fd",
            Order::Peer => "peer",
            Order::Path => "path",
            Order::Reason => "reason",
            Order::Sent => "sent",
            Order::Received => "received",
            Order::Messages => "messages",
            Order::AnswerP50 => "answer-p50",
            Order::AnswerP99 => "answer-p99",
            Order::ServeP99 => "serve-p99",
            Order::Age => "age",
        }
    }

    /// Of which times it is, and of which of a thousand.
    pub fn latency(self) -> Option<(Latency, u64)> {
        match self {
            Order::AnswerP50 => Some((Latency::Answer, 500)),
            Order::AnswerP99 => Some((Latency::Answer, 990)),
            Order::ServeP99 => Some((Latency::Serve, 990)),
            _ => None,
        }
    }

    /// The order of that word.
    pub fn from_word(word: &str) -> Option<Order> {
        Order::ALL.into_iter().find(|order| order.word() == word)
    }
}

/// What is asked for. A connection has to be one of each list that is not empty.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Its port, here or at the peer.
    pub ports: Vec<u16>,
    /// Its peer.
    pub peers: Vec<Network>,
    /// The path of a direction.
    pub paths: Vec<Path>,
    /// Its reason.
    pub reasons: Vec<Reason>,
    /// The order.
    pub order: Order,
}

impl Selection {
    /// Whether every connection is shown.
    pub fn is_all(&self) -> bool {
        self.ports.is_empty()
            && self.peers.is_empty()
            && self.paths.is_empty()
            && self.reasons.is_empty()
    }

    /// Those that are shown, in order; of the time that it may go by, this is known.
    pub fn of<'a>(
        &self,
        connections: &'a [Connection],
        time: impl Fn(&Connection) -> Option<u64>,
    ) -> Vec<&'a Connection> {
        let mut shown: Vec<&Connection> =
            connections.iter().filter(|connection| self.has(connection)).collect();
        match self.order {
            Order::Fd => shown.sort_by_key(|c| c.fd),
            Order::Peer => shown.sort_by_key(|c| (c.peer, c.fd)),
            Order::Path => shown.sort_by_key(|c| (c.tx_path, c.rx_path, c.fd)),
            Order::Reason => shown.sort_by_key(|c| (c.reason, c.fd)),
            Order::Sent => shown.sort_by_key(|c| (Reverse(sum(&c.tx_bytes)), c.fd)),
            Order::Received => shown.sort_by_key(|c| (Reverse(sum(&c.rx_bytes)), c.fd)),
            Order::Messages => {
                let messages = |c: &Connection| c.tx_messages.saturating_add(c.rx_messages);
                shown.sort_by_key(|c| (Reverse(messages(c)), c.fd));
            }
            Order::AnswerP50 | Order::AnswerP99 | Order::ServeP99 => {
                shown.sort_by_cached_key(|c| (Reverse(time(c)), c.fd));
            }
            Order::Age => shown.sort_by_key(|c| (c.opened_unix_ns, c.fd)),
        }
        shown
    }

    /// Whether it is shown.
    pub fn has(&self, connection: &Connection) -> bool {
        let ends = || [connection.local, connection.peer].into_iter().flatten();
        let ways = [connection.tx_path, connection.rx_path];
        (self.ports.is_empty() || ends().any(|end| self.ports.contains(&end.port())))
            && (self.peers.is_empty()
                || connection.peer.is_some_and(|peer| {
                    self.peers.iter().any(|network| network.contains(peer.ip()))
                }))
            && (self.paths.is_empty()
                || self.paths.iter().any(|path| ways.contains(&(*path as u32))))
            && (self.reasons.is_empty()
                || self.reasons.iter().any(|reason| *reason as u32 == connection.reason))
    }
}

/// Bytes on all paths.
pub fn sum(bytes: &[u64]) -> u64 {
    bytes.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        let contains = |network: &str, address: &str| {
            Network::parse(network).unwrap().contains(address.parse().unwrap())
        };
        for (network, address, is_in) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.0/8", "10.255.0.2", true),
            ("10.0.0.0/8", "11.0.0.2", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "2001:db9::1", true),
        ] {
            assert_eq!(contains(network, address), is_in, "{network} {address}");
        }
        for wrong in ["", "x", "10.0.0.0/33", "10.0.0.0/", "::/129", "10.0.0.0/-1"] {
            assert!(Network::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn orders_have_words() {
        for order in Order::ALL {
            assert_eq!(Order::from_word(order.word()), Some(order));
        }
        assert_eq!(Order::from_word("colour"), None);
    }
}
