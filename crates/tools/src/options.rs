//! The command lines of both tools. The options of `netacc_run` that set a value come from the
//! configuration table.

use crate::commands::metrics::Place;
use crate::selection::{Network, Order};
use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgGroup, Command, ValueHint, value_parser};
use netacc_bench::{WHOLE_MAX, whole};
use netacc_control::config::{Cli, DEFAULT_FILE, Key, Kind, PROFILES, SETTINGS, Setting};
use netacc_control::stats::{Path, Reason};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Version of both tools.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Width of the column of options in the help.
const COLUMN: usize = 23;
const HELP_WIDTH: usize = 80;

/// The command line of `netacc_run`.
pub fn run_command() -> Command {
    let mut command = Command::new("netacc_run")
        .about("Run COMMAND with its TCP connections accelerated by NetACC")
        .override_usage("netacc_run [ OPTIONS ] COMMAND")
        .override_help(run_help())
        .version(VERSION)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args_override_self(true)
        .args(help_and_version())
        .arg(
            Arg::new("file")
                .short('f')
                .value_name("path")
                .help("Configuration file")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            Arg::new("debug")
                .short('d')
                .help("Debug: log from level 1 on")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("profile")
                .long("profile")
                .value_name("name")
                .help("Parameters that go together")
                .value_parser(PROFILES.map(|profile| profile.name)),
        )
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .required(true)
                .num_args(1..)
                .trailing_var_arg(true)
                .value_hint(ValueHint::CommandWithArguments)
                .value_parser(value_parser!(OsString)),
        );
    for (setting, option) in settings_with_options() {
        let arg = Arg::new(setting.name).help(setting.brief);
        let arg = match option {
            Cli::Letter(letter) => arg.short(letter),
            Cli::Word(word) => arg.long(word),
        };
        command = command.arg(match value_name(setting) {
            None => arg.action(ArgAction::SetTrue),
            Some(name) => arg.value_name(name).allow_hyphen_values(true),
        });
    }
    command
}

/// (Texts of such help are for completions: the tool's own help is written as a whole.)
fn help_and_version() -> [Arg; 2] {
    [
        Arg::new("help").short('h').long("help").help("Show the help").action(ArgAction::Help),
        Arg::new("version")
            .short('v')
            .long("version")
            .help("Show the version")
            .action(ArgAction::Version),
    ]
}

/// The options that set a value, in the order of the configuration table.
pub fn settings_with_options() -> impl Iterator<Item = (&'static Setting, Cli)> {
    SETTINGS.iter().filter_map(|setting| Some((setting, setting.cli?)))
}

/// What stands behind the option; nothing for an option that is a switch.
pub fn value_name(setting: &Setting) -> Option<&'static str> {
    match setting.kind {
        Kind::Flag => None,
        Kind::CpuList => Some("str"),
        Kind::Paths => Some("list"),
        Kind::Path => Some("path"),
        _ => Some("num"),
    }
}

/// Default and valid values of an option, for people.
pub fn default_and_range(setting: &Setting) -> String {
    let default = match (setting.kind, setting.default) {
        (Kind::Flag, _) => return String::from("default: off"),
        (Kind::OptionalNumber { .. }, "") => "adaptive",
        (_, "") => "\"\"",
        (_, default) => default,
    };
    let valid = setting.key.valid();
    let valid = valid.trim_start_matches("a whole number from ");
    format!("{valid}; default: {default}")
}

/// The options in the order of the help.
pub const ORDER: &[Cli] = &[
    Cli::Letter('f'),
    Cli::Letter('p'),
    Cli::Letter('t'),
    Cli::Letter('s'),
    Cli::Letter('F'),
    Cli::Letter('d'),
    Cli::Letter('T'),
    Cli::Letter('P'),
    Cli::Letter('A'),
    Cli::Letter('i'),
    Cli::Word("profile"),
    Cli::Word("paths"),
    Cli::Word("io-uring"),
    Cli::Word("poll-tcp"),
    Cli::Word("rdma-stall"),
    Cli::Word("kernel-policy"),
    Cli::Word("rdma-keeper"),
    Cli::Letter('h'),
    Cli::Letter('v'),
];

