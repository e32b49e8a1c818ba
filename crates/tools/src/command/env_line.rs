//! What `env` makes of the one argument that a `#!` line has for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// What it starts, and with what environment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EnvLine {
    /// The program. `None`: it does not show from here.
    pub program: Option<OsString>,
    /// It starts that without LD_PRELOAD.
    pub drops_preload: bool,
}

/// Reads it as env(1) of coreutils does. Of words in quotes, escapes and variables nothing is said.
pub fn read(argument: Option<&OsStr>) -> EnvLine {
    let mut found = EnvLine::default();
    let Some(argument) = argument else { return found };
    let mut words = vec![argument.as_bytes().to_vec()];
    while !words.is_empty() {
        let word = words.remove(0);
        if !word.starts_with(b"-") {
            if word.contains(&b'=') {
                found.drops_preload &= !word.starts_with(b"LD_PRELOAD=");
                continue;
            }
            let is_plain = !word.is_empty() && !word.iter().any(|byte| b"\\\"'$".contains(byte));
            found.program = is_plain.then(|| OsStr::from_bytes(&word).to_owned());
            return found;
        }
        if word.starts_with(b"--") && word.len() > 2 {
            long(&word, &mut words, &mut found);
        } else {
            short(word.get(1..).unwrap_or_default(), &mut words, &mut found);
        }
    }
    found
}

/// A `--option`, with its value behind `=` or as the next word.
fn long(word: &[u8], words: &mut Vec<Vec<u8>>, found: &mut EnvLine) {
    let at = word.iter().position(|byte| *byte == b'=');
    let (name, value) = (&word[..at.unwrap_or(word.len())], at.map(|at| word[at + 1..].to_vec()));
    let mut value = || value.clone().or_else(|| (!words.is_empty()).then(|| words.remove(0)));
    match name {
        b"--ignore-environment" => found.drops_preload = true,
        b"--unset" => found.drops_preload |= value().as_deref() == Some(b"LD_PRELOAD"),
        b"--chdir" | b"--argv0" => drop(value()),
        b"--split-string" => {
            let value = value().unwrap_or_default();
            split(&value, words);
        }
        _ => {}
    }
}

/// Options of one letter, of which the last may have a value.
fn short(letters: &[u8], words: &mut Vec<Vec<u8>>, found: &mut EnvLine) {
    if letters.is_empty() {
        found.drops_preload = true;
    }
    for (at, letter) in letters.iter().enumerate() {
        let mut value = || match letters.get(at + 1..) {
            Some(rest) if !rest.is_empty() => rest.to_vec(),
            _ if words.is_empty() => Vec::new(),
            _ => words.remove(0),
        };
        match letter {
            b'i' => found.drops_preload = true,
            b'u' => return found.drops_preload |= value() == b"LD_PRELOAD",
            b'C' | b'a' => return drop(value()),
            b'S' => {
                let value = value();
                return split(&value, words);
            }
            _ => {}
        }
    }
}

fn split(text: &[u8], words: &mut Vec<Vec<u8>>) {
    let all = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.splice(0..0, all.map(<[u8]>::to_vec));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_env_starts() {
        for (line, program, drops_preload) in [
            ("python3", Some("python3"), false),
            ("python3 -u", Some("python3 -u"), false),
            ("-S python3 -u", Some("python3"), false),
            ("-S A=1 -i python3 -u", Some("python3"), true),
            ("-S - python3", Some("python3"), true),
            ("-S -i LD_PRELOAD=/x python3", Some("python3"), false),
            ("-S -u HOME -C /tmp python3", Some("python3"), false),
            ("-S -u LD_PRELOAD python3", Some("python3"), true),
            ("-S --unset=LD_PRELOAD python3", Some("python3"), true),
            ("-S --unset LD_PRELOAD python3", Some("python3"), true),
            ("-vS python3 -u", Some("python3"), false),
            ("-Spython3", Some("python3"), false),
            ("-iS python3", Some("python3"), true),
            ("--split-string=node --flag", Some("node"), false),
            ("--split-string node --flag", None, false),
            ("-S --ignore-signal=PIPE --chdir=/ node", Some("node"), false),
            ("-S \"my program\"", None, false),
            ("-S ${HOME}/x", None, false),
            ("-i", None, true),
            ("-u", None, false),
            ("-S", None, false),
            ("", None, false),
        ] {
            let program = program.map(OsString::from);
            let is = read(Some(OsStr::new(line)));
            assert_eq!(is, EnvLine { program, drops_preload }, "{line}");
        }
        assert_eq!(read(None), EnvLine::default());
    }
}
