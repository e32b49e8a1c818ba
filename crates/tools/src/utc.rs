//! Moments of the system's clock, as people read them.

/// `2026-11-30T07:05:31.123Z`: nanoseconds since 1970, in UTC, to a millisecond.
pub fn utc(unix_ns: u64) -> String {
    const DAY_MS: u64 = 86_400_000;
    let ms = unix_ns / 1_000_000;
    let (year, month, day) = date(ms / DAY_MS);
    let ms = ms % DAY_MS;
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// Year, month and day of so many days since 1970. (Counted from the first of March of the year 0:
/// then the day that a leap year has more is the last one, and months of 30 and 31 days follow each
/// other in the same order, 153 days for each five.)
fn date(days: u64) -> (u64, u64, u64) {
    /// From the first of March of the year 0 to 1970.
    const BEFORE: u64 = 719_468;
    /// Days of 400 years, of 100 and of 4, each without the leap day of the next longer ones.
    const FOUR_CENTURIES: u64 = 146_097;
    const CENTURY: u64 = 36_524;
    const FOUR: u64 = 1460;
    let days = days + BEFORE;
    let (cycle, day) = (days / FOUR_CENTURIES, days % FOUR_CENTURIES);
    let year = (day - day / FOUR + day / CENTURY - day / (FOUR_CENTURIES - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, is_next_year) = (day - (153 * month + 2) / 5 + 1, month >= 10);
    let month = if is_next_year { month - 9 } else { month + 3 };
    (400 * cycle + year + u64::from(is_next_year), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_said_as_in_the_calendar() {
        for (seconds, said) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_709_164_800, "2024-02-29T00:00:00"),
            (1_735_689_599, "2024-12-31T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
            (4_107_456_000, "2100-02-28T00:00:00"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000 + 7_999_999), format!("{said}.007Z"));
        }
        assert_eq!(utc(u64::MAX), "2554-07-21T23:34:33.709Z");
        // Each day follows the one before.
        let mut before = date(0);
        for day in 1..200_000 {
            let next = date(day);
            let (year, month, of_month) = before;
            let follows = next == (year, month, of_month + 1)
                || (next == (year, month + 1, 1) && of_month >= 28)
                || (next == (year + 1, 1, 1) && (month, of_month) == (12, 31));
            assert!(follows, "{before:?} {next:?}");
            before = next;
        }
    }
}
