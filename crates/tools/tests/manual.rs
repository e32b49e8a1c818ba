//! The manual pages and the sample configuration file say what the tables say.
//!
//! They are written from the templates in `tests/manual/` and the tables in the code; this test
//! compares. After a change, write them with
//!
//! ```text
//! NETACC_BLESS=1 cargo test -p netacc-tools --test manual
//! ```

mod support;

use netacc_control::config::{
    Cli, Config, Key, Kind, NO_USERS, PROFILES, SETTINGS, Setting, TakesEffect,
};
use netacc_control::stats::{Counter, Reason};
use netacc_tools::commands::netacc_command;
use netacc_tools::options::{ORDER, VERSION, run_command, value_name};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn template(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manual");
    let text = fs::read_to_string(directory.join(format!("{name}.in"))).unwrap();
    text.replace("@VERSION@", VERSION)
}

fn check(path: &str, text: &str) {
    assert!(!text.contains('@'), "{path}: a placeholder is left");
    let file = repository().join(path);
    if std::env::var_os("NETACC_BLESS").is_some() {
        fs::write(&file, text).unwrap();
    }
    let is = fs::read_to_string(&file).unwrap_or_default();
    assert!(is == text, "{path} is not up to date: see the head of crates/tools/tests/manual.rs");
}

fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

/// A new sentence starts a new line.
fn sentences(text: &str) -> String {
    roff(text).replace(". ", ".\n").replace("; ", ";\n")
}

fn default_of(setting: &Setting) -> String {
    match setting.default {
        "" => String::from("empty"),
        default => String::from(default),
    }
}

fn options() -> String {
    let mut out = String::new();
    for option in ORDER.iter().copied() {
        let fixed = match option {
            Cli::Letter('f') => Some((
                ".BI \\-f \" path\"",
                "The configuration file.\nDefault: /etc/netacc.conf, which need not exist.",
            )),
            Cli::Letter('d') => {
                Some((".B \\-d", "Debug: log from level 1 on.\nSets NACC_LOG_LEVEL=1."))
            }
            Cli::Word("profile") => {
                let _ = write!(out, "\n.TP\n.BI \\-\\-profile \" name\"\n{}", profiles());
                continue;
            }
            Cli::Letter('h') => Some((".B \\-h", "Show a summary of the options.")),
            Cli::Letter('v') => Some((".B \\-v", "Show the version.")),
            _ => None,
        };
        if let Some((head, text)) = fixed {
            let _ = writeln!(out, ".TP\n{head}\n{text}");
            continue;
        }
        let setting = Key::from_cli(option).and_then(Key::setting).unwrap();
        let option = roff(&option.to_string());
        let text = sentences(setting.doc);
        let effect = setting.effect.note();
        match value_name(setting) {
            None => {
                let _ = writeln!(out, ".TP\n.B {option}\nSets {}=1.\n{text}", setting.name);
            }
            Some(name) => {
                let _ =
                    writeln!(out, ".TP\n.BI {option} \" {name}\"\nSets {}.\n{text}", setting.name);
                let (valid, default) = (roff(&setting.key.valid()), roff(&default_of(setting)));
                let _ = writeln!(out, "Valid: {valid}.\nDefault: {default}.\n{effect}");
            }
        }
    }
    tidy(&out)
}

fn profiles() -> String {
    let mut out = String::from(
        "Sets parameters that go together.\nOther options count before it, wherever they stand; it \
         counts before the environment and the file.\n",
    );
    for profile in PROFILES {
        let values = profile.values.iter().map(|(key, value)| format!("{}={value}", key.name()));
        let values = values.collect::<Vec<_>>().join(", ");
        let _ = writeln!(out, "{}: {};\n{}.", roff(profile.name), roff(profile.doc), roff(&values));
    }
    out
}

fn settings() -> String {
    let mut out = String::new();
    for setting in SETTINGS {
        let (text, valid) = (sentences(setting.doc), roff(&setting.key.valid()));
        let default = roff(&default_of(setting));
        let _ =
            writeln!(out, ".TP\n.B {}\n{text}\nValid: {valid}.\nDefault: {default}.", setting.name);
        if let Some(option) = setting.cli {
            let option = roff(&option.to_string());
            let _ = writeln!(out, "Option of\n.BR netacc_run :\n.BR {option} .");
        }
        let _ = writeln!(out, "{}", setting.effect.note());
        if setting.takes_effect != TakesEffect::Restart {
            let when = setting.takes_effect.as_str();
            let _ = writeln!(out, "Can be set while a program runs;\ntakes effect {when}.");
        }
    }
    tidy(&out)
}