fn run_help() -> String {
    let mut help = String::from(
        "Usage: netacc_run [ OPTIONS ] COMMAND\n\n\
         Run COMMAND with its TCP connections accelerated by NetACC.\n\nOPTIONS:\n",
    );
    for option in ORDER.iter().copied() {
        match option {
            Cli::Letter('f') => help_row(
                &mut help,
                "-f <path>",
                &format!("configuration file (default: {DEFAULT_FILE})"),
            ),
            Cli::Letter('d') => help_row(&mut help, "-d", "debug: log from level 1 on"),
            Cli::Word("profile") => {
                let names = PROFILES.map(|profile| profile.name).join(", ");
                let text = format!("parameters that go together: {names}");
                help_row(&mut help, "--profile <name>", &text);
            }
            Cli::Letter('h') => help_row(&mut help, "-h", "show this help"),
            Cli::Letter('v') => help_row(&mut help, "-v", "show the version"),
            _ => {
                if let Some(setting) = Key::from_cli(option).and_then(Key::setting) {
                    let option = match value_name(setting) {
                        Some(name) => format!("{option} <{name}>"),
                        None => option.to_string(),
                    };
                    let range = default_and_range(setting);
                    help_row(&mut help, &option, &format!("{} ({range})", setting.brief));
                }
            }
        }
    }
    help.push_str(
        "\nThe options override the environment, which overrides the configuration file.\n\
         On shared memory -p, -t, -A, -i, --rdma-stall, --kernel-policy and\n\
         --rdma-keeper have no effect. -F is experimental.\n\
         See netacc_run(8), netacc.conf(5) and netacc_ss(8).\n",
    );
    help
}

fn help_row(help: &mut String, option: &str, text: &str) {
    let _ = write!(help, "   {option:<COLUMN$}");
    let mut column = COLUMN + 3;
    let mut start_of_line = true;
    for word in text.split(' ') {
        if !start_of_line && column + 1 + word.len() > HELP_WIDTH {
            let _ = write!(help, "\n   {:<COLUMN$}", "");
            column = COLUMN + 3;
            start_of_line = true;
        }
        if !start_of_line {
            help.push(' ');
            column += 1;
        }
        help.push_str(word);
        column += word.len();
        start_of_line = false;
    }
    help.push('\n');
}

/// The command line of `netacc_ss`.
pub fn ss_command() -> Command {
    Command::new("netacc_ss")
        .about("Show the NetACC connections of a process")
        .override_usage("netacc_ss [OPTIONS] [[-p] <pid|name>...]")
        .override_help(SS_HELP)
        .version(VERSION)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(help_and_version())
        .arg(
            Arg::new("option-pid")
                .short('p')
                .value_name("pid|name")
                .help("Process, by its number or name")
                .value_delimiter(',')
                .action(ArgAction::Append),
        )
        .arg(Arg::new("pid").value_name("pid|name").value_delimiter(',').num_args(0..))
        .arg(
            Arg::new("show")
                .short('s')
                .value_name("what")
                .help("What to show")
                .default_value("cnt")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .value_parser(["all", "cfg", "cnt", "mem", "qp", "sock"]),
        )
        .arg(
            Arg::new("wide")
                .long("wide")
                .help("Every column, and counters that are 0")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("clear")
                .short('c')
                .help("Clear what ended processes left")
                .conflicts_with_all(["option-pid", "pid", "show", "wide", "watch", "times"])
                .conflicts_with_all(["port", "peer", "path", "reason", "sort"])
                .action(ArgAction::SetTrue),
        )
        .arg(json_flag().help("Print JSON"))
        .args(selection_args())
        .args(watch_args())
}

/// Which connections are shown.
fn selection_args() -> [Arg; 5] {
    let list = |name: &'static str, value: &'static str, help: &'static str| {
        let arg = Arg::new(name).long(name).value_name(value).help(help);
        arg.value_delimiter(',').action(ArgAction::Append)
    };
    let paths = Path::ALL.map(Path::name);
    let reasons = Reason::in_use().map(Reason::name);
    let orders = Order::ALL.map(Order::word);
    [
        list("port", "port", "Connections with that port")
            .allow_negative_numbers(true)
            .value_parser(whole::<u16>(PORTS)),
        list("peer", "address", "Connections with that peer, or with peers in that network")
            .value_parser(Network::parse),
        list("path", "path", "Connections with a direction on that path")
            .value_parser(PossibleValuesParser::new(paths)),
        list("reason", "reason", "Connections with that reason")
            .value_parser(PossibleValuesParser::new(reasons)),
        Arg::new("sort")
            .long("sort")
            .value_name("by")
            .help("Order of the connections")
            .value_parser(orders),
    ]
}

/// What a port may be.
const PORTS: RangeInclusive<u64> = 1..=u16::MAX as u64;

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|s| (0.1..=86_400.0).contains(s));
    seconds.ok_or_else(|| String::from("valid: 0.1 to 86400 seconds"))
}

