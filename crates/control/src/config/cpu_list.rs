//! CPU lists in the notation of `taskset -c`: `0`, `1-3`, `1,3,4`.

use alloc::vec::Vec;
use core::fmt;

/// Largest CPU number that a list may name.
pub const CPU_MAX: u32 = 8191;

/// A set of CPUs; empty means no restriction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuList {
    /// Sorted, each once.
    cpus: Vec<u32>,
}

impl CpuList {
    /// Parses a list. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<CpuList, &'static str> {
        let mut cpus = Vec::new();
        if text.trim().is_empty() {
            return Ok(CpuList { cpus });
        }
        for item in text.split(',') {
            let (first, last) = match item.split_once('-') {
                Some((first, last)) => (cpu(first)?, cpu(last)?),
                None => (cpu(item)?, cpu(item)?),
            };
            if first > last {
                return Err("a range that ends before it starts");
            }
            cpus.extend(first..=last);
            // Bounds the memory of a list such as "0-8191,0-8191,…".
            if cpus.len() > 2 * (CPU_MAX as usize + 1) {
                cpus.sort_unstable();
                cpus.dedup();
            }
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(CpuList { cpus })
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.cpus.iter().copied()
    }

    /// Whether no CPU is named: no restriction.
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty()
    }

    /// Number of CPUs.
    pub fn len(&self) -> usize {
        self.cpus.len()
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if(|next| *next == last.wrapping_add(1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                1 => write!(f, "{separator}{first},{last}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

fn cpu(text: &str) -> Result<u32, &'static str> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a list of CPU numbers");
    }
    match text.parse::<u32>() {
        Ok(number) if number <= CPU_MAX => Ok(number),
        _ => Err("a CPU number that is too large"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<u32> {
        CpuList::parse(text).unwrap().iter().collect()
    }

    #[test]
    fn the_three_notations_of_the_manual() {
        assert_eq!(list("0"), [0]);
        assert_eq!(list("1-3"), [1, 2, 3]);
        assert_eq!(list("1,3,4"), [1, 3, 4]);
        assert_eq!(list(" 7 , 0-2,1"), [0, 1, 2, 7]);
        assert_eq!(list(""), []);
    }

    #[test]
    fn how_many_there_are() {
        let of = |text: &str| CpuList::parse(text).unwrap();
        assert!(of(" ").is_empty() && CpuList::default().is_empty());
        assert!(!of("0").is_empty());
        assert_eq!([of("").len(), of("5").len(), of("1-3,2,9").len()], [0, 1, 4]);
    }

    #[test]
    fn a_list_that_repeats_itself_takes_no_more_memory() {
        let all = CPU_MAX as usize + 1;
        let list = CpuList::parse(&["0-8191"; 400].join(",")).unwrap();
        assert_eq!(list.len(), all);
        assert!(list.cpus.capacity() <= 8 * all, "{}", list.cpus.capacity());
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["a", "1-", "-1", "3-1", "1,,2", ",", "1-2-3", "8192", "99999999999", "0x1", "+1"]
        {
            assert!(CpuList::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn display_is_canonical() {
        assert_eq!(CpuList::parse("3,1,2,9,5,6").unwrap().to_string(), "1-3,5,6,9");
        let text = CpuList::parse("0-8191,0-8191,0-8191").unwrap();
        assert_eq!(text.to_string(), "0-8191");
        assert_eq!(CpuList::parse(&text.to_string()).unwrap(), text);
    }
}
