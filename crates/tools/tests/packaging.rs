//! What `netacc-enable` lets a hardened service call is what the library calls.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// `exit_group` no filter refuses. `sched_setaffinity` is a measurement's. `unshare` is not let
/// through: a filter that knows no flags would let namespaces through with it (docs/manual). By
/// `execve` utcp starts its keeper, for which a service is given more by hand.
const NOT_LET_THROUGH: [&str; 4] = ["execve", "exit_group", "sched_setaffinity", "unshare"];

fn calls_in(text: &str) -> impl Iterator<Item = String> + '_ {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.split("SYS_").skip(1).filter_map(move |rest| {
        Some(rest.split(|c| !is_name(c)).next()?.to_owned()).filter(|name| !name.is_empty())
    })
}

#[test]
fn services_may_call_what_the_library_calls() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script = fs::read_to_string(repository.join("packaging/netacc-enable")).unwrap();
    let listed = script.split("\ncalls=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let listed: BTreeSet<&str> = listed.split_whitespace().collect();
    let source = repository.join("crates/core/src");
    let mut files = vec![source.join("sys.rs")];
    files.extend(fs::read_dir(source.join("sys")).unwrap().map(|entry| entry.unwrap().path()));
    let text: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let missing: BTreeSet<String> = calls_in(&text)
        .filter(|name| !listed.contains(name.as_str()) && !NOT_LET_THROUGH.contains(&&**name))
        .collect();
    assert!(calls_in(&text).count() > 50 && missing.is_empty(), "{missing:?}");
}
