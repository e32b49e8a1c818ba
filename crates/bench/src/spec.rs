//! What one run does, as the two processes are told it.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The traffic of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Traffic {
    /// One connection, one message to and fro, blocking `recv`.
    PingPong,
    /// The same, both ends in `epoll_wait`.
    PingPongEpoll,
    /// `connections` over `threads`, `pipeline` requests at a time, epoll.
    ReqRep,
    /// One connection, one way, writes of `request` bytes.
    Bulk,
    /// `threads` that connect, exchange one message, close.
    Rate,
    /// `connections` that do nothing.
    Idle,
}

/// Everything the client and the server need to know; travels as JSON in their arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) traffic: Traffic,
    /// Bytes from client to server in one message, or in one write of a bulk stream.
    pub(crate) request: usize,
    /// Bytes from server to client in one message.
    pub(crate) response: usize,
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    pub(crate) pipeline: usize,
    pub(crate) seconds: f64,
    pub(crate) warmup: f64,
}

impl Spec {
    pub(crate) fn to_argument(&self) -> crate::Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    pub(crate) fn from_argument(text: &str) -> crate::Result<Self> {
        Ok(serde_json::from_str(text)?)
    }

    /// How many ports the server listens on. One port takes about 14,000 connections from one
    /// address before the kernel starts to search long for a client port that is not in TIME_WAIT;
    /// a connection rate must not measure that.
    pub(crate) fn ports(&self) -> usize {
        if self.traffic == Traffic::Rate { 16 } else { 1 }
    }

    /// Unit of [`crate::run::Measured::rate`].
    pub(crate) fn rate_unit(&self) -> &'static str {
        match self.traffic {
            Traffic::PingPong | Traffic::PingPongEpoll => "round trips/s",
            Traffic::ReqRep => "requests/s",
            Traffic::Bulk => "bytes/s",
            Traffic::Rate => "connections/s",
            Traffic::Idle => "none",
        }
    }

    /// What the latency figures are of.
    pub(crate) fn latency_of(&self) -> &'static str {
        match self.traffic {
            Traffic::PingPong | Traffic::PingPongEpoll => "round trip",
            Traffic::ReqRep => "request to response",
            Traffic::Bulk => "one write",
            Traffic::Rate => "connect, request, response, close",
            Traffic::Idle => "first round trip after the idle time",
        }
    }
}

/// Which of the two processes run with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// neither
    Plain,
    /// both
    Accelerated,
    /// the server
    ServerOnly,
    /// the client
    ClientOnly,
}

impl Kind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Accelerated => "accelerated",
            Self::ServerOnly => "server-only",
            Self::ClientOnly => "client-only",
        }
    }

    pub(crate) fn on_server(self) -> bool {
        matches!(self, Self::Accelerated | Self::ServerOnly)
    }

    pub(crate) fn on_client(self) -> bool {
        matches!(self, Self::Accelerated | Self::ClientOnly)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_command_line() {
        let spec = Spec {
            traffic: Traffic::ReqRep,
            request: 512,
            response: 64,
            connections: 100,
            threads: 4,
            pipeline: 16,
            seconds: 0.5,
            warmup: 0.25,
        };
        let text = spec.to_argument().unwrap();
        assert_eq!(Spec::from_argument(&text).unwrap(), spec);
        assert!(Spec::from_argument("{}").is_err());
    }
}
