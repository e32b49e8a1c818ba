//! The completions of `completions/` say what the command lines are; those shells that are there
//! take them.
//!
//! After a change, write them with
//!
//! ```text
//! NETACC_BLESS=1 cargo test -p netacc-tools --test completions
//! ```

mod support;

use clap::{Arg, ArgAction, Command as Line};
use clap_complete::{Shell, generate};
use netacc_tools::commands::netacc_command;
use netacc_tools::options::{doctor_command, run_command, ss_command};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../completions")
}

/// Shell, name of the file, program.
const FILES: [(Shell, &str, &str); 12] = [
    (Shell::Bash, "bash/netacc", "netacc"),
    (Shell::Bash, "bash/netacc-enable", ENABLE),
    (Shell::Bash, "bash/netacc_run", "netacc_run"),
    (Shell::Bash, "bash/netacc_ss", "netacc_ss"),
    (Shell::Zsh, "zsh/_netacc", "netacc"),
    (Shell::Zsh, "zsh/_netacc-enable", ENABLE),
    (Shell::Zsh, "zsh/_netacc_run", "netacc_run"),
    (Shell::Zsh, "zsh/_netacc_ss", "netacc_ss"),
    (Shell::Fish, "fish/netacc.fish", "netacc"),
    (Shell::Fish, "fish/netacc-enable.fish", ENABLE),
    (Shell::Fish, "fish/netacc_run.fish", "netacc_run"),
    (Shell::Fish, "fish/netacc_ss.fish", "netacc_ss"),
];

/// A script; [`the_line_of_netacc_enable_is_the_script_s`] holds it to what stands here.
const ENABLE: &str = "netacc-enable";

fn enable_command() -> Line {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    Line::new(ENABLE).disable_help_flag(true).disable_version_flag(true).args([
        flag("now", "Restart the services, too"),
        flag("off", "Without the library again"),
        flag("all", "All services that have been enabled"),
        flag("list", "Say which these are"),
        flag("help", "Show this help").short('h'),
        flag("version", "Show the version").short('v'),
        Arg::new("unit").num_args(0..).value_name("unit"),
    ])
}

fn line(program: &str) -> Line {
    match program {
        ENABLE => enable_command(),
        "netacc_run" => run_command(),
        "netacc_ss" => ss_command(),
        _ => {
            let whole = netacc_command();
            let mut line = Line::new("netacc").version("1");
            // What `netacc bench` starts is not for people.
            for subcommand in whole.get_subcommands().filter(|s| !s.is_hide_set()) {
                line = line.subcommand(subcommand.clone());
            }
            line
        }
    }
}

