//! The syntax of the configuration file: sections, `KEY=VALUE`, optional quotes, `#` comments.
//!
//! Knows nothing of the meaning of keys. Accepts a byte order mark, CRLF line ends and a last line
//! without newline.

use alloc::string::String;

/// One meaningful line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// `[name]`
    Section(&'a str),
    /// `key=value`, quotes removed.
    Pair(&'a str, &'a str),
    /// What is wrong with the line.
    Bad(&'static str),
}

/// The meaningful lines of `text` with their numbers, from 1, and their trimmed text.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (u32, &str, Line<'_>)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.split('\n').zip(1u32..).filter_map(|(raw, number)| {
        let raw = raw.trim();
        line(raw).map(|line| (number, raw, line))
    })
}

fn line(raw: &str) -> Option<Line<'_>> {
    if raw.is_empty() || raw.starts_with('#') {
        return None;
    }
    if let Some(rest) = raw.strip_prefix('[') {
        return Some(match rest.split_once(']') {
            Some((name, after)) if is_comment(after) => Line::Section(name.trim()),
            Some(_) => Line::Bad("text after the section name"),
            None => Line::Bad("a section name without its closing bracket"),
        });
    }
    let Some((key, value)) = raw.split_once('=') else {
        return Some(Line::Bad("not KEY=VALUE"));
    };
    let key = key.trim();
    if key.is_empty() {
        return Some(Line::Bad("a value without a key"));
    }
    Some(match unquote(value.trim()) {
        Ok(value) => Line::Pair(key, value),
        Err(problem) => Line::Bad(problem),
    })
}

fn unquote(value: &str) -> Result<&str, &'static str> {
    for quote in ['"', '\''] {
        let Some(rest) = value.strip_prefix(quote) else {
            continue;
        };
        return match rest.split_once(quote) {
            Some((inside, after)) if is_comment(after) => Ok(inside),
            Some(_) => Err("text after the closing quote"),
            None => Err("a quote that is not closed"),
        };
    }
    Ok(match value.split_once('#') {
        Some((value, _)) => value.trim_end(),
        None => value,
    })
}

fn is_comment(after: &str) -> bool {
    let after = after.trim_start();
    after.is_empty() || after.starts_with('#')
}

/// Writes a value in a form that [`lines`] reads back: quoted only where it must be. `None` when no
/// quotes can hold it.
pub(super) fn quote(value: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '#' | '"' | '\'');
    if value.chars().any(char::is_control) {
        None
    } else if !value.is_empty() && value.chars().all(plain) {
        Some(String::from(value))
    } else if !value.contains('"') {
        Some(alloc::format!("\"{value}\""))
    } else if !value.contains('\'') {
        Some(alloc::format!("'{value}'"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Line<'_> {
        let mut lines = lines(text);
        let (_, _, line) = lines.next().expect("a line");
        assert!(lines.next().is_none());
        line
    }

    #[test]
    fn the_forms_of_a_value() {
        for text in [
            "K=a b",
            "K = a b ",
            "\u{feff}K=a b",
            "K=a b\r\n",
            "K=\"a b\"",
            "K='a b' # why",
            "K=a b # why",
            "\tK=a b#why",
        ] {
            assert_eq!(one(text), Line::Pair("K", "a b"), "{text:?}");
        }
        assert_eq!(one("K=\"a#b\""), Line::Pair("K", "a#b"));
        assert_eq!(one("K='a\"b'"), Line::Pair("K", "a\"b"));
        assert_eq!(one("K=a=b"), Line::Pair("K", "a=b"));
        assert_eq!(one("K="), Line::Pair("K", ""));
        assert_eq!(one("K=\"\""), Line::Pair("K", ""));
        assert_eq!(one("[ netacc ] # main"), Line::Section("netacc"));
    }

    #[test]
    fn lines_are_numbered_and_comments_skipped() {
        let numbers: Vec<u32> =
            lines("# a\r\n\r\n[netacc]\r\n  # b\r\nK=1\r\nL=2").map(|(n, _, _)| n).collect();
        assert_eq!(numbers, [3, 5, 6]);
    }

    #[test]
    fn bad_lines() {
        for text in ["[netacc", "[netacc] x", "K", "=1", "K=\"1", "K=\"1\" 2", "K='1''2'"] {
            assert!(matches!(one(text), Line::Bad(_)), "{text:?}");
        }
    }

    #[test]
    fn quoting_reads_back() {
        for value in ["", "a", "a b", "a#b", "a\"b", "a'b", " a ", "\u{e9}"] {
            let text = format!("K={} # c", quote(value).unwrap());
            assert_eq!(one(&text), Line::Pair("K", value));
        }
        assert_eq!(quote("a\"'"), None);
        assert_eq!(quote("a\nb"), None);
    }
}
