//! What the file says: its sections, one after the other.

use super::{Key, Origin, Place, RULES_MAX, Raw, Rule, SECTION, ini, rules};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The section of the file that is read.
enum Section {
    /// None yet.
    None,
    Netacc,
    /// Where it begins, the rule so far, and which of its keys it has: a bit for each.
    Rule(Place, Rule, u32),
    Unknown,
}

impl Section {
    /// A line of it cannot be understood.
    fn spoil(&mut self) {
        if let Section::Rule(_, rule, _) = self {
            rule.spoil();
        }
    }
}

impl Raw<'_> {
    pub(super) fn read_file(&mut self, path: &str, text: &str) {
        let mut section = Section::None;
        let mut lines: Vec<Option<u32>> = Key::ALL.iter().map(|_| None).collect();
        for (number, raw, line) in ini::lines(text) {
            let place = Place::File { path: String::from(path), line: number };
            match line {
                ini::Line::Bad(problem) => {
                    let valid = "[section], KEY=VALUE, KEY=\"VALUE\" or # comment";
                    self.error(place.clone(), String::from(raw), problem, String::from(valid));
                    if rules::may_begin_in(raw) {
                        self.end(section);
                        section = Section::Rule(place, Rule::unreadable(""), 0);
                    } else {
                        section.spoil();
                    }
                }
                ini::Line::Section(name) => {
                    self.end(section);
                    section = self.begin(name, place);
                }
                ini::Line::Pair(name, value) => match &mut section {
                    Section::Netacc => self.take(name, value, number, &mut lines),
                    Section::Rule(_, rule, seen) => {
                        let bit = rules::KEYS.iter().position(|key| *key == name);
                        let bit = bit.map_or(0, |key| 1 << key);
                        let wrong = match *seen & bit {
                            0 => rule.set(name, value, self.users),
                            _ => Err(("given twice", String::from("each key once"))),
                        };
                        *seen |= bit;
                        if let Err((problem, valid)) = wrong {
                            rule.spoil();
                            self.error(place, format!("{name}={value}"), problem, valid);
                        }
                    }
                    // One error for the section is enough.
                    Section::Unknown => {}
                    Section::None => {
                        section = Section::Unknown;
                        let valid = format!("[{SECTION}] on a line before it");
                        let text = format!("{name}={value}");
                        self.error(place, text, "outside of a section", valid);
                    }
                },
            }
        }
        self.end(section);
    }

    /// A section begins.
    fn begin(&mut self, name: &str, place: Place) -> Section {
        let text = format!("[{name}]");
        if name == SECTION {
            return Section::Netacc;
        }
        let mut rule = Rule::default();
        match rules::name_of(name) {
            None => {
                let valid = format!("[{SECTION}], [{} NAME]", rules::RULE);
                self.error(place, text, "unknown section", valid);
                return Section::Unknown;
            }
            Some(Err((problem, valid))) => {
                rule.spoil();
                self.error(place.clone(), text, problem, valid);
            }
            Some(Ok(name)) => {
                rule.name = String::from(name);
                if self.rules.iter().any(|rule| rule.name == name) {
                    rule.spoil();
                    self.error(place.clone(), text, "a second rule of that name", String::new());
                }
            }
        }
        Section::Rule(place, rule, 0)
    }

    /// A section ends.
    fn end(&mut self, section: Section) {
        let Section::Rule(place, mut rule, _) = section else { return };
        let text = format!("[{} {}]", rules::RULE, rule.name);
        if let Err((problem, valid)) = rule.check() {
            rule.spoil();
            self.error(place.clone(), text.clone(), problem, valid);
        }
        match self.rules.len() {
            0..RULES_MAX => self.rules.push(rule),
            // (Behind the last one nothing counts.)
            RULES_MAX => {
                let problem = "one rule too many";
                self.error(place, text, problem, format!("at most {RULES_MAX}"));
                rule.spoil();
                self.rules.push(rule);
            }
            _ => {}
        }
    }

    /// A line of the section of parameters.
    fn take(&mut self, name: &str, value: &str, number: u32, lines: &mut [Option<u32>]) {
        let place = self.place(None, Origin::File(number));
        let text = format!("{name}={value}");
        let Some(key) = Key::from_name(name) else {
            let problem = format!("unknown key; {}", Key::suggest(name));
            return self.error(place, text, &problem, String::new());
        };
        if let Some(seen) = lines.get_mut(key as usize) {
            if let Some(first) = *seen {
                let problem = format!("given twice, first in line {first}");
                return self.error(place, text, &problem, String::from("each key once"));
            }
            *seen = Some(number);
        }
        self.give(key, value, Origin::File(number));
    }
}