fn written(shell: Shell, program: &str) -> String {
    let mut out = Vec::new();
    generate(shell, &mut line(program), program, &mut out);
    let mut out = String::from_utf8(out).unwrap();
    match shell {
        Shell::Bash => out = bash(&out, program),
        Shell::Zsh if program == ENABLE => out = zsh_units(&out),
        Shell::Fish => out += &fish(program),
        _ => {}
    }
    // No blank at the end of a line, and no empty line at the end.
    let lines: Vec<&str> = out.lines().map(str::trim_end).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

/// The options that take a value, as they are typed.
fn valued(line: &Line) -> Vec<String> {
    let options = line.get_arguments().filter(|arg| !arg.is_positional());
    let words = |arg: &Arg| {
        let letter = arg.get_short().map(|letter| format!("-{letter}"));
        letter.into_iter().chain(arg.get_long().map(|word| format!("--{word}")))
    };
    options.filter(|arg| arg.get_action().takes_values()).flat_map(words).collect()
}

/// Bash: no placeholders among the words, and behind a program's options its own completion.
fn bash(generated: &str, program: &str) -> String {
    let mut out = String::new();
    for line in generated.lines() {
        let words = line.trim_start().strip_prefix("opts=\"").and_then(|w| w.strip_suffix('"'));
        match words {
            None => out += line,
            Some(words) => {
                let kept: Vec<&str> =
                    words.split(' ').filter(|word| !word.starts_with(['<', '['])).collect();
                let indent = &line[..line.len() - line.trim_start().len()];
                let _ = write!(out, "{indent}opts=\"{}\"", kept.join(" "));
            }
        }
        out.push('\n');
    }
    if program == ENABLE {
        return out + &BEHIND_UNITS.replace("ALL", ALL_UNITS);
    }
    let mut cases = String::new();
    let mut case = |pattern: &str, first: usize, line: &Line, what: &str| {
        let valued = valued(line).join("|");
        let valued = if valued.is_empty() { "''".to_owned() } else { valued };
        let _ =
            writeln!(cases, "        {pattern}) first={first} valued='{valued}' what={what} ;;");
    };
    match program {
        "netacc_run" => case("*", 1, &run_command(), "command"),
        "netacc_ss" => case("*", 1, &ss_command(), "process"),
        _ => {
            case("run", 2, &run_command(), "command");
            case("ss", 2, &ss_command(), "process");
            case("doctor", 2, &doctor_command(), "command");
        }
    }
    out + &BEHIND.replace("PROGRAM", program).replace("CASES\n", &cases)
}

const BEHIND: &str = r#"
# Behind the options: the command line of the program that is started, or the processes that have the library.
_PROGRAM_behind() {
    local first=0 valued what word i
    case ${COMP_WORDS[1]} in
CASES
    esac
    if ((first > 0 && COMP_CWORD >= first)); then
        for ((i = first; i < COMP_CWORD; i++)); do
            word=${COMP_WORDS[i]}
            if [[ "|$valued|" == *"|$word|"* ]]; then
                ((i++))
            elif [[ $word != -* ]]; then
                break
            fi
        done
        word=${COMP_WORDS[COMP_CWORD]}
        if [[ $what = command ]] && { ((i < COMP_CWORD)) || { ((i == COMP_CWORD)) && [[ $word != -* ]]; }; }; then
            if declare -F _command_offset >/dev/null; then
                _command_offset "$i"
            elif ((i == COMP_CWORD)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$word")
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$word")
            fi
            return
        fi
        if [[ $what = process && $word != -* ]] && { ((i <= COMP_CWORD)) || [[ ${COMP_WORDS[COMP_CWORD - 1]} = -p ]]; }; then
            mapfile -t COMPREPLY < <(compgen -W "$(netacc ps 2>/dev/null | awk 'NR > 1 && $1 ~ /^[0-9]+$/ {print $1, $2}')" -- "$word")
            return
        fi
    fi
    _PROGRAM "$@"
}
complete -F _PROGRAM_behind -o bashdefault -o default PROGRAM
"#;

/// The services that systemd knows. (The name of a template is none.)
const ALL_UNITS: &str = "{ systemctl list-unit-files --type=service --no-legend --no-pager; \
    systemctl list-units --all --plain --type=service --no-legend --no-pager; } 2>/dev/null | \
    awk '$1 !~ /@\\.service$/ { print $1 }' | sort -u";

const BEHIND_UNITS: &str = r#"
# The services that systemd knows; with --off those that have been enabled.
_netacc-enable_behind() {
    local word=${COMP_WORDS[COMP_CWORD]} units
    if [[ $word = -* ]]; then
        _netacc__enable "$@"
        return
    fi
    case " ${COMP_WORDS[*]:1} " in
        *" --off "*) units=$(netacc-enable --list 2>/dev/null) ;;
        *) units=$(ALL) ;;
    esac
    # (compgen expands its words, and so takes what systemd has escaped for another name.)
    mapfile -t COMPREPLY < <(compgen -W "${units//\\/\\\\}" -- "$word")
}
complete -F _netacc-enable_behind netacc-enable
"#;

/// Zsh: services in the place of files.
fn zsh_units(generated: &str) -> String {
    const UNITS: &str = r#"(( $+functions[_netacc-enable_units] )) ||
_netacc-enable_units() {
    local -a units
    if (( ${words[(I)--off]} )); then
        units=(${(f)"$(netacc-enable --list 2>/dev/null)"})
    else
        units=(${(f)"$(ALL)"})
    fi
    compadd -a units
}

if [ "$funcstack[1]""#;
    assert!(generated.contains("::unit:_default'"), "{generated}");
    generated
        .replace("::unit:_default'", "::unit:_netacc-enable_units'")
        .replace("if [ \"$funcstack[1]\"", &UNITS.replace("ALL", ALL_UNITS))
}

const FISH_UNITS: &str = r#"# The services that systemd knows; with --off those that have been enabled.
complete -c netacc-enable -f
complete -c netacc-enable -n '__fish_seen_argument -l off' -a '(netacc-enable --list 2>/dev/null)'
complete -c netacc-enable -n 'not __fish_seen_argument -l off' -a '(begin
    systemctl list-unit-files --type=service --no-legend --no-pager
    systemctl list-units --all --plain --type=service --no-legend --no-pager
end 2>/dev/null | string replace -rf "^(\S*[^@\s])\.service\s.*" "\$1.service" | sort -u)'
"#;

