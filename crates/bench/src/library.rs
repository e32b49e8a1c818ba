//! Where the library and `netacc_ss` are, how a process gets the library, and the proof that it was
//! of use.

use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// As installed, and as cargo names it.
const FILE_NAMES: [&str; 2] = ["libnetacc-preload.so", "libnetacc_preload.so"];

/// Names the library instead of the search, for `netacc_run` as well.
const ENV_LIBRARY: &str = "NETACC_LIB";

/// What is there to work with.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    /// The library, or why there is none.
    pub(crate) library: Result<PathBuf, String>,
    /// `netacc_ss`, if found.
    pub(crate) ss: Option<PathBuf>,
}

impl Tools {
    pub(crate) fn find(library: Option<&Path>, ss: Option<&Path>) -> Self {
        let beside =
            std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf));
        let named = std::env::var_os(ENV_LIBRARY).filter(|named| !named.is_empty());
        let library = match library.map(Path::to_path_buf).or(named.map(PathBuf::from)) {
            Some(path) => {
                path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))
            }
            None => beside
                .iter()
                .cloned()
                .chain(beside.iter().map(|dir| dir.join("../lib")))
                .chain(["/usr/local/lib", "/usr/lib"].map(PathBuf::from))
                .flat_map(|dir| FILE_NAMES.map(|name| dir.join(name)))
                .find_map(|path| path.canonicalize().ok())
                .ok_or_else(|| "library not found".into()),
        }
        .and_then(|path| {
            match path.as_os_str().as_bytes().iter().any(|b| b" :".contains(b)) {
                true => Err(format!(
                    "{}: LD_PRELOAD cannot hold a path with a space or colon",
                    path.display()
                )),
                false => Ok(path),
            }
        });
        let ss = match ss {
            Some(path) => Some(path.to_path_buf()),
            None => beside
                .into_iter()
                .chain(std::env::var_os("PATH").iter().flat_map(std::env::split_paths))
                .map(|dir| dir.join("netacc_ss"))
                .find(|path| path.is_file()),
        };
        Self { library, ss }
    }
}

/// `LD_PRELOAD` for a process: what was there without any netacc library, and `library` first when
/// given. `None`: the variable has to be unset.
pub(crate) fn preload(inherited: Option<&OsStr>, library: Option<&Path>) -> Option<OsString> {
    let ours = |entry: &[u8]| {
        FILE_NAMES.iter().any(|name| entry.rsplit(|&b| b == b'/').next() == Some(name.as_bytes()))
    };
    let mut entries: Vec<&[u8]> =
        library.map(|path| path.as_os_str().as_bytes()).into_iter().collect();
    entries.extend(
        inherited
            .map_or(&[][..], OsStr::as_bytes)
            .split(|b| b" :".contains(b))
            .filter(|entry| !entry.is_empty() && !ours(entry)),
    );
    (!entries.is_empty()).then(|| OsString::from_vec(entries.join(&b':')))
}

/// What is known about a run's acceleration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// No side had the library.
    NotAsked,
    /// `netacc_ss` said so.
    Counted(Counts),
    /// The library is not in the process: nothing can have been accelerated.
    NotLoaded(String),
    /// Could not be found out.
    Unknown(String),
}

/// Connections of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) total: u64,
    pub(crate) accelerated: u64,
}

impl Proof {
    /// Asks about a process that was started with the library and still lives.
    pub(crate) fn of(pid: u32, tools: &Tools) -> Self {
        let library = match &tools.library {
            Ok(library) => library,
            Err(reason) => return Self::NotLoaded(reason.clone()),
        };
        if let Ok(maps) = std::fs::read(format!("/proc/{pid}/maps"))
            && !maps
                .split(|&b| b == b'\n')
                .any(|line| line.ends_with(library.as_os_str().as_bytes()))
        {
            return Self::NotLoaded("library not loaded".into());
        }
        match &tools.ss {
            None => Self::Unknown("netacc_ss not found".into()),
            Some(ss) => ask(ss, pid).map_or_else(Self::Unknown, Self::Counted),
        }
    }