fn reasons() -> String {
    let mut out = String::new();
    for reason in Reason::in_use() {
        let (text, remedy) = (sentences(reason.explanation()), sentences(reason.remedy()));
        let _ = writeln!(out, ".TP\n.B {}\n{text}\n.I Remedy:\n{remedy}", roff(reason.name()));
    }
    tidy(&out)
}

fn counters(is_rdma: bool) -> String {
    let mut out = String::new();
    for counter in Counter::ALL.iter().filter(|c| c.is_rdma() == is_rdma) {
        let _ = writeln!(out, ".TP\n.B {}\n{}", roff(counter.name()), sentences(counter.doc()));
        if counter.remedy() != "Normal." {
            let _ = writeln!(out, ".I Where it rises:\n{}", sentences(counter.remedy()));
        }
    }
    tidy(&out)
}

/// The page of the manual that explains every reason and every counter.
fn words_page() -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('<', "\\<");
    let mut out = String::from(
        "# Every reason and every counter\n\nWritten by a test out of the library's own tables, as \
         `netacc_ss(8)` is.\n[observe.md](observe.md) says what to do first, and about which \
         reasons.\n\n## Reasons\n\nWhy a connection is on TCP: the column `Reason` of `netacc_ss -s \
         sock`.\n\n| reason | what it means | what to do |\n|---|---|---|\n",
    );
    for reason in Reason::in_use() {
        let (meaning, remedy) = (cell(reason.explanation()), cell(reason.remedy()));
        let _ = writeln!(out, "| `{}` | {meaning} | {remedy} |", reason.name());
    }
    out += "\n## Counters\n\nOf a process since its start: `netacc_ss -s cnt --wide`; for Prometheus \
            `netacc_NAME_total`.\n\n| counter | what it counts | what to do where it rises |\n\
            |---|---|---|\n";
    for counter in Counter::ALL {
        let (meaning, remedy) = (cell(counter.doc()), cell(counter.remedy()));
        let _ = writeln!(out, "| `{}` | {meaning} | {remedy} |", counter.name());
    }
    out
}

fn tidy(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    lines.join("\n")
}

fn sample_file() -> String {
    // Those that NetACC's file does not have stay comments.
    let letters = [Key::FastConnect, Key::PollMs, Key::CompVector];
    let own = |s: &Setting| letters.contains(&s.key) || matches!(s.cli, Some(Cli::Word(_)));
    let mut out = String::new();
    for setting in SETTINGS {
        let effect = match setting.effect.note() {
            "" => String::new(),
            note => format!(" ({note})"),
        };
        let valid = setting.key.valid();
        comment(&mut out, &format!("{}{effect} Valid: {valid}.", setting.doc));
        let value = match setting.kind {
            Kind::Path | Kind::CpuList | Kind::OptionalNumber { .. } => {
                format!("\"{}\"", setting.default)
            }
            _ => String::from(setting.default),
        };
        let mark = if own(setting) { "#" } else { "" };
        let _ = writeln!(out, "{mark}{}={value}\n", setting.name);
    }
    out.trim_end().to_owned()
}

