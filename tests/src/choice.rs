//! Which scenarios a run has.

/// By names, and by share.
#[derive(Default)]
pub struct Choice {
    /// Those whose names contain one of these; all, where there are none.
    pub filter: Vec<String>,
    /// Not those of these names, or whose names begin with one that ends with a slash.
    pub except: Vec<String>,
    /// Only the n-th part of so many, from 0.
    pub share: Option<(u64, u64)>,
    /// These belong to every part; names as in `except`.
    pub everywhere: Vec<String>,
}

impl Choice {
    pub fn has(&self, name: &str) -> bool {
        let named = self.filter.is_empty() || self.filter.iter().any(|f| name.contains(f.as_str()));
        let mine = |(part, parts)| place(name) % parts == part || is_one(&self.everywhere, name);
        named && !is_one(&self.except, name) && self.share.is_none_or(mine)
    }

    /// `K/N`: the K-th of N parts, from 1.
    pub fn share(text: &str) -> Option<(u64, u64)> {
        let (part, parts) = text.split_once('/')?;
        let (part, parts) = (part.parse::<u64>().ok()?, parts.parse::<u64>().ok()?);
        (1..=parts).contains(&part).then(|| (part - 1, parts))
    }
}

fn is_one(names: &[String], name: &str) -> bool {
    names.iter().any(|n| n == name || (n.ends_with('/') && name.starts_with(n.as_str())))
}

/// A number that depends on the name alone (FNV-1a), so that a scenario stays in its part.
fn place(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    hash >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario;

    #[test]
    fn each_scenario_is_in_one_part_and_those_named_are_in_all() {
        let choice = |text| Choice {
            share: Choice::share(text),
            everywhere: vec!["ends/".to_string(), "data/peek".to_string()],
            ..Choice::default()
        };
        let parts = [choice("1/2"), choice("2/2")];
        let (mut of_first, mut of_second) = (0, 0);
        for s in scenario::all() {
            let [first, second] = parts.each_ref().map(|part| part.has(s.name));
            let all = s.name.starts_with("ends/") || s.name == "data/peek";
            assert_eq!((first && second, first || second), (all, true), "{}", s.name);
            of_first += usize::from(first);
            of_second += usize::from(second);
        }
        assert!(of_first.abs_diff(of_second) * 10 < of_first, "{of_first} and {of_second}");
        assert_eq!(place("data/peek"), place("data/peek"));
    }

    #[test]
    fn a_share_is_one_of_so_many() {
        assert_eq!(Choice::share("2/3"), Some((1, 3)));
        for wrong in ["", "1", "0/2", "3/2", "1/0", "a/2", "1/2/3"] {
            assert_eq!(Choice::share(wrong), None, "{wrong}");
        }
    }
}
