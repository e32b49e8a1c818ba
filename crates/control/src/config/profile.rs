//! Profiles: parameters that go together, by one word on the command line of `netacc_run`.

use super::Key;

/// Some parameters, and their values in the form they have in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// What it sets.
    pub values: &'static [(Key, &'static str)],
}

/// All of them.
pub const PROFILES: [Profile; 3] = [
    Profile {
        name: "latency",
        doc: "waits poll longer, and on plain TCP too: for machines with CPUs to spare",
        values: &[(Key::PollMs, "1"), (Key::PollTcpUs, "60")],
    },
    Profile {
        name: "throughput",
        doc: "larger rings: for few connections that carry much",
        values: &[(Key::BufferBytes, "65536")],
    },
    Profile {
        name: "polite",
        doc: "no wait ever polls: the least CPU time",
        values: &[(Key::PollMs, "0"), (Key::PollTcpUs, "0")],
    },
];

impl Profile {
    /// The profile of that name.
    pub fn from_name(name: &str) -> Option<&'static Profile> {
        PROFILES.iter().find(|profile| profile.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, NO_USERS, Origin};
    use super::*;

    #[test]
    fn what_a_profile_sets_is_valid_alone_and_over_the_installed_file() {
        let all: String = Key::ALL
            .iter()
            .map(|k| std::format!("{}=\"{}\"\n", k.name(), k.default_text()))
            .collect();
        let file = std::format!("[netacc]\n{all}");
        for profile in PROFILES {
            for file in [None, Some(("f", file.as_str()))] {
                let (config, origins) =
                    Config::resolve(file, &|_| None, profile.values, NO_USERS).unwrap();
                for (key, value) in profile.values {
                    assert_eq!(config.value_text(*key), *value, "{}", profile.name);
                    assert_eq!(origins.of(*key), Origin::CommandLine);
                }
            }
            assert_eq!(Profile::from_name(profile.name), Some(&profile));
        }
        assert_eq!(Profile::from_name("other"), None);
    }
}
