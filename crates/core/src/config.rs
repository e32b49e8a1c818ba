//! The configuration: from the environment as it was at the start, and from the file, at the first
//! use; later with what an operator has set (`docs/design/cfg.md`).
//!
//! Whoever has asked for it may look at it for as long as he likes. So each one that there ever was
//! is kept, and serves again when the same one is wanted.

use crate::{heap, process, sys};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::OnceCell;
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};
use netacc_control::config::{
    Answer, Config, ConfigError, DEFAULT_FILE, ENV_FILE, ENV_FROM_COMMAND_LINE, Key, Origin,
    Origins, PASSWD, Place, Program, RULES, Rule, SETTINGS, number_in,
};

/// What the environment held when the process started; programs overwrite it later.
struct Environment {
    values: Vec<(&'static str, &'static str)>,
    /// The name of the file that was started. (The kernel's, `comm`, is a thread's, which renames
    /// itself; `argv` is the program's to write to.)
    started: String,
    /// Whom errors are said to.
    warn: fn(&dyn core::fmt::Display),
}

struct Resolved {
    config: Config,
    origins: Origins,
    text: String,
    /// The one that there was before this one was made.
    before: Option<&'static Resolved>,
}

/// Most configurations that a process ever has; the off-switch adds at most two of each.
const KEPT: usize = 64;

static ENVIRONMENT: AtomicPtr<Environment> = AtomicPtr::new(core::ptr::null_mut());
/// The one in effect.
static RESOLVED: AtomicPtr<Resolved> = AtomicPtr::new(core::ptr::null_mut());
/// The one that was made last: all others are behind it. Null: the first is the only one.
static LAST: AtomicPtr<Resolved> = AtomicPtr::new(core::ptr::null_mut());

/// `warn` is told what is wrong with it, when it is resolved.
pub(crate) fn init(env: &dyn Fn(&str) -> Option<&'static str>, warn: fn(&dyn core::fmt::Display)) {
    let mut values = Vec::new();
    for name in SETTINGS.iter().map(|s| s.name).chain([ENV_FILE, ENV_FROM_COMMAND_LINE]) {
        if let Some(value) = env(name) {
            values.push((name, value));
        }
    }
    let started = started();
    ENVIRONMENT.store(Box::into_raw(Box::new(Environment { values, started, warn })), Release);
}

/// The last part of AT_EXECFN.
fn started() -> String {
    // SAFETY: getauxval has no preconditions.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const core::ffi::c_char;
    if path.is_null() {
        return String::new();
    }
    // SAFETY: the kernel has put a C string there, on the main thread's stack, which nobody has
    // written to yet.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(&[]);
    core::str::from_utf8(name).unwrap_or("").to_string()
}

#[cfg(test)]
std::thread_local! {
    /// What a test's thread has instead.
    static INSTEAD: core::cell::Cell<Option<&'static Config>> = const { core::cell::Cell::new(None) };
}

/// The configuration of this thread, which is a test's, from here on.
#[cfg(test)]
pub(crate) fn from_here_on(config: Config) {
    INSTEAD.set(Some(Box::leak(Box::new(config))));
}

/// In a test's thread, while it runs `body`, the configuration is that one.
#[cfg(test)]
pub(crate) fn with<T>(config: Config, body: impl FnOnce() -> T) -> T {
    from_here_on(config);
    let result = body();
    INSTEAD.set(None);
    result
}

/// The configuration, resolved at the first use.
pub(crate) fn get() -> &'static Config {
    #[cfg(test)]
    if let Some(config) = INSTEAD.get() {
        return config;
    }
    &resolved().config
}

/// Whether somebody has set the option for this process. (Files as they are shipped set all.)
pub(crate) fn is_asked_for(key: Key) -> bool {
    !matches!(resolved().origins.of(key), Origin::Default | Origin::File(_))
}

/// The configuration as `netacc_ss -s cfg` shows it.
pub(crate) fn text() -> &'static str {
    &resolved().text
}

/// Whether it has changed while the program ran: what is off may have been on, and may be again.
pub(crate) fn has_changed() -> bool {
    !LAST.load(Acquire).is_null()
}

/// What the file says is read, if it was not: before a call behind which it may not be there any
/// more, or not for this process.
#[inline]
pub(crate) fn read_now() {
    if RESOLVED.load(Relaxed).is_null() && process::started() {
        let _ = resolved();
    }
}

fn resolved() -> &'static Resolved {
    // SAFETY: only ever set to a leaked box.
    if let Some(r) = unsafe { RESOLVED.load(Acquire).as_ref() } {
        return r;
    }
    resolve()
}

