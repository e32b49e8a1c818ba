//! The congestion window: slow start (RFC 5681) and CUBIC (RFC 9438).
//!
//! Not here: HyStart++ (RFC 9406), pacing, and going back after a loss that was none (RFC 9438,
//! 4.9).

use crate::Nanos;

/// RFC 9438, 5, and 4.6.
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// 4.3: with it Reno's growth has the same average window as a Reno with halves.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Beyond this no network is; below it bytes have an exact f64.
const CWND_MAX: f64 = (1_u64 << 40) as f64;

#[derive(Debug)]
pub(crate) struct Cubic {
    mss: f64,
    /// In bytes, with fractions.
    cwnd: f64,
    ssthresh: f64,
    /// In segments, as all that follows.
    w_max: f64,
    cwnd_prior: f64,
    epoch: Option<Epoch>,
}

/// A stage of congestion avoidance.
#[derive(Debug)]
struct Epoch {
    began: Nanos,
    k: f64,
    w_max: f64,
    /// W_est: the window that Reno would have.
    reno: f64,
}

#[expect(clippy::cast_precision_loss, reason = "windows and times are below 2^53")]
const fn float(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
const fn whole(value: f64) -> u64 {
    (value + 0.5) as u64
}

fn seconds(time: Nanos) -> f64 {
    float(time) / 1e9
}

/// The cube root of what is not negative.
fn cube_root(of: f64) -> f64 {
    if of <= 0.0 {
        return 0.0;
    }
    // Newton's method, from above: it falls until it is exact.
    let mut root = of.max(1.0);
    loop {
        let next = (2.0 * root + of / (root * root)) / 3.0;
        if next >= root {
            return root;
        }
        root = next;
    }
}

impl Cubic {
    /// Goes on from the kernel's window and threshold, in bytes.
    pub(crate) fn new(mss: u64, cwnd: u64, ssthresh: u64) -> Self {
        let mss = float(mss.max(1));
        let cwnd = float(cwnd).clamp(mss, CWND_MAX);
        let ssthresh = float(ssthresh).clamp(2.0 * mss, CWND_MAX);
        Self { mss, cwnd, ssthresh, w_max: 0.0, cwnd_prior: 0.0, epoch: None }
    }

    pub(crate) const fn cwnd(&self) -> u64 {
        whole(self.cwnd)
    }

    pub(crate) const fn ssthresh(&self) -> u64 {
        whole(self.ssthresh)
    }

    /// During recovery PRR says how large it is.
    pub(crate) const fn set_cwnd(&mut self, cwnd: u64) {
        self.cwnd = float(cwnd).clamp(self.mss, CWND_MAX);
    }

    /// The segment has another size: the windows stay what they are in bytes.
    pub(crate) const fn set_mss(&mut self, mss: u64) {
        let mss = float(if mss == 0 { 1 } else { mss });
        self.w_max = self.w_max * self.mss / mss;
        self.cwnd_prior = self.cwnd_prior * self.mss / mss;
        self.epoch = None;
        self.mss = mss;
        self.cwnd = self.cwnd.max(mss);
    }

    /// So many new bytes were acknowledged, and the window was what bounded the sender.
    pub(crate) fn on_ack(&mut self, now: Nanos, acked: u64, srtt: Nanos) {
        let mut acked = float(acked);
        if self.cwnd < self.ssthresh {
            // RFC 5681, 3.1. Not bounded for each acknowledgement (RFC 3465, L): receivers that
            // put packets together acknowledge much at once. As Linux does.
            let room = self.ssthresh - self.cwnd;
            let step = acked.min(room);
            self.cwnd += step;
            acked -= step;
        }
        if acked > 0.0 {
            self.avoid(now, acked / self.mss, srtt);
        }
        self.cwnd = self.cwnd.min(CWND_MAX);
    }

    /// RFC 9438, 4.2 to 4.5: congestion avoidance.
    fn avoid(&mut self, now: Nanos, segments_acked: f64, srtt: Nanos) {
        let cwnd = self.cwnd / self.mss;
        let w_max = self.w_max;
        let epoch = self.epoch.get_or_insert_with(|| {
            // 4.2: K; 4.8 and 4.10: after a timeout, and after slow start beyond W_max, K is 0.
            let w_max = w_max.max(cwnd);
            Epoch { began: now, k: cube_root((w_max - cwnd) / C), w_max, reno: cwnd }
        });
        let cubic = |t: f64| {
            let t = t - epoch.k;
            C * t * t * t + epoch.w_max
        };
        let t = seconds(now.saturating_sub(epoch.began));
        // 4.3: W_est. 1 as soon as the window of before is reached again.
        let alpha = if epoch.reno >= self.cwnd_prior { 1.0 } else { ALPHA };
        let w_cubic = cubic(t);
        let target = cubic(t + seconds(srtt)).clamp(cwnd, 1.5 * cwnd);
        epoch.reno += alpha * segments_acked / cwnd;
        let reno = epoch.reno;
        let next = if w_cubic < reno {
            cwnd.max(reno)
        } else {
            // 4.4 and 4.5, of one segment for each that was acknowledged.
            (cwnd + (target - cwnd) / cwnd * segments_acked).min(target.max(cwnd))
        };
        self.cwnd = next * self.mss;
    }

    /// The network lost something, or said that it is congested: RFC 9438, 4.6 and 4.7. `flight`
    /// is what is outstanding.
    pub(crate) fn on_congestion(&mut self, flight: u64) {
        let cwnd = self.cwnd / self.mss;
        // 4.7: fast convergence.
        self.w_max = if cwnd < self.w_max { cwnd * (1.0 + BETA) / 2.0 } else { cwnd };
        self.cwnd_prior = cwnd;
        self.epoch = None;
        // 4.6. What was not sent was not too much.
        self.ssthresh = (self.cwnd.min(float(flight)) * BETA).max(2.0 * self.mss);
    }

    /// The threshold is the window: recovery has ended, or ECN has asked for less.
    pub(crate) const fn fall_to_ssthresh(&mut self) {
        self.cwnd = self.ssthresh;
    }

    /// A timeout: the loss window of RFC 5681, 3.1 (7).
    pub(crate) const fn on_timeout(&mut self) {
        self.cwnd = self.mss;
        self.epoch = None;
    }

    /// Nothing was sent for longer than a timeout: RFC 5681, 4.1. The threshold remembers.
    pub(crate) const fn on_idle(&mut self, initial: u64) {
        let initial = float(initial).max(self.mss);
        if self.cwnd > initial {
            self.ssthresh = self.ssthresh.max(0.75 * self.cwnd);
            self.cwnd = initial;
        }
        self.epoch = None;
    }

    /// The initial window: RFC 6928, 2.
    pub(crate) const fn initial(mss: u64) -> u64 {
        let bound = if 2 * mss > 14600 { 2 * mss } else { 14600 };
        if 10 * mss < bound { 10 * mss } else { bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;
    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn cube_roots() {
        for of in [0.0, 1e-6, 0.3, 1.0, 8.0, 27.0, 1e6, 1e12] {
            let root: f64 = cube_root(of);
            assert!((root * root * root - of).abs() <= of * 1e-9 + 1e-12, "{of}: {root}");
        }
    }

    #[test]
    fn slow_start_doubles_the_window_in_a_round_trip() {
        let mut cubic = Cubic::new(MSS, 10 * MSS, u64::MAX);
        for _ in 0..10 {
            cubic.on_ack(0, MSS, 1);
        }
        assert_eq!(cubic.cwnd(), 20 * MSS);
    }

    #[test]
    fn a_loss_takes_three_tenths() {
        let mut cubic = Cubic::new(MSS, 100 * MSS, u64::MAX);
        cubic.on_congestion(100 * MSS);
        cubic.fall_to_ssthresh();
        assert_eq!(cubic.cwnd(), 70 * MSS);
        // 4.7: the second one, below W_max, gives room to others.
        cubic.on_congestion(70 * MSS);
        assert!((cubic.w_max - 70.0 * 0.85).abs() < 1e-9);
    }

    #[test]
    fn what_was_not_sent_was_not_too_much() {
        let mut cubic = Cubic::new(MSS, 100 * MSS, u64::MAX);
        cubic.on_congestion(10 * MSS);
        assert_eq!(cubic.ssthresh(), 7 * MSS);
        cubic.on_congestion(0);
        assert_eq!(cubic.ssthresh(), 2 * MSS);
    }

    /// RFC 9438, 4.2: W_cubic(K) is W_max, with K = cbrt(W_max * (1 - beta) / C).
    #[test]
    fn the_window_of_before_is_reached_after_k_and_then_left_behind() {
        let (rtt, window) = (SECOND / 10, 1000.0_f64);
        let mut cubic = Cubic::new(MSS, 1000 * MSS, u64::MAX);
        cubic.on_congestion(1000 * MSS);
        cubic.fall_to_ssthresh();
        let k = cube_root(window * 0.3 / 0.4);
        let mut now = 0;
        let mut at_k = 0.0;
        while seconds(now) < 2.0 * k {
            // A window each round trip.
            for _ in 0..100 {
                cubic.on_ack(now, cubic.cwnd() / 100, rtt);
                now += rtt / 100;
            }
            if seconds(now) < k {
                at_k = cubic.cwnd / cubic.mss;
                assert!(at_k <= window * 1.01, "concave below W_max: {at_k}");
            }
        }
        assert!(at_k > 0.98 * window, "{at_k}");
        // The curve is the same above: W_max + C * K^3 at 2 K.
        let end = cubic.cwnd / cubic.mss;
        assert!((end / (window * 1.3) - 1.0).abs() < 0.05, "{end}");
    }

    /// RFC 9438, 4.3: where Reno would have more, it is Reno: small windows, short round trips.
    #[test]
    fn on_short_round_trips_it_grows_as_reno_does() {
        let (rtt, window) = (SECOND / 1000, 20_u64);
        let mut cubic = Cubic::new(MSS, window * MSS, u64::MAX);
        cubic.on_congestion(window * MSS);
        cubic.fall_to_ssthresh();
        let mut now = 0;
        for _ in 0..8 {
            for _ in 0..cubic.cwnd() / MSS {
                cubic.on_ack(now, MSS, rtt);
            }
            now += rtt;
        }
        // alpha = 0.53 segments each round trip.
        let grown = cubic.cwnd / cubic.mss - 14.0;
        assert!((3.5..4.7).contains(&grown), "{grown}");
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_idleness_the_initial_window() {
        let mut cubic = Cubic::new(MSS, 100 * MSS, u64::MAX);
        cubic.on_idle(Cubic::initial(MSS));
        assert_eq!(cubic.cwnd(), 10 * MSS);
        cubic.on_timeout();
        assert_eq!(cubic.cwnd(), MSS);
        assert_eq!(Cubic::initial(1460), 14600);
        assert_eq!(Cubic::initial(9000), 18000);
    }

    #[test]
    fn nothing_makes_it_endless_or_zero() {
        let mut cubic = Cubic::new(0, u64::MAX, 0);
        for now in [0, 1, u64::MAX / 2, u64::MAX] {
            cubic.on_ack(now, u64::MAX, now);
            cubic.on_congestion(u64::MAX);
            cubic.on_ack(now, u64::MAX, u64::MAX);
            assert!(cubic.cwnd() >= 1 && cubic.cwnd() <= 1 << 40);
        }
    }
}