/// Fish: the same.
fn fish(program: &str) -> String {
    // (In double quotes, where fish puts in variables: $1 would be one.)
    const PROCESSES: &str =
        "(netacc ps 2>/dev/null | string replace -rf '^ *(\\d+) +(\\S+) .*' '\\$1\\t\\$2')";
    let mut out = String::from(
        "# Behind the options: the command line of the program that is started, or the processes that have the library.\n",
    );
    let mut command = |condition: &str, skip: &str, line: &Line| {
        let valued = valued(line).join(" ");
        let _ = writeln!(
            out,
            "complete -c {program} {condition}-x -a '(__fish_complete_subcommand {skip}{valued})'"
        );
    };
    match program {
        ENABLE => {
            out.truncate(0);
            out += FISH_UNITS;
        }
        "netacc_run" => command("", "", &run_command()),
        "netacc_ss" => {
            let _ = writeln!(out, "complete -c netacc_ss -f -a \"{PROCESSES}\"");
        }
        _ => {
            let run = "-n '__fish_seen_subcommand_from run' ";
            let doctor = "-n '__fish_seen_subcommand_from doctor' ";
            command(run, "--fcs-skip=2 ", &run_command());
            command(doctor, "--fcs-skip=2 ", &doctor_command());
            let ss = "-n '__fish_seen_subcommand_from ss' ";
            let _ = writeln!(out, "complete -c netacc {ss}-f -a \"{PROCESSES}\"");
        }
    }
    out
}

#[test]
fn completions_are_up_to_date() {
    for (shell, name, program) in FILES {
        let (file, text) = (directory().join(name), written(shell, program));
        if std::env::var_os("NETACC_BLESS").is_some() {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &text).unwrap();
        }
        let is = fs::read_to_string(&file).unwrap_or_default();
        assert!(is == text, "{name} is not up to date: see the head of this file");
    }
}

/// What bash offers for the last of these words.
fn offered(words: &[&str]) -> Vec<String> {
    offered_with(words, &std::env::var_os("PATH").unwrap_or_default())
}