fn comment(out: &mut String, text: &str) {
    let mut line = String::from("#");
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > 78 {
            let _ = writeln!(out, "{line}");
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(out, "{line}");
}

#[test]
fn manual_pages_are_up_to_date() {
    check("man/netacc_run.8", &template("netacc_run.8").replace("@OPTIONS@", &options()));
    let page = template("netacc_ss.8").replace("@REASONS@", &reasons());
    let page = page.replace("@COUNTERS@", &counters(false));
    check("man/netacc_ss.8", &page.replace("@RDMA_COUNTERS@", &counters(true)));
    check("man/netacc.conf.5", &template("netacc.conf.5").replace("@SETTINGS@", &settings()));
}

#[test]
fn the_page_of_reasons_and_counters_is_up_to_date() {
    check("docs/manual/reasons.md", &words_page());
}

#[test]
fn sample_file_is_up_to_date_and_gives_the_defaults() {
    let text = template("netacc.conf").replace("@SETTINGS@", &sample_file());
    check("netacc.conf", &text);
    let (config, _) =
        Config::resolve(Some(("netacc.conf", &text)), &|_| None, &[], NO_USERS).unwrap();
    assert_eq!(config, Config::default());
    let all = text.replace("\n#NACC_", "\nNACC_");
    let (config, origins) =
        Config::resolve(Some(("netacc.conf", &all)), &|_| None, &[], NO_USERS).unwrap();
    assert_eq!(config, Config::default());
    for key in Key::ALL {
        assert_eq!(origins.of(*key).as_str(), "file");
    }
}

#[test]
fn parser_help_and_pages_name_the_same_options() {
    let command = run_command();
    // An option with a letter and a word is listed by its letter.
    let mut parsed: Vec<String> = command
        .get_arguments()
        .filter_map(|arg| match (arg.get_short(), arg.get_long()) {
            (Some(letter), _) => Some(format!("-{letter}")),
            (None, word) => Some(format!("--{}", word?)),
        })
        .collect();
    let mut listed: Vec<String> = ORDER.iter().map(ToString::to_string).collect();
    parsed.sort_unstable();
    listed.sort_unstable();
    assert_eq!(parsed, listed);
    let help = Command::new(env!("CARGO_BIN_EXE_netacc_run")).arg("-h").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let page = fs::read_to_string(repository().join("man/netacc_run.8")).unwrap();
    for option in ORDER {
        assert!(help.contains(&format!("\n   {option} ")), "{option}");
        assert!(page.contains(&roff(&option.to_string())), "{option}");
    }
}

/// What the page of `netacc` says of a subcommand: where it is named at the page's beginning, and
/// in a part of its own.
fn part_of(page: &str, subcommand: &str) -> String {
    let parts: Vec<&str> = page.split("\n.SH ").collect();
    let part = |heading: &str| parts.iter().find(|part| part.starts_with(heading)).unwrap();
    let begin = format!(".B netacc {subcommand}");
    let synopsis = part("SYNOPSIS").split("\n.br\n").filter(|line| line.contains(&begin));
    let heading = match subcommand {
        "bench" => "OPTIONS",
        "ps" => "DESCRIPTION",
        other => &other.to_uppercase(),
    };
    synopsis.chain([*part(heading)]).collect::<Vec<_>>().join("\n")
}

/// The page of `netacc` is written by hand.
#[test]
fn the_page_of_netacc_has_every_option() {
    fn options(command: &clap::Command, all: &mut Vec<String>) {
        for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
            let long = option.get_long().map(|long| format!("--{long}"));
            all.extend(long.or_else(|| option.get_short().map(|letter| format!("-{letter}"))));
        }
        command.get_subcommands().for_each(|command| options(command, all));
    }
    let page = fs::read_to_string(repository().join("man/netacc.1")).unwrap();
    let whole = netacc_command();
    // (They have pages of their own, or are no command of this page's.)
    let elsewhere = ["run", "ss", "help"];
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name();
        if elsewhere.contains(&name) {
            continue;
        }
        let (part, mut all) = (part_of(&page, name), Vec::new());
        options(command, &mut all);
        assert!(!all.is_empty(), "{name}");
        for option in
            all.iter().filter(|option| !["--help", "--version"].contains(&option.as_str()))
        {
            assert!(part.contains(&roff(option)), "netacc {name} {option}: not in its page");
        }
    }
}

#[test]
fn pages_are_good_roff() {
    for page in
        ["netacc.1", "netacc.3", "netacc-enable.8", "netacc_run.8", "netacc_ss.8", "netacc.conf.5"]
    {
        let file = repository().join("man").join(page);
        let mut groff = Command::new("groff");
        match groff.args(["-man", "-Tutf8", "-ww", "-z"]).arg(&file).output() {
            Err(_) => support::skip("no groff"),
            Ok(output) => {
                let warnings = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && warnings.is_empty(), "{page}: {warnings}");
            }
        }
    }
}