/// `NACC_FAST_CONNECT`, which does not change while the process runs: for calls to which a look at
/// the configuration would be too much.
static FAST_CONNECT: AtomicBool = AtomicBool::new(false);

/// That. False before the configuration is known, which the first connection and listener ask for.
///
/// Budget: one load.
#[inline(always)]
pub(crate) fn has_fast_connect() -> bool {
    #[cfg(test)]
    return get().fast_connect;
    #[cfg(not(test))]
    FAST_CONNECT.load(Relaxed)
}

/// Whether each call that moves bytes is recorded ([`Config::trace_calls`]).
static FOLLOWS_CALLS: AtomicBool = AtomicBool::new(false);

/// That. False before the configuration is known.
///
/// Budget: one load.
#[inline(always)]
pub(crate) fn follows_calls() -> bool {
    #[cfg(test)]
    return get().trace_calls;
    #[cfg(not(test))]
    FOLLOWS_CALLS.load(Relaxed)
}

#[cold]
#[inline(never)]
fn resolve() -> &'static Resolved {
    // Whichever test asks first, it is the configuration of all of them.
    #[cfg(test)]
    crate::testing::init();
    let environment = environment();
    let Read { path, mut config, origins, errors, problem, .. } = read(environment, &AT_START);
    if problem.is_some() {
        // It may have a rule that nobody has seen (ADR 0019).
        config.rules.insert(0, Rule::of_unreadable_file());
    }
    let text = config.render(&origins);
    let new = Box::into_raw(Box::new(Resolved { config, origins, text, before: None }));
    match RESOLVED.compare_exchange(core::ptr::null_mut(), new, AcqRel, Acquire) {
        Ok(_) => {
            // SAFETY: leaked.
            let config = unsafe { &(*new).config };
            FAST_CONNECT.store(config.fast_connect, Release);
            FOLLOWS_CALLS.store(config.trace_calls, SeqCst);
            if let Some(environment) = environment {
                if let Some(problem) = problem {
                    (environment.warn)(&format_args!("{path}: {problem}: all stays on TCP"));
                }
                errors.iter().for_each(|e| (environment.warn)(e));
            }
            // SAFETY: leaked.
            unsafe { &*new }
        }
        Err(other) => {
            // SAFETY: `new` was never shared; `other` is a leaked box.
            unsafe {
                drop(Box::from_raw(new));
                &*other
            }
        }
    }
}

fn environment() -> Option<&'static Environment> {
    // SAFETY: set once to a leaked box.
    unsafe { ENVIRONMENT.load(Acquire).as_ref() }
}

/// What the environment and the file say.
struct Read {
    path: String,
    /// There is a file that says something.
    is_there: bool,
    /// It is known which program this is.
    is_known: bool,
    config: Config,
    origins: Origins,
    errors: Vec<ConfigError>,
    /// Why that is not all.
    problem: Option<Problem>,
}

/// What they say, the file as it is at this moment; of the rules those of this program.
fn read(environment: Option<&Environment>, files: &Files) -> Read {
    let get = |name: &str| {
        environment
            .and_then(|e| e.values.iter().find(|(n, _)| *n == name))
            .map(|(_, v)| v.to_string())
    };
    let path = get(ENV_FILE).filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| DEFAULT_FILE.to_string());
    let (text, problem) = read_file(&path, files);
    // (Only who names users has the file read that knows them.)
    let passwd = OnceCell::new();
    let users = |name: &str| {
        number_in(passwd.get_or_init(|| read_file(PASSWD, files).0.unwrap_or_default()), name)
    };
    let file = text.as_deref().map(|t| (path.as_str(), t));
    let (mut config, origins, errors) = Config::resolve_lossy(file, &get, &[], &users);
    let is_known = keep_own(&mut config.rules, environment.map_or("", |e| &e.started));
    let is_there = text.is_some_and(|text| !text.trim().is_empty());
    Read { is_there, is_known, path, config, origins, errors, problem }
}

/// The rules that the file has by now, beside the parameters that are in effect. What cannot be
/// understood as a whole changes nothing: unlike at the start there are rules that somebody wanted.
fn with_new_rules(now: &Resolved, files: &Files) -> Result<(Config, Origins), Answer> {
    let read = read(environment(), files);
    let is_of_file = |error: &ConfigError| matches!(error.place, Place::File { .. });
    match read {
        // (A file that is not there any more may be behind a new root; an empty one is being
        // written; a relative name may be another file's by now; and without /proc nobody knows
        // whether a rule is for this program.)
        Read { problem: Some(_), .. }
        | Read { is_there: false, .. }
        | Read { is_known: false, .. } => Err(Answer::Unread),
        Read { path, .. } if !path.starts_with('/') => Err(Answer::Unread),
        Read { errors, .. } if errors.iter().any(is_of_file) => Err(Answer::Mistake),
        Read { config, .. } => {
            Ok((Config { rules: config.rules, ..now.config.clone() }, now.origins.clone()))
        }
    }
}

