//! Everything that `netacc_run` decides before it becomes the command: settings, warnings and the
//! new environment.

use crate::command::{self, Verdict};
use crate::library;
use crate::log;
use crate::options::{self, settings_with_options};
use crate::raw;
use clap::ArgMatches;
use netacc_control::config::{
    Config, ConfigError, DEFAULT_FILE, ENV_FILE, ENV_FROM_COMMAND_LINE, Key, Origin, Origins,
    PASSWD, Place, Profile, number_in,
};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// An environment. Keeps the order, and duplicates, which some programs have.
#[derive(Debug, Default)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// This process's.
    pub fn inherited() -> Environment {
        Environment(std::env::vars_os().collect())
    }

    /// The value that getenv would find.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        let found = self.iter().find(|(is, _)| *is == OsStr::new(name));
        found.map(|(_, value)| value)
    }

    /// Changes or adds a variable.
    pub fn set(&mut self, name: &str, value: OsString) {
        match self.0.iter_mut().find(|(is, _)| is == OsStr::new(name)) {
            Some((_, old)) => *old = value,
            None => self.0.push((OsString::from(name), value)),
        }
    }

    /// Every name with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

/// What is to be started, and how.
#[derive(Debug)]
pub struct Launch {
    /// The command and its arguments.
    pub arguments: Vec<OsString>,
    /// The whole environment of the command.
    pub environment: Environment,
    /// For the operator, before the start.
    pub warnings: Vec<String>,
}

/// Prepares the start. The errors are for the operator; nothing is started then.
pub fn prepare(
    matches: &ArgMatches,
    mut environment: Environment,
    this_program: Option<&Path>,
) -> Result<Launch, Vec<String>> {
    let arguments: Vec<OsString> = matches
        .get_many::<OsString>("command")
        .map(|arguments| arguments.cloned().collect())
        .unwrap_or_default();
    let given = settings(matches);
    let named = matches.get_one::<PathBuf>("file").cloned();
    let (config, origins) = configure(named, this_program, &given, &mut environment)?;
    let mut warnings = unknown_variables(&environment);
    // (The default file belongs to whoever came first, and few look for it.)
    let is_log_wanted = matches.get_flag("debug") || origins.of(Key::LogPath) != Origin::Default;
    warnings.extend(log::obstacle(&config.log_path).filter(|_| is_log_wanted));

    let name = arguments.first().cloned().unwrap_or_default();
    let path = environment.get("PATH");
    // A command that does not exist is exec's to report.
    if let Some(program) = command::find(&name, path) {
        match library::find(environment.get(library::ENV_LIBRARY), this_program) {
            Err(missing) => {
                let program = program.display();
                warnings.push(format!("{program} runs unaccelerated: {missing}"));
            }
            Ok(library) => {
                let verdict = command::examine(&program, path, library.target);
                warnings.extend(verdict.as_ref().map(describe));
                if verdict.is_none()
                    && let Some(loader) = command::loader(&program)
                {
                    let found = raw::find(&program, OsStr::new(&loader));
                    warnings.extend(found.iter().map(describe_raw));
                }
                if verdict.is_none_or(|verdict| verdict.obstacle.passes_preload_on()) {
                    let value = library::preload(&library.path, environment.get("LD_PRELOAD"));
                    environment.set("LD_PRELOAD", value);
                }
            }
        }
    }
    Ok(Launch { arguments, environment, warnings })
}

/// An obstacle, for the operator.
pub(crate) fn describe(verdict: &Verdict) -> String {
    let program = verdict.program.display();
    let obstacle = &verdict.obstacle;
    let others = if obstacle.passes_preload_on() {
        " (programs that it starts can be accelerated)"
    } else {
        ""
    };
    format!("{program} runs unaccelerated: {obstacle}{others}")
}

/// System calls past the C library, for the operator.
pub(crate) fn describe_raw(found: &raw::Found) -> String {
    format!(
        "{} has system calls of its own ({}), which the library does not see: connections that are used so stay on TCP",
        found.file.display(),
        found.calls.join(", ")
    )
}

/// The settings on the command line.
fn settings(matches: &ArgMatches) -> Vec<(Key, String)> {
    let mut given = Vec::new();
    // (What stands there itself counts before what a profile brings.)
    let profile = matches.get_one::<String>("profile").and_then(|name| Profile::from_name(name));
    for (key, value) in profile.map_or(&[][..], |profile| profile.values) {
        given.push((*key, String::from(*value)));
    }
    if matches.get_flag("debug") {
        given.push((Key::LogLevel, String::from("1")));
    }
    for (setting, _) in settings_with_options() {
        if options::value_name(setting).is_none() {
            if matches.get_flag(setting.name) {
                given.push((setting.key, String::from("1")));
            }
        } else if let Some(value) = matches.get_one::<String>(setting.name) {
            given.push((setting.key, value.clone()));
        }
    }
    given
}

