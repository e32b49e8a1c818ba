//! The configuration: from the environment as it was at the start, and from the file, at the first
//! use; later with what an operator has set (`docs/design/cfg.md`).
//!
//! Whoever has asked for it may look at it for as long as he likes. So each one that there ever was
//! is kept, and serves again when the same one is wanted.

use crate::{heap, sys};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use netacc_control::config::{
    Answer, Config, DEFAULT_FILE, ENV_FILE, ENV_FROM_COMMAND_LINE, Key, Origins, Program, Rule,
    SETTINGS,
};

/// What the environment held when the process started; programs overwrite it later.
struct Environment {
    values: Vec<(&'static str, &'static str)>,
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
    ENVIRONMENT.store(Box::into_raw(Box::new(Environment { values, warn })), Release);
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

/// The configuration as `netacc_ss -s cfg` shows it.
pub(crate) fn text() -> &'static str {
    &resolved().text
}

fn resolved() -> &'static Resolved {
    // SAFETY: only ever set to a leaked box.
    if let Some(r) = unsafe { RESOLVED.load(Acquire).as_ref() } {
        return r;
    }
    resolve()
}

#[cold]
#[inline(never)]
fn resolve() -> &'static Resolved {
    // Whichever test asks first, it is the configuration of all of them.
    #[cfg(test)]
    crate::testing::init();
    // SAFETY: set once to a leaked box.
    let environment = unsafe { ENVIRONMENT.load(Acquire).as_ref() };
    let get = |name: &str| {
        environment
            .and_then(|e| e.values.iter().find(|(n, _)| *n == name))
            .map(|(_, v)| v.to_string())
    };
    let path = get(ENV_FILE).unwrap_or_else(|| DEFAULT_FILE.to_string());
    let text = read_file(&path);
    let (mut config, origins, errors) =
        Config::resolve_lossy(text.as_deref().map(|t| (path.as_str(), t)), &get, &[]);
    keep_own(&mut config.rules);
    let text = config.render(&origins);
    let new = Box::into_raw(Box::new(Resolved { config, origins, text, before: None }));
    match RESOLVED.compare_exchange(core::ptr::null_mut(), new, AcqRel, Acquire) {
        Ok(_) => {
            for e in &errors {
                if let Some(environment) = environment {
                    (environment.warn)(e);
                }
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

/// Of the rules those that may hold in this program.
fn keep_own(rules: &mut Vec<Rule>) {
    if rules.is_empty() {
        return;
    }
    let (mut file, mut name) = ([0u8; 4096], [0u8; 16]);
    let n = sys::readlink(b"/proc/self/exe\0", &mut file);
    let file = file.get(..usize::try_from(n).unwrap_or(0)).unwrap_or(&[]);
    let fd = sys::open(b"/proc/self/comm\0", libc::O_RDONLY | libc::O_CLOEXEC, 0) as c_int;
    if fd < 0 {
        // Without /proc, as in a chroot: the thread's, which is the program's as a rule.
        sys::thread_name(&mut name);
    } else {
        let _ = sys::read(fd, &mut name);
        let _ = sys::close(fd);
    }
    let name = name.split(|byte| matches!(byte, 0 | b'\n')).next().unwrap_or(&[]);
    let text = |bytes| core::str::from_utf8(bytes).unwrap_or("");
    // (A file that was replaced since: the kernel says so behind its name.)
    let file = text(file);
    let file = file.strip_suffix(" (deleted)").unwrap_or(file);
    rules.retain(|rule| rule.is_of(Program { file, name: text(name) }));
}

/// The parameter `name` has another value from here on. The service thread's alone.
pub(crate) fn change(name: &str, value: &str) -> Answer {
    let now = resolved();
    if !heap::plenty() {
        return Answer::NoMemory;
    }
    let (config, origins) = match now.config.changed(&now.origins, name, value) {
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
    Answer::Done
}

/// The off-switch is for emergencies: it works however often others have been changed.
fn is_switch(name: &str) -> bool {
    name == Key::AccelerateByDefault.name()
}

fn read_file(path: &str) -> Option<String> {
    let mut name = Vec::from(path.as_bytes());
    name.push(0);
    let fd = sys::open(&name, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK, 0) as c_int;
    if fd < 0 {
        return None;
    }
    let mut bytes = Vec::new();
    let mut part = [0u8; 512];
    let whole = loop {
        let n = sys::read(fd, &mut part);
        if n <= 0 || bytes.len() > 1 << 20 {
            break true;
        }
        if bytes.try_reserve(n as usize).is_err() {
            break false;
        }
        bytes.extend_from_slice(part.get(..n as usize).unwrap_or(&[]));
    };
    let _ = sys::close(fd);
    // (A part of it could say the opposite of the whole.)
    if !whole {
        return None;
    }
    if core::str::from_utf8(&bytes).is_err() {
        // The keys that are understood count.
        bytes.iter_mut().filter(|b| !b.is_ascii()).for_each(|b| *b = b'?');
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    /// One test: the configuration is the process's.
    #[test]
    fn another_value_is_in_effect_and_nothing_is_made_twice() {
        crate::testing::init();
        let level = |r: &Resolved| r.config.value_text(Key::LogLevel);
        let (first, was) = (resolved(), level(resolved()));
        let other = if was == "4" { "5" } else { "4" };
        assert_eq!(change("NACC_LOG_LEVEL", other), Answer::Done);
        assert_eq!((level(resolved()).as_str(), level(first)), (other, was.clone()));
        assert!(text().contains(" # live\n"));
        let made = || core::iter::successors(Some(resolved()), |r| r.before).count();
        let before = made();
        for _ in 0..2 * KEPT {
            assert_eq!(change("NACC_LOG_LEVEL", &was), Answer::Done);
            assert_eq!(change("NACC_LOG_LEVEL", other), Answer::Done);
        }
        assert_eq!(made(), before);
        assert_eq!(change("NACC_SOR_MSG_SIZE", "4096"), Answer::AtRestart);
        assert_eq!(level(resolved()), other, "nothing has changed");

        assert_eq!(change("NACC_LOG_LEVEL", "6"), Answer::BadValue);

        let polls = |n: usize| change("NACC_POLL_TCP_US", &n.to_string());
        assert_eq!((0..=KEPT).map(polls).find(|answer| *answer != Answer::Done), {
            Some(Answer::TooMany)
        });
        for _ in 0..KEPT {
            let switch = |value| change(Key::AccelerateByDefault.name(), value);
            assert_eq!((switch("0"), switch("1")), (Answer::Done, Answer::Done));
        }
        assert_eq!(polls(KEPT + 1), Answer::TooMany);
        RESOLVED.store(core::ptr::from_ref(first).cast_mut(), SeqCst);
    }
}