/// Of the rules those that may hold in this program, which was started by `name`. False: which file
/// it is cannot be found out.
fn keep_own(rules: &mut Vec<Rule>, name: &str) -> bool {
    if rules.is_empty() {
        return true;
    }
    let mut file = [0u8; 4096];
    let n = sys::readlink(b"/proc/self/exe\0", &mut file);
    let file = file.get(..usize::try_from(n).unwrap_or(0)).unwrap_or(&[]);
    let file = core::str::from_utf8(file).unwrap_or("");
    // (A file that was replaced since: the kernel says so behind its name.)
    let file = file.strip_suffix(" (deleted)").unwrap_or(file);
    rules.retain(|rule| rule.is_of(Program { file, name }));
    n > 0
}

/// The parameter `name` has another value from here on, or ([`RULES`]) the rules are read again.
/// The service thread's alone. `files`: how it opens one while the application runs.
pub(crate) fn change(name: &str, value: &str, files: &Files) -> Answer {
    let now = resolved();
    if !heap::plenty() {
        return Answer::NoMemory;
    }
    let changed = match name {
        RULES => with_new_rules(now, files),
        _ => now.config.changed(&now.origins, name, value),
    };
    let (config, origins) = match changed {
        Ok(new) => new,
        Err(answer) => return answer,
    };
    // SAFETY: only ever set to a leaked box.
    let last = unsafe { LAST.load(Acquire).as_ref() }.unwrap_or(now);
    let all = || core::iter::successors(Some(last), |r| r.before);
    let known = all().find(|r| r.config == config && r.origins == origins);
    let new = match known {
        Some(known) => core::ptr::from_ref(known).cast_mut(),
        None if all().count() >= KEPT && !is_switch(name) => return Answer::TooMany,
        None => {
            let text = config.render(&origins);
            Box::into_raw(Box::new(Resolved { config, origins, text, before: Some(last) }))
        }
    };
    if known.is_none() {
        LAST.store(new, Release);
    }
    // (Who turns acceleration off looks at every connection behind this.)
    RESOLVED.store(new, SeqCst);
    FOLLOWS_CALLS.store(get().trace_calls, SeqCst);
    Answer::Done
}

/// The off-switch is for emergencies: it works however often others have been changed.
fn is_switch(name: &str) -> bool {
    name == Key::AccelerateByDefault.name()
}

/// How files are opened, by a name that ends in NUL, and closed.
pub(crate) struct Files {
    /// The descriptor, or `-errno`.
    pub(crate) open: fn(&[u8]) -> c_int,
    pub(crate) close: fn(c_int),
}

/// How a file is opened that is read.
pub(crate) const TO_READ: c_int = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;

/// While the application has not begun, or waits: nobody else uses the number.
const AT_START: Files =
    Files { open: |name| sys::open(name, TO_READ, 0) as c_int, close: |fd| _ = sys::close(fd) };

/// Most that a file may have.
const FILE_BYTES_MAX: usize = 1 << 20;

/// What the file says, as far as it can be read, and why that is not all. A file that is not there
/// says nothing.
fn read_file(path: &str, files: &Files) -> (Option<String>, Option<Problem>) {
    let mut name = Vec::from(path.as_bytes());
    name.push(0);
    let fd = (files.open)(&name);
    if fd < 0 {
        let problem = Problem::Unread(-fd);
        return (None, (fd != -libc::ENOENT).then_some(problem));
    }
    let bytes = read_all(fd);
    (files.close)(fd);
    match bytes {
        Ok(bytes) => {
            let (text, whole) = text_of(bytes);
            (text, (!whole).then_some(Problem::NotText))
        }
        // (A part of it could say the opposite of the whole.)
        Err(problem) => (None, Some(problem)),
    }
}

/// Why a file is not read.
#[derive(Debug, PartialEq, Eq)]
enum Problem {
    /// The kernel's error.
    Unread(c_int),
    TooLong,
    NotText,
}

impl core::fmt::Display for Problem {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Problem::Unread(error) => write!(f, "cannot be read (errno {error})"),
            Problem::TooLong => f.write_str("longer than 1 MiB"),
            Problem::NotText => f.write_str("not UTF-8"),
        }
    }
}