    /// The sum over the rounds; one round without a number leaves none.
    pub(crate) fn sum<'a>(proofs: impl IntoIterator<Item = &'a Self>) -> Self {
        proofs
            .into_iter()
            .cloned()
            .reduce(|a, b| match (a, b) {
                (Self::Counted(a), Self::Counted(b)) => Self::Counted(Counts {
                    total: a.total + b.total,
                    accelerated: a.accelerated + b.accelerated,
                }),
                (a @ Self::NotLoaded(_), _) | (_, a @ Self::NotLoaded(_)) => a,
                (a @ Self::Unknown(_), _) | (_, a @ Self::Unknown(_)) => a,
                (Self::NotAsked, a) | (a, Self::NotAsked) => a,
            })
            .unwrap_or(Self::NotAsked)
    }

    pub(crate) fn counts(&self) -> Option<Counts> {
        match self {
            Self::Counted(counts) => Some(*counts),
            _ => None,
        }
    }

    /// One word for machines: `all`, `partly`, `none`, `unknown`, `not-asked`.
    pub(crate) fn verdict(&self) -> &'static str {
        match self {
            Self::NotAsked => "not-asked",
            Self::Unknown(_) => "unknown",
            Self::NotLoaded(_) => "none",
            Self::Counted(counts) if counts.accelerated == 0 => "none",
            Self::Counted(counts) if counts.accelerated < counts.total => "partly",
            Self::Counted(_) => "all",
        }
    }

    /// For the table; loud where `expected` acceleration did not happen.
    pub(crate) fn cell(&self, expected: bool) -> String {
        let count = match self {
            Self::NotAsked => return "-".into(),
            Self::Unknown(reason) => return format!("unknown ({reason})"),
            Self::NotLoaded(reason) => format!("({reason})"),
            Self::Counted(counts) => format!("{}/{}", counts.accelerated, counts.total),
        };
        match (expected, self.verdict()) {
            (false, _) if self.counts().is_none() => format!("LIBRARY NOT LOADED {count}"),
            (true, "none") => format!("NOT ACCELERATED {count}"),
            (true, "partly") => format!("{count} PARTLY"),
            _ => count,
        }
    }
}

/// Runs `netacc_ss --json -s cnt PID`.
fn ask(ss: &Path, pid: u32) -> Result<Counts, String> {
    let fail = |what: &dyn std::fmt::Display| format!("netacc_ss: {what}");
    let mut child = Command::new(ss)
        .args(["--json", "-s", "cnt", &pid.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| fail(&error))?;
    let output = child.stdout.take().ok_or_else(|| fail(&"no output"))?;
    let errors = child.stderr.take().ok_or_else(|| fail(&"no output"))?;
    let [output, errors] =
        [Box::new(output) as Box<dyn Read + Send>, Box::new(errors)].map(|mut pipe| {
            std::thread::spawn(move || {
                let mut text = String::new();
                pipe.read_to_string(&mut text).map(|_| text)
            })
        });
    let limit = Instant::now() + Duration::from_secs(5);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < limit => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(fail(&"no answer within 5 s"));
            }
            Err(error) => return Err(fail(&error)),
        }
    };
    if !status.success() {
        // It says itself who speaks, and why.
        let said = errors.join().ok().and_then(Result::ok).unwrap_or_default();
        let line = said.lines().find(|line| !line.trim().is_empty());
        return Err(line.map_or_else(|| fail(&status), |line| line.chars().take(90).collect()));
    }
    let text = output.join().map_err(|_| fail(&"unreadable"))?.map_err(|error| fail(&error))?;
    parse_counts(&text, pid).map_err(|error| fail(&error))
}