fn offered_with(words: &[&str], path: &OsStr) -> Vec<String> {
    let script = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  \"_${1}_behind\" \"$1\" \"${!#}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; \
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["--norc", "-c", script, "bash"])
        .arg(directory().join("bash").join(words[0]))
        .args(words)
        .env("PATH", path)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.is_empty(), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The script is not clap's: its own words are those of the completions.
#[test]
fn the_line_of_netacc_enable_is_the_script_s() {
    let script = directory().join("../packaging/netacc-enable");
    let text = fs::read_to_string(&script).unwrap();
    let words = text.split("\nfor word; do\n").nth(1).unwrap();
    let words = words.split("esac").next().unwrap().lines().filter_map(|l| l.split_once(')'));
    let taken: BTreeSet<&str> = words
        .flat_map(|(words, _)| words.split('|').map(str::trim))
        .filter(|word| word.starts_with('-') && *word != "-*")
        .collect();
    let line = enable_command();
    let typed: BTreeSet<String> = line
        .get_arguments()
        .flat_map(|arg| {
            let letter = arg.get_short().map(|letter| format!("-{letter}"));
            letter.into_iter().chain(arg.get_long().map(|word| format!("--{word}")))
        })
        .collect();
    assert_eq!(taken, typed.iter().map(String::as_str).collect());
    // And each says what the script says of it.
    let help = Command::new("sh").arg(script).arg("-h").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for arg in line.get_arguments() {
        let Some(said) = arg.get_help() else { continue };
        assert!(help.contains(&format!(" {said}.\n")), "{said}: {help}");
    }
}

/// A place with a `systemctl`, a `netacc-enable` and a `netacc` that know some services and
/// processes, before all others in PATH.
fn with_programs() -> (support::Scratch, OsString) {
    let place = support::Scratch::new();
    let program = |name: &str, text: &str| {
        place.script(name, &format!("#!/bin/sh\n{text}\n"));
    };
    program(
        "systemctl",
        "case $1 in\nlist-unit-files)\n\
         echo 'redis-server.service enabled enabled'\necho 'redis@.service disabled enabled' ;;\n\
         list-units) echo 'redis@6380.service loaded active running Redis' ;;\nesac",
    );
    program("netacc-enable", "[ \"$*\" = --list ] && echo nginx.service");
    program(
        "netacc",
        "echo ' Pid  Program  Uid'; echo '3363  redis-server  105'; echo '  70  nginx  0'",
    );
    let mut path = place.path("").into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    (place, path)
}

const KNOWN: [&str; 2] = ["redis-server.service", "redis@6380.service"];

/// (In which order depends on the shell, and on the language.)
fn sorted(mut words: Vec<String>) -> Vec<String> {
    words.sort_unstable();
    words
}

#[test]
fn bash_completes_services() {
    let (_place, path) = with_programs();
    let offered = |words: &[&str]| sorted(offered_with(words, &path));
    assert_eq!(offered(&["netacc-enable", ""]), KNOWN);
    assert_eq!(offered(&["netacc-enable", "--now", "redis-"]), KNOWN[..1]);
    assert_eq!(offered(&["netacc-enable", "--off", ""]), ["nginx.service"]);
    assert_eq!(offered(&["netacc-enable", "--o"]), ["--off"]);
    assert_eq!(offered(&["netacc-enable", "-"]).len(), 8);
    assert_eq!(offered(&["netacc_ss", "3"]), ["3363"]);
}

#[test]
fn fish_completes_services_and_processes() {
    let (_place, path) = with_programs();
    let asked = |file: &str, line: &str| {
        let file = directory().join("fish").join(file);
        let ask = format!("source {}; complete -C '{line}'", file.display());
        let output = Command::new("fish")
            .args(["--no-config", "-c", &ask])
            .env("PATH", &path)
            .output()
            .ok()?;
        assert!(output.stderr.is_empty(), "{line}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        Some(sorted(text.lines().map(str::to_owned).collect()))
    };
    let Some(all) = asked("netacc-enable.fish", "netacc-enable ") else {
        return support::skip("no fish");
    };
    assert_eq!(all, KNOWN);
    let off = asked("netacc-enable.fish", "netacc-enable --off n").unwrap();
    assert_eq!(off, ["nginx.service"]);
    let options = asked("netacc-enable.fish", "netacc-enable --o").unwrap();
    assert_eq!(options, ["--off\tWithout the library again"]);
    let processes = asked("netacc_ss.fish", "netacc_ss 3").unwrap();
    assert_eq!(processes, ["3363\tredis-server"]);
    let processes = asked("netacc.fish", "netacc ss 7").unwrap();
    assert_eq!(processes, ["70\tnginx"]);
}

/// (What zsh shows needs a terminal: it is its function that is asked, which calls `compadd`.)
#[test]
fn zsh_completes_services() {
    let (_place, path) = with_programs();
    let file = directory().join("zsh/_netacc-enable");
    let asked = |words: &str| {
        let ask = format!(
            "compdef() {{ :; }}; source {}; words=({words}); \
             compadd() {{ print -l ${{(P)2}}; }}; _netacc-enable_units",
            file.display()
        );
        let output = Command::new("zsh").args(["-f", "-c", &ask]).env("PATH", &path).output();
        let output = output.ok()?;
        assert!(output.stderr.is_empty(), "{words}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        Some(sorted(text.lines().map(str::to_owned).collect()))
    };
    let Some(all) = asked("netacc-enable") else { return support::skip("no zsh") };
    assert_eq!(all, KNOWN);
    assert_eq!(asked("netacc-enable --off").unwrap(), ["nginx.service"]);
}

#[test]
fn bash_completes_subcommands_options_values_and_commands() {
    assert_eq!(offered(&["netacc", "doc"]), ["doctor"]);
    assert_eq!(offered(&["netacc", "ps", "--j"]), ["--json"]);
    assert_eq!(offered(&["netacc", "cfg", "g"]), ["get"]);
    assert_eq!(offered(&["netacc", "cfg", "set", "--w"]), ["--wait"]);
    assert_eq!(offered(&["netacc_ss", "--path", "t"]), ["tcp"]);
    assert_eq!(offered(&["netacc", "ss", "--sort", "re"]), ["reason", "received"]);
    assert_eq!(offered(&["netacc_run", "--pa"]), ["--paths"]);
    // A command, and behind it what is its own business.
    let commands = offered(&["netacc_run", "--paths", "shm", "-d", "bas"]);
    assert!(commands.contains(&"bash".to_owned()), "{commands:?}");
    let commands = offered(&["netacc", "doctor", "bas"]);
    assert!(commands.contains(&"bash".to_owned()), "{commands:?}");
    let file = directory().join("bash").to_string_lossy().into_owned();
    assert_eq!(offered(&["netacc_run", "cat", &file]), [file]);
    let all = offered(&["netacc_ss", "-"]);
    assert!(all.contains(&"--reason".to_owned()), "{all:?}");
    assert!(all.iter().all(|word| word.starts_with('-')), "{all:?}");
}

#[test]
fn the_shells_take_them() {
    for (shell, name, _) in FILES {
        let program = shell.to_string();
        let checked = Command::new(&program).arg("-n").arg(directory().join(name)).output();
        match checked {
            Err(_) => support::skip(format_args!("no {program}")),
            Ok(output) => assert!(output.status.success(), "{name}: {output:?}"),
        }
    }
    let sourced = directory().join("fish/netacc.fish");
    let ask = format!("source {}; complete -C 'netacc doc'", sourced.display());
    if let Ok(output) = Command::new("fish").args(["--no-config", "-c", &ask]).output() {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.starts_with("doctor"), "{output:?}");
    }
}