fn read_all(fd: c_int) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let mut part = [0u8; 512];
    loop {
        let n = sys::read(fd, &mut part);
        let read = match usize::try_from(n) {
            Ok(0) => return Ok(bytes),
            Ok(n) => part.get(..n).unwrap_or(&[]),
            Err(_) => return Err(Problem::Unread(-n as c_int)),
        };
        if bytes.len() + read.len() > FILE_BYTES_MAX {
            return Err(Problem::TooLong);
        }
        if bytes.try_reserve(read.len()).is_err() {
            return Err(Problem::Unread(libc::ENOMEM));
        }
        bytes.extend_from_slice(read);
    }
}

/// The text with a `?` in the place of each byte that is none, and whether there is no such byte.
fn text_of(mut bytes: Vec<u8>) -> (Option<String>, bool) {
    let (mut from, mut whole) = (0, true);
    while let Some(rest) = bytes.get_mut(from..)
        && let Err(error) = core::str::from_utf8(rest)
    {
        whole = false;
        let good = error.valid_up_to();
        let end = error.error_len().map_or(rest.len(), |bad| good + bad);
        if let Some(bad) = rest.get_mut(good..end) {
            bad.fill(b'?');
        }
        from += end;
    }
    (String::from_utf8(bytes).ok(), whole)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    extern crate std;

    /// One test: the configuration is the process's.
    #[test]
    fn another_value_is_in_effect_and_nothing_is_made_twice() {
        crate::testing::init();
        let level = |r: &Resolved| r.config.value_text(Key::LogLevel);
        let (first, was) = (resolved(), level(resolved()));
        let other = if was == "4" { "5" } else { "4" };
        assert_eq!(change("NACC_LOG_LEVEL", other, &AT_START), Answer::Done);
        assert_eq!((level(resolved()).as_str(), level(first)), (other, was.clone()));
        assert!(text().contains(" # live\n"));
        let made = || core::iter::successors(Some(resolved()), |r| r.before).count();
        let before = made();
        for _ in 0..2 * KEPT {
            assert_eq!(change("NACC_LOG_LEVEL", &was, &AT_START), Answer::Done);
            assert_eq!(change("NACC_LOG_LEVEL", other, &AT_START), Answer::Done);
        }
        assert_eq!(made(), before);
        assert_eq!(change("NACC_SOR_MSG_SIZE", "4096", &AT_START), Answer::AtRestart);
        assert_eq!(level(resolved()), other, "nothing has changed");

        assert_eq!(change("NACC_LOG_LEVEL", "6", &AT_START), Answer::BadValue);

        let polls = |n: usize| change("NACC_POLL_TCP_US", &n.to_string(), &AT_START);
        assert_eq!((0..=KEPT).map(polls).find(|answer| *answer != Answer::Done), {
            Some(Answer::TooMany)
        });
        assert_eq!(made(), 64, "(docs/manual/limits.md)");
        for _ in 0..KEPT {
            let switch = |value| change(Key::AccelerateByDefault.name(), value, &AT_START);
            assert_eq!((switch("0"), switch("1")), (Answer::Done, Answer::Done));
        }
        assert_eq!(polls(KEPT + 1), Answer::TooMany);
        RESOLVED.store(core::ptr::from_ref(first).cast_mut(), SeqCst);
    }

    fn written(name: &str, bytes: &[u8]) -> String {
        let path = std::env::temp_dir().join(std::format!("netacc-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_string()
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_one_that_says_nothing() {
        let path = written("config", b"a\xc3\xa9b\xffc\xc3");
        assert_eq!(
            read_file(&path, &AT_START),
            (Some("a\u{e9}b?c?".to_string()), Some(Problem::NotText))
        );
        std::fs::write(&path, "\u{e9}".repeat(FILE_BYTES_MAX / 2)).unwrap();
        let (text, problem) = read_file(&path, &AT_START);
        assert_eq!((text.unwrap().len(), problem), (FILE_BYTES_MAX, None));
        std::fs::write(&path, "x".repeat(FILE_BYTES_MAX + 1)).unwrap();
        assert_eq!(read_file(&path, &AT_START), (None, Some(Problem::TooLong)));
        let below = std::format!("{path}/x");
        assert_eq!(read_file(&below, &AT_START), (None, Some(Problem::Unread(libc::ENOTDIR))));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_file(&path, &AT_START), (None, None));
        let directory = std::env::temp_dir();
        let directory = read_file(directory.to_str().unwrap(), &AT_START);
        assert_eq!(directory, (None, Some(Problem::Unread(libc::EISDIR))));
    }

    #[test]
    fn what_was_started_is_known() {
        let path = std::env::args_os().next().unwrap();
        let name = std::path::Path::new(&path).file_name().unwrap().to_str().unwrap();
        assert_eq!(started(), name);
        let mut rules = std::vec![Rule::unreadable("r")];
        keep_own(&mut rules, name);
        assert_eq!(rules.len(), 1);
    }
}