/// Reads `connections_total` and `accelerated_total` of process `pid`.
fn parse_counts(text: &str, pid: u32) -> Result<Counts, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let number =
        |key: &str| value.get(key).and_then(Value::as_u64).ok_or_else(|| format!("no `{key}`"));
    if number("pid")? != u64::from(pid) {
        return Err("answer about another process".into());
    }
    let counts =
        Counts { total: number("connections_total")?, accelerated: number("accelerated_total")? };
    if counts.accelerated > counts.total {
        return Err("more accelerated connections than connections".into());
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_or_refused() {
        let good = r#"{"pid":7,"connections_total":101,"accelerated_total":100,"open":{"tcp":1,"shm":100}}"#;
        assert_eq!(parse_counts(good, 7), Ok(Counts { total: 101, accelerated: 100 }));
        for wrong in [
            "",
            "{}",
            r#"{"pid":8,"connections_total":1,"accelerated_total":1}"#,
            r#"{"pid":7,"connections_total":1}"#,
            r#"{"pid":7,"connections_total":1,"accelerated_total":2}"#,
            r#"{"pid":7,"connections_total":1,"accelerated_total":"1"}"#,
            r#"{"pid":7,"connections_total":-1,"accelerated_total":0}"#,
        ] {
            assert!(parse_counts(wrong, 7).is_err(), "{wrong}");
        }
    }

    #[test]
    fn preload_keeps_others_and_replaces_ours() {
        let p = |inherited: Option<&str>, library: Option<&str>| {
            preload(inherited.map(OsStr::new), library.map(Path::new))
                .map(|s| s.into_string().unwrap())
        };
        assert_eq!(p(None, None), None);
        assert_eq!(
            p(None, Some("/a/libnetacc_preload.so")).as_deref(),
            Some("/a/libnetacc_preload.so")
        );
        assert_eq!(p(Some("/b/libnetacc-preload.so"), None), None);
        assert_eq!(
            p(Some("libx.so: /b/libnetacc-preload.so liby.so"), None).as_deref(),
            Some("libx.so:liby.so")
        );
        assert_eq!(p(Some("libx.so"), Some("/a.so")).as_deref(), Some("/a.so:libx.so"));
        assert_eq!(p(Some("libnetacc_preload.so"), Some("/a.so")).as_deref(), Some("/a.so"));
    }

    #[test]
    fn a_run_that_was_not_accelerated_is_loud() {
        let counted = |accelerated, total| Proof::Counted(Counts { total, accelerated });
        assert_eq!(counted(100, 100).cell(true), "100/100");
        assert_eq!(counted(0, 100).cell(true), "NOT ACCELERATED 0/100");
        assert_eq!(counted(0, 0).cell(true), "NOT ACCELERATED 0/0");
        assert_eq!(counted(99, 100).cell(true), "99/100 PARTLY");
        assert_eq!(counted(0, 100).cell(false), "0/100");
        assert_eq!(Proof::NotLoaded("gone".into()).cell(false), "LIBRARY NOT LOADED (gone)");
        assert_eq!(
            Proof::NotLoaded("library not found".into()).cell(true),
            "NOT ACCELERATED (library not found)"
        );
        assert_eq!(
            Proof::Unknown("netacc_ss not found".into()).cell(true),
            "unknown (netacc_ss not found)"
        );
        assert_eq!(Proof::NotAsked.cell(false), "-");
    }

    #[test]
    fn sums_do_not_guess() {
        let one = Proof::Counted(Counts { total: 1, accelerated: 1 });
        let unknown = Proof::Unknown("x".into());
        assert_eq!(Proof::sum([&one, &one]), Proof::Counted(Counts { total: 2, accelerated: 2 }));
        assert_eq!(Proof::sum([&one, &unknown, &one]), unknown);
        assert_eq!(Proof::sum([]), Proof::NotAsked);
    }

    #[test]
    fn this_process_has_no_library() {
        let tools = Tools { library: Ok("/nowhere/libnetacc-preload.so".into()), ss: None };
        assert_eq!(
            Proof::of(std::process::id(), &tools),
            Proof::NotLoaded("library not loaded".into())
        );
    }
}
