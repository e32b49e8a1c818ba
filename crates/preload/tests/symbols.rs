//! The shared object's symbols: what it exports is what `docs/hooks.md` says, and it calls none of
//! its own hooks.
#![allow(missing_docs, reason = "a test program")]

use std::collections::BTreeSet;
use std::process::Command;

#[path = "support/library.rs"]
mod library;

/// Hooked symbols that the library itself may call, with the reason. What it does for itself goes
/// by raw system calls, and what it passes on goes through its table of next symbols. But calls of
/// the verbs libraries keep the thread from being cancelled, and the hook has to know of that as
/// well: no wait ends for a cancellation that the thread cannot have then.
const CALLED_BY_ITSELF: &[&str] = &["pthread_setcancelstate"];

fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).arg(library::path()).output().unwrap();
    assert!(output.status.success(), "{name} failed");
    String::from_utf8(output.stdout).unwrap()
}

fn exported() -> BTreeSet<String> {
    let names = tool("nm", &["-D", "--defined-only"]);
    names.lines().map(|line| line.rsplit(' ').next().unwrap().to_string()).collect()
}

/// The names in backticks in the first column of the tables under a heading of second level.
fn documented(heading: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/hooks.md");
    let path = std::env::var("NETACC_HOOKS_DOC").unwrap_or(path.to_string());
    let text = std::fs::read_to_string(path).unwrap();
    let part =
        text.split("\n## ").find(|part| part.starts_with(heading)).expect("a section of that name");
    let rows = part.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.flat_map(|row| {
        let column = row.split('|').next().unwrap();
        column.split('`').step_by(2).map(str::to_string).collect::<Vec<_>>()
    })
    .filter(|name| !name.is_empty())
    .collect()
}

#[test]
fn run_as_a_program_it_says_what_it_is() {
    let output = Command::new(library::path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(text.starts_with(&format!("libnetacc-preload.so (netacc) {version}\n")), "{text}");
    let names = tool("readelf", &["-d"]);
    assert!(names.contains("Library soname: [libnetacc-preload.so]"), "{names}");
}

#[test]
fn exports_are_the_documented_hooks() {
    let documented_list = documented("Hooked");
    let documented: BTreeSet<String> = documented_list.iter().cloned().collect();
    let twice: Vec<_> = documented
        .iter()
        .filter(|name| documented_list.iter().filter(|n| n == name).count() > 1)
        .collect();
    assert!(twice.is_empty(), "documented twice: {twice:?}");
    let exported = exported();
    let undocumented: Vec<_> = exported.difference(&documented).collect();
    let not_exported: Vec<_> = documented.difference(&exported).collect();
    assert!(undocumented.is_empty(), "exported, but not in docs/hooks.md: {undocumented:?}");
    assert!(not_exported.is_empty(), "in docs/hooks.md, but not exported: {not_exported:?}");
}

#[test]
fn nothing_is_both_hooked_and_listed_as_not_hooked() {
    let exported = exported();
    let both: Vec<_> = documented("Known and not hooked")
        .into_iter()
        .filter(|name| exported.contains(name))
        .collect();
    assert!(both.is_empty(), "{both:?}");
}

#[test]
fn library_does_not_call_its_own_hooks() {
    let exported = exported();
    // A call of an exported symbol, or its address, needs a relocation that names it; a hook's own
    // body does not.
    let relocations = tool("readelf", &["-rW"]);
    let named = relocations.lines().filter_map(|line| line.split_whitespace().nth(4));
    let called: BTreeSet<_> = named
        .map(|name| name.split('@').next().unwrap())
        .filter(|name| exported.contains(*name))
        .collect();
    let allowed: BTreeSet<_> = CALLED_BY_ITSELF.iter().copied().collect();
    assert_eq!(called, allowed);
}

#[test]
fn library_needs_libc_and_nothing_else() {
    let dynamic = tool("readelf", &["-dW"]);
    let needed: Vec<_> = dynamic.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(
        needed.iter().all(|line| line.contains("[libc.so.6]") || line.contains("[ld-linux")),
        "{needed:?}"
    );
    // However it is built, alone or beside programs: what packages depend on is read from these.
    assert!(needed.iter().any(|line| line.contains("[libc.so.6]")), "{needed:?}");
    let names = tool("nm", &["-D", "--undefined-only"]);
    let unversioned: Vec<_> =
        names.lines().filter(|line| line.contains(" U ") && !line.contains("@GLIBC")).collect();
    assert!(unversioned.is_empty(), "{unversioned:?}");
}
