//! Latency histograms, medians and ratios.

use hdrhistogram::Histogram;
use serde_json::Value;
use std::time::Duration;

/// Latencies in nanoseconds, to three significant digits, up to ten minutes.
pub(crate) type Latencies = Histogram<u64>;

const MAX_NS: u64 = 600_000_000_000;

pub(crate) fn latencies() -> Latencies {
    // These bounds are valid whatever the argument.
    Histogram::new_with_bounds(1, MAX_NS, 3).unwrap_or_else(|_| unreachable!())
}

pub(crate) fn record(latencies: &mut Latencies, latency: Duration) {
    record_many(latencies, latency, 1);
}

pub(crate) fn record_many(latencies: &mut Latencies, latency: Duration, count: u64) {
    latencies.saturating_record_n(u64::try_from(latency.as_nanos()).unwrap_or(MAX_NS), count);
}

/// The histogram as `[[nanoseconds, count], …]`, for another process.
pub(crate) fn pairs(latencies: &Latencies) -> Value {
    latencies
        .iter_recorded()
        .map(|v| Value::from(vec![v.value_iterated_to(), v.count_at_value()]))
        .collect()
}

/// The reverse of [`pairs`].
pub(crate) fn from_pairs(pairs: &Value) -> Option<Latencies> {
    let mut latencies = latencies();
    for pair in pairs.as_array()? {
        latencies.saturating_record_n(pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?);
    }
    Some(latencies)
}

/// Median; the mean of the middle two when their number is even. `None` of nothing.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// Typical cost of reading the clock that every latency contains once.
pub(crate) fn clock_cost() -> Duration {
    let mut costs: Vec<Duration> = (0..101)
        .map(|_| {
            let start = std::time::Instant::now();
            for _ in 0..100 {
                std::hint::black_box(std::time::Instant::now());
            }
            start.elapsed() / 100
        })
        .collect();
    costs.sort();
    costs[costs.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median([4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn histogram_travels_between_processes() {
        let mut h = latencies();
        for ns in [1_u64, 250, 251, 64_000, 64_000, 5_000_000_000] {
            record(&mut h, Duration::from_nanos(ns));
        }
        record(&mut h, Duration::from_secs(100_000));
        let text = pairs(&h).to_string();
        let back = from_pairs(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(back.len(), 7);
        for q in [0.0, 0.5, 0.99, 1.0] {
            assert_eq!(back.value_at_quantile(q), h.value_at_quantile(q));
        }
        assert!(from_pairs(&Value::Null).is_none());
        assert!(from_pairs(&serde_json::json!([[1]])).is_none());
    }
}
