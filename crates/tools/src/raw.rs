//! Finds programs and libraries that make system calls without the C library, which nothing that is
//! preloaded can see.
//!
//! Looks for `syscall` instructions with the number of a call that waits for descriptors, or moves
//! bytes over sockets, loaded into `eax` just before. It is advice for the operator: what is in the
//! code need not run, and what is loaded later is not looked at. x86-64 alone.

use object::elf::{FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader as _};
use object::{Endianness, elf::EM_X86_64};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Of the calls that the library has to see.
const CALLS: [(u32, &str); 14] = [
    (7, "poll"),
    (23, "select"),
    (44, "sendto"),
    (45, "recvfrom"),
    (46, "sendmsg"),
    (47, "recvmsg"),
    (232, "epoll_wait"),
    (233, "epoll_ctl"),
    (270, "pselect6"),
    (271, "ppoll"),
    (281, "epoll_pwait"),
    (288, "accept4"),
    (426, "io_uring_enter"),
    (441, "epoll_pwait2"),
];
/// Libraries whose own functions are hooked: the C library, and liburing.
const HOOKED: [&str; 8] = [
    "libc.so",
    "ld-linux",
    "libpthread",
    "librt.so",
    "libdl.so",
    "libanl",
    "libresolv",
    "liburing.so",
];
/// How far before the instruction its number is looked for.
const BEFORE: usize = 24;
/// Code of one file that is looked at.
const CODE_MAX: u64 = 64 << 20;

/// A file that makes such calls, and their names.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// The program or library.
    pub file: PathBuf,
    /// In the order of the table above.
    pub calls: Vec<&'static str>,
}

/// Looks at a dynamically linked program and the libraries that its loader gives it.
pub fn find(program: &Path, loader: &OsStr) -> Vec<Found> {
    let mut files = vec![program.to_path_buf()];
    files.extend(libraries(program, loader));
    files
        .into_iter()
        .filter_map(|file| {
            let calls = calls(&file).unwrap_or_default();
            (!calls.is_empty()).then_some(Found { file, calls })
        })
        .collect()
}

/// What the loader would load, by its own word.
fn libraries(program: &Path, loader: &OsStr) -> Vec<PathBuf> {
    let Ok(program) = program.canonicalize() else {
        return Vec::new();
    };
    let said = Command::new(loader)
        .arg("--list")
        .arg(program)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let Ok(said) = said else { return Vec::new() };
    String::from_utf8_lossy(&said.stdout)
        .lines()
        // `NAME => FILE (ADDRESS)`, or the file alone where it is needed by its path.
        .filter_map(|line| line.rsplit(" => ").next()?.trim().split(" (").next())
        .filter(|file| file.starts_with('/'))
        .map(PathBuf::from)
        .filter(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            !HOOKED.iter().any(|start| name.starts_with(start))
        })
        .collect()
}

/// The calls in one file's code. `None`: it cannot be read, or is none of ours.
fn calls(file: &Path) -> Option<Vec<&'static str>> {
    let file = File::open(file).ok()?;
    let cache = object::read::ReadCache::new(&file);
    let header = FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != EM_X86_64 {
        return None;
    }
    let mut found = [false; CALLS.len()];
    for segment in header.program_headers(endian, &cache).ok()? {
        if segment.p_type(endian) != PT_LOAD || segment.p_flags(endian) & PF_X == 0 {
            continue;
        }
        let size = segment.p_filesz(endian).min(CODE_MAX);
        let mut code = vec![0; usize::try_from(size).ok()?];
        file.read_exact_at(&mut code, segment.p_offset(endian)).ok()?;
        mark(&code, &mut found);
    }
    let names = CALLS.iter().zip(found).filter(|(_, is)| *is);
    Some(names.map(|((_, name), _)| *name).collect())
}

fn mark(code: &[u8], found: &mut [bool; CALLS.len()]) {
    for at in memchr::memmem::find_iter(code, b"\x0f\x05") {
        let before = &code[at.saturating_sub(BEFORE)..at];
        // The last `mov eax, NUMBER` counts.
        let number = before.windows(5).rev().find_map(|w| match *w {
            [0xb8, a, b, c @ 0, d @ 0] => Some(u32::from_le_bytes([a, b, c, d])),
            _ => None,
        });
        let call = CALLS.iter().position(|(n, _)| Some(*n) == number);
        if let Some(is) = call.and_then(|i| found.get_mut(i)) {
            *is = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &[u8]) -> Vec<&'static str> {
        let mut found = [false; CALLS.len()];
        mark(code, &mut found);
        let names = CALLS.iter().zip(found).filter(|(_, is)| *is);
        names.map(|((_, name), _)| *name).collect()
    }

    #[test]
    fn the_number_that_is_loaded_last_counts() {
        let epoll_pwait = [0xb8, 0x19, 1, 0, 0, 0x45, 0x31, 0xc0, 0x0f, 0x05];
        assert_eq!(found(&epoll_pwait), ["epoll_pwait"]);
        let mut other = vec![0xb8, 0x19, 1, 0, 0];
        other.extend([0xb8, 60, 0, 0, 0, 0x0f, 0x05]);
        assert!(found(&other).is_empty());
        assert!(found(&[0x0f, 0x05]).is_empty());
        let mut far = epoll_pwait[..5].to_vec();
        far.extend([0x90; BEFORE]);
        far.extend([0x0f, 0x05]);
        assert!(found(&far).is_empty());
    }
}
