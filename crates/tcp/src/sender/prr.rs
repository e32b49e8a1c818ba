//! Proportional Rate Reduction (RFC 6937): how much may be sent during recovery.

use super::super::seq::Position;

#[derive(Debug)]
pub(crate) struct Prr {
    /// RecoverFS: what was outstanding when recovery began.
    flight: u64,
    delivered: u64,
    out: u64,
    left: u64,
    /// The recovery ends when everything below this is acknowledged: RecoveryPoint.
    pub(crate) until: Position,
}

impl Prr {
    pub(crate) fn new(una: Position, nxt: Position) -> Self {
        Self { flight: (nxt - una).max(1), delivered: 0, out: 0, left: 0, until: nxt }
    }

    /// So many bytes were sent.
    pub(crate) const fn sent(&mut self, bytes: u64) {
        self.out += bytes;
        self.left = self.left.saturating_sub(bytes);
    }

    /// How much may still be sent.
    pub(crate) const fn left(&self) -> u64 {
        self.left
    }

    /// An acknowledgement delivered so much.
    pub(crate) fn allow(&mut self, delivered: u64, pipe: u64, ssthresh: u64, mss: u64) {
        self.left = self.allowance(delivered, pipe, ssthresh, mss);
    }

    /// How much may be sent in answer to it (RFC 6937, 3): sndcnt.
    fn allowance(&mut self, delivered: u64, pipe: u64, ssthresh: u64, mss: u64) -> u64 {
        self.delivered += delivered;
        let allowed = if pipe > ssthresh {
            // Proportional Rate Reduction.
            let due = u128::from(self.delivered) * u128::from(ssthresh);
            let due = due.div_ceil(u128::from(self.flight));
            u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(self.out)
        } else {
            // PRR-SSRB.
            let limit = self.delivered.saturating_sub(self.out).max(delivered) + mss;
            limit.min(ssthresh - pipe)
        };
        // The first retransmission goes out whatever the network holds (RFC 6675, 5 (4.3)).
        if self.out == 0 { allowed.max(mss) } else { allowed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    /// The figure of RFC 6937, 4: 20 segments in flight, the first one lost, ssthresh half of it.
    #[test]
    fn one_loss_out_of_twenty_sends_for_every_second_acknowledgement() {
        let mut prr = Prr::new(0, 20 * MSS);
        let mut pipe = 19 * MSS;
        let mut sent = 0;
        for _ in 0..19 {
            pipe -= MSS;
            let allowed = prr.allowance(MSS, pipe, 10 * MSS, MSS);
            let now = allowed / MSS * MSS;
            prr.sent(now);
            pipe += now;
            sent += now;
        }
        // As many as ssthresh have gone out when the last of the flight has arrived.
        assert!((9 * MSS..=10 * MSS).contains(&sent), "{sent}");
        assert!(pipe <= 10 * MSS);
    }

    /// RFC 6937, 4, second figure: the first 15 of 20 are lost.
    #[test]
    fn a_burst_of_losses_is_answered_by_slow_start() {
        let mut prr = Prr::new(0, 20 * MSS);
        // Five arrive; all else is lost when the third does.
        let mut pipe = 2 * MSS;
        assert_eq!(prr.allowance(3 * MSS, pipe, 10 * MSS, MSS), 4 * MSS);
        prr.sent(4 * MSS);
        pipe += 4 * MSS;
        // Each delivery lets two be sent: one for itself, one of slow start.
        pipe -= MSS;
        assert_eq!(prr.allowance(MSS, pipe, 10 * MSS, MSS), 2 * MSS);
    }

    #[test]
    fn it_never_goes_beyond_ssthresh() {
        let mut prr = Prr::new(0, 20 * MSS);
        prr.sent(MSS);
        assert_eq!(prr.allowance(15 * MSS, 9 * MSS, 10 * MSS, MSS), MSS);
        assert_eq!(prr.allowance(MSS, 10 * MSS, 10 * MSS, MSS), 0);
    }
}