/// How often they are shown.
fn watch_args() -> [Arg; 2] {
    [
        Arg::new("watch")
            .short('w')
            .value_name("seconds")
            .help("Again and again")
            .value_parser(seconds),
        Arg::new("times")
            .short('n')
            .value_name("times")
            .help("How often")
            .requires("watch")
            .allow_negative_numbers(true)
            .value_parser(whole::<u32>(1..=WHOLE_MAX)),
    ]
}

const SS_HELP: &str = "\
Usage: netacc_ss [OPTIONS] [[-p] <pid|name>...]

Show the NetACC connections of processes; without a process, which processes
of this host are accelerated, or what is asked for of all of them.

OPTIONS:
   -p <pid>      Process to look at, by its number or name; several with commas,
                 or by several -p. -p may be left out.
   -s <what>     What to show, several with commas (default: cnt):
                   all   everything
                   cfg   the configuration in effect, and where it comes from
                   cnt   connections by path and by reason, and counters
                   mem   memory that is shared, or registered for RDMA
                   qp    channels and queue pairs to other processes
                   sock  each open connection
   -w <seconds>  Again and again: what has changed since the last time, and how
                 fast; -n <times> ends after so many.
   -c            Clear what ended processes left, yours, or of root's all: their
                 traces (netacc trace). It goes with --json alone.
   --wide        Every column, and counters that are 0.
   --json        Print JSON.
   -h            Show this help.
   -v            Show the version.

Of the open connections only those, several with commas (alone: -s sock):
   --port <port>       with that port, here or at the peer
   --peer <address>    with that peer; also a network: 10.0.0.0/8
   --path <path>       with a direction on tcp, shm, rdma or utcp
   --reason <reason>   with that reason; none: those that are accelerated
   --sort <by>         ordered by fd, peer, path, reason, sent, received,
                       messages or age; or by how long answers take, where
                       that is measured: answer-p50, answer-p99, serve-p99

See netacc_ss(8) for every column, state, reason and counter.
";

/// The command line of `netacc ps`.
pub fn ps_command() -> Command {
    Command::new("ps")
        .about("Show which processes of this host are accelerated")
        .version(VERSION)
        .args(watch_args())
        .arg(
            Arg::new("wide")
                .long("wide")
                .help("Every column: bytes by path, and the container, too")
                .action(ArgAction::SetTrue),
        )
        .arg(json_flag().help("Print JSON"))
}

/// The command line of `netacc cfg`.
pub fn cfg_command() -> Command {
    let json = || json_flag().help("Print JSON");
    let name = Arg::new("name").value_name("NAME").required(true);
    let name = name.help("Parameter; trace.enable is NACC_TRACE");
    let name = name.value_parser(Names).hide_possible_values(true);
    let seconds = |text: &str| {
        let seconds: Option<f64> = text.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
        seconds.ok_or_else(|| String::from("valid: 0.01 to 3600 seconds"))
    };
    let wait = || {
        Arg::new("wait")
            .long("wait")
            .value_name("seconds")
            .help("How long a process is waited for (default: 2)")
            .value_parser(seconds)
    };
    Command::new("cfg")
        .about("Show the parameters, or set one while a program runs")
        .version(VERSION)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("list")
                .about("Show every parameter, and when a change takes effect")
                .args(whose())
                .arg(json()),
        )
        .subcommand(
            Command::new("get")
                .about("Show some parameters; of one its value alone")
                .arg(name.clone().num_args(1..).help("Parameters; trace.enable is NACC_TRACE"))
                .args(whose())
                .arg(json()),
        )
        .subcommand(
            Command::new("set")
                .about("Set a parameter of processes that run")
                .arg(name)
                .arg(
                    Arg::new("value")
                        .value_name("VALUE")
                        .help("Its value")
                        .allow_negative_numbers(true)
                        .required(true),
                )
                .args(whose())
                .arg(wait())
                .group(ArgGroup::new("whose").args(["pid", "all"]).required(true))
                .arg(json()),
        )
        .subcommand(
            Command::new("reload")
                .about("Have processes that run read the rules of their file again")
                .args(whose())
                .arg(wait())
                .group(ArgGroup::new("whose").args(["pid", "all"]).required(true))
                .arg(json()),
        )
}