/// Checks the whole configuration and puts what the command line gives into the environment.
pub(crate) fn configure(
    named: Option<PathBuf>,
    this_program: Option<&Path>,
    given: &[(Key, String)],
    environment: &mut Environment,
) -> Result<(Config, Origins), Vec<String>> {
    let is_set = environment.get(ENV_FILE).is_some_and(|path| !path.is_empty());
    let installed = this_program.filter(|_| !is_set).and_then(file_of_prefix);
    let named = named.or(installed);
    let is_named = named.is_some();
    let file = config_file(named, environment)?;
    let text = |name: &str| {
        let value = environment.get(name)?;
        Some(value.to_string_lossy().into_owned())
    };
    let cli: Vec<(Key, &str)> = given.iter().map(|(key, text)| (*key, text.as_str())).collect();
    let file_text = file.as_ref().map(|(path, text)| (path.to_string_lossy(), text.as_str()));
    let file_text = file_text.as_ref().map(|(path, text)| (path.as_ref(), *text));
    let resolved = Config::resolve(file_text, &text, &cli, &user_of(Path::new("/"))).map_err(
        |errors: Vec<ConfigError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
    )?;

    if is_named && let Some((path, _)) = file {
        environment.set(ENV_FILE, path.into_os_string());
    }
    if given.is_empty() {
        return Ok(resolved);
    }
    let mut keys: Vec<String> = environment
        .get(ENV_FROM_COMMAND_LINE)
        .map(|list| list.to_string_lossy().split(',').map(String::from).collect())
        .unwrap_or_default();
    for (key, value) in given {
        environment.set(key.name(), OsString::from(value));
        if !keys.iter().any(|name| name == key.name()) {
            keys.push(String::from(key.name()));
        }
    }
    environment.set(ENV_FROM_COMMAND_LINE, OsString::from(keys.join(",")));
    Ok(resolved)
}

/// The users that have names where `/` is `root`, as the library finds them there.
pub(crate) fn user_of(root: &Path) -> impl Fn(&str) -> Option<u32> {
    let passwd = root.join(PASSWD.trim_start_matches('/'));
    move |name| number_in(&String::from_utf8_lossy(&std::fs::read(&passwd).ok()?), name)
}

/// The configuration file of a private prefix that this program was installed in. (The library
/// itself knows the system's alone, and is told.)
fn file_of_prefix(this_program: &Path) -> Option<PathBuf> {
    let prefix = this_program.parent()?.parent()?;
    if [Path::new("/"), Path::new("/usr"), Path::new("/usr/local")].contains(&prefix) {
        return None;
    }
    let file = prefix.join("etc/netacc.conf");
    file.exists().then_some(file)
}

/// Where the configuration of this program has traces; the usual place where it says nothing that
/// could be understood.
pub(crate) fn trace_directory() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    let find = || {
        let environment = Environment::inherited();
        let set = environment.get(ENV_FILE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let installed = || file_of_prefix(&std::env::current_exe().ok()?);
        let file = set.or_else(installed).unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
        // (Something else than a file could keep us waiting.)
        let is_file = std::fs::metadata(&file).is_ok_and(|status| status.is_file());
        let text = is_file.then(|| config_file(Some(file), &environment).ok().flatten()).flatten();
        let text = text.as_ref().map(|(path, text)| (path.to_string_lossy(), text.as_str()));
        let text = text.as_ref().map(|(path, text)| (path.as_ref(), *text));
        let value = |name: &str| Some(environment.get(name)?.to_string_lossy().into_owned());
        let (config, ..) = Config::resolve_lossy(text, &value, &[], &user_of(Path::new("/")));
        PathBuf::from(config.trace_dir)
    };
    FOUND.get_or_init(find).clone()
}

/// Path and content of the configuration file. Only the default one may be missing.
fn config_file(
    option: Option<PathBuf>,
    environment: &Environment,
) -> Result<Option<(PathBuf, String)>, Vec<String>> {
    const BYTES_MAX: u64 = 1 << 20;
    let variable = environment.get(ENV_FILE).filter(|path| !path.is_empty());
    let named = option.or_else(|| variable.map(PathBuf::from));
    let explicit = named.is_some();
    let path = named.unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    let fail = |problem: String| {
        let error = ConfigError {
            place: Place::File { path: path.to_string_lossy().into_owned(), line: 0 },
            text: String::new(),
            problem,
            valid: String::new(),
        };
        Err(vec![error.to_string()])
    };
    let mut bytes = Vec::new();
    let read = std::fs::File::open(&path)
        .and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !explicit => return Ok(None),
        Err(error) => return fail(error.to_string()),
        Ok(_) if bytes.len() as u64 > BYTES_MAX => {
            return fail(String::from("longer than 1 MiB; not a configuration file"));
        }
        Ok(_) => {}
    }
    match String::from_utf8(bytes) {
        Err(error) => {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
            Err(vec![format!("{}:{line}: not UTF-8", path.display())])
        }
        Ok(text) => match std::path::absolute(&path) {
            // Absolute, since the command may change its directory before it starts another
            // program.
            Ok(absolute) => Ok(Some((absolute, text))),
            Err(error) => fail(error.to_string()),
        },
    }
}

/// Variables that look like options but are none.
pub(crate) fn unknown_variables(environment: &Environment) -> Vec<String> {
    environment
        .iter()
        .filter_map(|(name, _)| name.to_str())
        .filter(|name| name.starts_with("NACC_"))
        .filter(|name| ![ENV_FILE, ENV_FROM_COMMAND_LINE].contains(name))
        .filter(|name| !name.starts_with("NACC_TEST_"))
        .filter(|name| Key::from_name(name).is_none())
        .map(|name| format!("environment: {name}: unknown, ignored; {}", Key::suggest(name)))
        .collect()
}
