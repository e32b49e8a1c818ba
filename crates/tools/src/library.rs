//! Finds `libnetacc-preload.so` and puts it into `LD_PRELOAD`.

use crate::elf::{Elf, Target};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Environment variable that names the library, instead of the search.
pub const ENV_LIBRARY: &str = "NETACC_LIB";
/// Name under which it is installed.
pub const FILE_NAME: &str = "libnetacc-preload.so";
/// Name under which cargo leaves it in a development tree.
pub const CARGO_FILE_NAME: &str = "libnetacc_preload.so";

/// A library that can be preloaded.
#[derive(Debug)]
pub struct Library {
    /// Absolute path.
    pub path: PathBuf,
    /// What it is made for.
    pub target: Target,
}

/// Why there is none.
#[derive(Debug)]
pub enum Missing {
    /// Not found; looked beside this directory, and in the system's.
    NotFound(Option<PathBuf>),
    /// Found, but not readable.
    Unreadable(PathBuf, io::Error),
    /// Found, but not a shared library.
    NotALibrary(PathBuf),
    /// `LD_PRELOAD` cannot express the path.
    Unspeakable(PathBuf),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::NotFound(here) => {
                match here {
                    Some(here) => write!(
                        f,
                        "{FILE_NAME} is neither in {} or the lib directory beside it, nor in",
                        here.display()
                    ),
                    None => write!(
                        f,
                        "where this program lies is not known (/proc/self/exe), and {FILE_NAME} \
                         is not in"
                    ),
                }?;
                write!(f, " /usr/lib or /usr/local/lib; {ENV_LIBRARY} can name it")
            }
            Missing::Unreadable(path, error) => write!(f, "{}: {error}", path.display()),
            Missing::NotALibrary(path) => write!(f, "{}: not a shared library", path.display()),
            Missing::Unspeakable(path) => {
                write!(f, "{}: a path with a space or a colon cannot be preloaded", path.display())
            }
        }
    }
}

/// Finds the library: where `NETACC_LIB` says, or else beside this program, or else in the system's
/// directories.
pub fn find(named: Option<&OsStr>, program: Option<&Path>) -> Result<Library, Missing> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        return open(Path::new(named));
    }
    for place in places(program) {
        for name in [FILE_NAME, CARGO_FILE_NAME] {
            let file = place.join(name);
            if file.exists() {
                return open(&file);
            }
        }
    }
    let here = program.and_then(Path::parent);
    Err(Missing::NotFound(here.map(Path::to_path_buf)))
}

/// Where the library is looked for, in this order.
fn places(program: Option<&Path>) -> Vec<PathBuf> {
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let mut places = Vec::new();
    if let Some(here) = program.and_then(Path::parent) {
        places.push(here.to_path_buf());
        if let Some(prefix) = here.parent() {
            places.push(prefix.join("lib"));
            places.push(prefix.join("lib").join(&multiarch));
            places.push(prefix.join("lib64"));
        }
    }
    for prefix in ["/usr/lib", "/usr/local/lib"] {
        places.push(PathBuf::from(prefix));
        places.push(Path::new(prefix).join(&multiarch));
        places.push(PathBuf::from(prefix.to_owned() + "64"));
    }
    let mut seen = Vec::new();
    places.retain(|place| {
        let new = !seen.contains(place);
        seen.push(place.clone());
        new
    });
    places
}

fn open(path: &Path) -> Result<Library, Missing> {
    let unreadable = |error| Missing::Unreadable(path.to_path_buf(), error);
    // Absolute, since the command may change its directory before it starts another program.
    let path = std::path::absolute(path).map_err(unreadable)?;
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b':')) {
        return Err(Missing::Unspeakable(path));
    }
    // (A pipe would have to be opened by a writer, too.)
    if !std::fs::metadata(&path).map_err(unreadable)?.is_file() {
        return Err(Missing::NotALibrary(path));
    }
    let file = File::open(&path).map_err(unreadable)?;
    match Elf::read(file) {
        Ok(Some(elf)) if elf.dynamic => Ok(Library { target: elf.target, path }),
        Ok(_) => Err(Missing::NotALibrary(path)),
        Err(error) => Err(Missing::Unreadable(path, error)),
    }
}

/// The new value of `LD_PRELOAD`: the library before what is there, unless it is there.
pub fn preload(library: &Path, existing: Option<&OsStr>) -> OsString {
    let existing = existing.unwrap_or_default();
    let is_ours = |entry: &[u8]| {
        let name = entry.rsplit(|byte| *byte == b'/').next().unwrap_or(entry);
        name == FILE_NAME.as_bytes() || name == CARGO_FILE_NAME.as_bytes()
    };
    let mut entries = existing.as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    if entries.any(is_ours) {
        return existing.to_owned();
    }
    let mut value = library.as_os_str().as_bytes().to_vec();
    if !existing.is_empty() {
        value.push(b':');
        value.extend_from_slice(existing.as_bytes());
    }
    OsString::from_vec(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        let value = |existing: Option<&str>| {
            let value = preload(Path::new("/l/libnetacc-preload.so"), existing.map(OsStr::new));
            value.into_string().unwrap()
        };
        assert_eq!(value(None), "/l/libnetacc-preload.so");
        assert_eq!(value(Some("")), "/l/libnetacc-preload.so");
        assert_eq!(value(Some("a.so b.so")), "/l/libnetacc-preload.so:a.so b.so");
        for existing in
            ["/l/libnetacc-preload.so", "a.so:/x/libnetacc-preload.so b.so", "libnetacc_preload.so"]
        {
            assert_eq!(value(Some(existing)), existing);
        }
    }

    #[test]
    fn places_beside_the_program_come_first() {
        let places = places(Some(Path::new("/opt/netacc/bin/netacc_run")));
        assert_eq!(places[0], Path::new("/opt/netacc/bin"));
        assert_eq!(places[1], Path::new("/opt/netacc/lib"));
        assert!(places.contains(&PathBuf::from("/usr/local/lib")));
    }
}