/// The command line of `netacc capture`.
pub fn capture_command() -> Command {
    let number = |id: &'static str, letter: char, name: &'static str, help: &'static str| {
        let arg = Arg::new(id).short(letter).value_name(name).help(help);
        arg.allow_negative_numbers(true).value_parser(whole::<u32>(1..=WHOLE_MAX))
    };
    let [port, peer, path, ..] = selection_args();
    Command::new("capture")
        .about("Write the bytes of accelerated connections to a pcapng file")
        .version(VERSION)
        .arg(
            Arg::new("pid")
                .short('p')
                .long("pid")
                .value_name("pid|name")
                .help("Process, by its number or name; several with commas")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .required(true),
        )
        .arg(
            Arg::new("write")
                .short('w')
                .long("write")
                .value_name("file")
                .help("A file that is not there yet, or - for standard output")
                .value_hint(ValueHint::FilePath)
                .value_parser(value_parser!(PathBuf))
                .required(true),
        )
        .arg(number("count", 'c', "packets", "End after so many packets"))
        .arg(number("snaplen", 's', "bytes", "Keep so many bytes of each packet [default: all]"))
        .arg(
            Arg::new("duration")
                .short('d')
                .long("duration")
                .value_name("seconds")
                .help("End after so long")
                .value_parser(seconds),
        )
        .arg(port)
        .arg(peer)
        .arg(path)
}

/// What libtpa calls parameters that `netacc cfg` knows.
pub const OTHER_NAMES: [(&str, Key); 1] = [("trace.enable", Key::Trace)];

/// The names of parameters, for completions. (Others pass: what is said of them has a hint.)
#[derive(Debug, Clone, Copy)]
struct Names;

impl TypedValueParser for Names {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = SETTINGS.iter().map(|setting| setting.name);
        let others = OTHER_NAMES.iter().map(|(name, _)| *name);
        Some(Box::new(names.chain(others).map(PossibleValue::new)))
    }
}

/// Of which processes.
fn whose() -> [Arg; 2] {
    [
        Arg::new("pid")
            .short('p')
            .long("pid")
            .value_name("pid|name")
            .help("Process, by its number or name")
            .value_delimiter(',')
            .action(ArgAction::Append),
        Arg::new("all")
            .long("all")
            .help("All processes of this host that have the library")
            .conflicts_with("pid")
            .action(ArgAction::SetTrue),
    ]
}

/// The command line of `netacc doctor`.
pub fn doctor_command() -> Command {
    Command::new("doctor")
        .about("Say what keeps a program, a process, a connection or this host from acceleration")
        .version(VERSION)
        .override_usage("netacc doctor [--json] [PROGRAM [ARG...] | PID | HOST:PORT]")
        .arg(json_flag().help("Print JSON"))
        .arg(
            Arg::new("subject")
                .value_name("PROGRAM|PID|HOST:PORT")
                .help("Command, process or place; none: this host")
                .num_args(0..)
                .trailing_var_arg(true)
                .value_hint(ValueHint::CommandWithArguments)
                .value_parser(value_parser!(OsString)),
        )
}

/// The command line of `netacc top`.
pub fn top_command() -> Command {
    Command::new("top")
        .about("Watch the accelerated processes of this host, and their connections")
        .version(VERSION)
        .arg(
            Arg::new("delay")
                .short('d')
                .long("delay")
                .value_name("seconds")
                .help("Look again after so long [default: 1]")
                .value_parser(seconds),
        )
        .arg(
            Arg::new("pid")
                .value_name("pid|name")
                .help("Begin with the connections of this process, by its number or name"),
        )
}

/// The command line of `netacc trace`.
pub fn trace_command() -> Command {
    let json = || json_flag().help("Print JSON");
    let of = || {
        [
            Arg::new("pid")
                .short('p')
                .long("pid")
                .value_name("pid|name")
                .help("Process, running or not, by its number or name")
                .value_delimiter(',')
                .action(ArgAction::Append),
            Arg::new("file")
                .long("file")
                .value_name("file")
                .help("A file that holds a trace")
                .action(ArgAction::Append)
                .value_hint(ValueHint::FilePath)
                .value_parser(value_parser!(PathBuf)),
        ]
    };
    let which = || {
        [
            Arg::new("port")
                .long("port")
                .value_name("port")
                .help("Connections with that port, here or at the peer")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .allow_negative_numbers(true)
                .value_parser(whole::<u16>(PORTS)),
            Arg::new("peer")
                .long("peer")
                .value_name("address")
                .help("Connections with that peer; also a network: 10.0.0.0/8")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .value_parser(Network::parse),
        ]
    };
    let events = || {
        [
            Arg::new("event")
                .long("event")
                .value_name("event")
                .help("Events of that name")
                .value_delimiter(',')
                .action(ArgAction::Append),
            Arg::new("last")
                .long("last")
                .value_name("number")
                .help("So many events of each connection, the last ones")
                .allow_negative_numbers(true)
                .value_parser(whole::<usize>(0..=WHOLE_MAX)),
        ]
    };
    Command::new("trace")
        .about("Show what has become of connections, also of killed processes")
        .version(VERSION)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("list").about("Show which traces there are").arg(json()))
        .subcommand(
            Command::new("show")
                .about("Show the events of connections")
                .args(of())
                .args(which())
                .args(events())
                .arg(
                    Arg::new("follow")
                        .long("follow")
                        .help("Go on with what is new, as long as a process runs")
                        .action(ArgAction::SetTrue),
                )
                .arg(json()),
        )
        .subcommand(
            Command::new("histogram")
                .about("Show how long wake-ups, sleeps, agreements and answers took")
                .args(of())
                .args(which())
                .arg(json()),
        )
        .subcommand(
            Command::new("export")
                .about("Write the events for the viewers of Chrome and Perfetto")
                .args(of())
                .args(which())
                .args(events()),
        )
}

