//! The completions of `completions/` say what the command lines are; those shells that are there
//! take them.
//!
//! After a change, write them with
//!
//! ```text
//! NETACC_BLESS=1 cargo test -p netacc-tools --test completions
//! ```

mod support;

use clap::{Arg, Command as Line};
use clap_complete::{Shell, generate};
use netacc_tools::commands::netacc_command;
use netacc_tools::options::{doctor_command, run_command, ss_command};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../completions")
}

/// Shell, name of the file, program.
const FILES: [(Shell, &str, &str); 9] = [
    (Shell::Bash, "bash/netacc", "netacc"),
    (Shell::Bash, "bash/netacc_run", "netacc_run"),
    (Shell::Bash, "bash/netacc_ss", "netacc_ss"),
    (Shell::Zsh, "zsh/_netacc", "netacc"),
    (Shell::Zsh, "zsh/_netacc_run", "netacc_run"),
    (Shell::Zsh, "zsh/_netacc_ss", "netacc_ss"),
    (Shell::Fish, "fish/netacc.fish", "netacc"),
    (Shell::Fish, "fish/netacc_run.fish", "netacc_run"),
    (Shell::Fish, "fish/netacc_ss.fish", "netacc_ss"),
];

fn line(program: &str) -> Line {
    match program {
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

/// Fish: the same.
fn fish(program: &str) -> String {
    const PROCESSES: &str =
        "(netacc ps 2>/dev/null | string replace -rf '^ *(\\d+) +(\\S+) .*' '$1\\t$2')";
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
    let script = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  \"_${1}_behind\" \"$1\" \"${!#}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; \
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["--norc", "-c", script, "bash"])
        .arg(directory().join("bash").join(words[0]))
        .args(words)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.is_empty(), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
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