/// The command line of `netacc metrics`.
pub fn metrics_command() -> Command {
    Command::new("metrics")
        .about("Say what all processes do, for Prometheus and for a browser")
        .version(VERSION)
        .arg(
            Arg::new("listen")
                .long("listen")
                .value_name("place")
                .help("Serve them: PORT or ADDRESS:PORT of loopback, or unix:PATH")
                .value_parser(Place::parse),
        )
        .arg(
            Arg::new("user")
                .long("user")
                .value_name("user")
                .help("Answer this user, too, by name or number; several with commas")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .requires("listen"),
        )
        .arg(
            Arg::new("textfile")
                .long("textfile")
                .value_name("file")
                .help("Write them to a file, for node_exporter")
                .conflicts_with("listen")
                .value_hint(ValueHint::FilePath)
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            Arg::new("every")
                .long("every")
                .value_name("seconds")
                .help("Write the file again and again")
                .requires("textfile")
                .value_parser(seconds),
        )
}

fn json_flag() -> Arg {
    Arg::new("json").long("json").action(ArgAction::SetTrue)
}

/// What clap has to say, in the manner of the tool: on stdout with status 0, or on stderr with
/// status 2.
pub fn answer(tool: &str, error: &clap::Error) -> (bool, String) {
    let text = error.render().to_string();
    if error.use_stderr() {
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        (true, format!("{tool}: {text}"))
    } else {
        (false, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_control::config::Effect;

    #[test]
    fn the_command_lines_are_well_formed() {
        run_command().debug_assert();
        ss_command().debug_assert();
        ps_command().debug_assert();
        capture_command().debug_assert();
        cfg_command().debug_assert();
        doctor_command().debug_assert();
        metrics_command().debug_assert();
        top_command().debug_assert();
        trace_command().debug_assert();
    }

    #[test]
    fn options_stand_apart_from_their_text() {
        for help in [run_help().as_str(), SS_HELP] {
            let rows: Vec<_> = help.lines().filter(|line| line.starts_with("   -")).collect();
            assert!(rows.len() > 10, "{help}");
            for row in rows {
                let (option, text) = row.trim_start().split_once("  ").unwrap_or((row, ""));
                let value = option.split_once(' ').map(|(_, value)| value);
                let is_value = |text: &str| text.starts_with('<') && text.ends_with('>');
                assert!(!text.is_empty() && value.is_none_or(is_value), "{row}");
            }
        }
    }

    #[test]
    fn help_names_every_option_and_those_without_effect() {
        let help = run_help();
        for (setting, option) in settings_with_options() {
            assert!(ORDER.contains(&option));
            let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains(setting.brief), "{}", setting.brief);
        }
        let with = |effect: Effect| -> Vec<String> {
            ORDER
                .iter()
                .filter_map(|option| Key::from_cli(*option)?.setting())
                .filter(|setting| setting.effect == effect)
                .filter_map(|setting| Some(setting.cli?.to_string()))
                .collect()
        };
        let on_rdma = with(Effect::OnRdma);
        let (last, first) = on_rdma.split_last().unwrap();
        let list = format!("{} and {last} have no effect", first.join(", "));
        assert!(help.replace("\n", " ").contains(&list), "{list}");
    }

    #[test]
    fn help_fits_a_terminal() {
        let doctor = doctor_command().render_help().to_string();
        let mut cfg = cfg_command();
        let mut help = vec![cfg.render_help().to_string()];
        help.extend(cfg.get_subcommands_mut().map(|part| part.render_help().to_string()));
        let cfg = help.join("\n");
        let lines = run_help().lines().map(String::from).collect::<Vec<_>>();
        let lines = lines.iter().map(String::as_str);
        for line in lines.chain(SS_HELP.lines()).chain(doctor.lines()).chain(cfg.lines()) {
            assert!(line.chars().count() <= HELP_WIDTH, "{line}");
        }
    }
}
