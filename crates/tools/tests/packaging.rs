//! What `netacc-enable` lets a hardened service call is what the library calls, and what it writes.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{Scratch, run};

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

/// What netacc-enable writes for a unit of which systemd says this.
fn drop_in(properties: &str) -> String {
    let scratch = Scratch::new();
    scratch.write("properties", properties);
    let said = "#!/bin/sh\nfor word; do case $word in --property=*) name=${word#*=};; esac; done\n\
                sed -n \"s/^$name=//p\" \"$(dirname \"$0\")/properties\"\n";
    scratch.script("systemctl", said);
    let folder = scratch.path("");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/netacc-enable");
    let mut command = Command::new("sh");
    command.arg(script).arg("some").env("PATH", path).env("NETACC_UNIT_DIR", &folder);
    let ran = run(command.env("NETACC_LIB", scratch.library()));
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    std::fs::read_to_string(scratch.path("some.service.d/50-netacc.conf")).unwrap()
}

#[test]
fn a_service_that_filters_its_calls_is_traced_unless_it_says_so_itself() {
    let free = "LoadState=loaded\nSystemCallFilter=~\nSystemCallLog=~\nRestrictAddressFamilies=~\n\
                RestrictNamespaces=no\nSystemCallArchitectures=\nLockPersonality=no\n";
    let traced = |more: &str, of: &str| {
        let properties = match of {
            "" => free.to_owned() + more,
            line => free.replace(line, more),
        };
        drop_in(&properties).lines().any(|line| line == "Environment=NACC_TRACE=1")
    };
    assert!(!traced("", ""), "nothing filters");
    let families = "RestrictAddressFamilies=AF_INET AF_UNIX";
    assert!(traced(families, "RestrictAddressFamilies=~"));
    assert!(traced("SystemCallFilter=~mount", "SystemCallFilter=~"));
    assert!(traced("LockPersonality=yes", "LockPersonality=no"));
    assert!(traced("RestrictNamespaces=cgroup net", "RestrictNamespaces=no"));
    for own in ["NACC_TRACE=0", "A=1 NACC_TRACE=2", "\"NACC_TRACE=0\" B=2"] {
        let more = format!("{families}\nEnvironment={own}");
        assert!(!traced(&more, "RestrictAddressFamilies=~"), "{own}");
    }
}

/// systemd takes away what such a service has in /dev/shm when it ends: its trace lies elsewhere.
#[test]
fn a_service_whose_memory_goes_with_it_has_a_folder_for_its_trace() {
    let of = |properties: &str| {
        let properties = format!("LoadState=loaded\n{properties}");
        let written = drop_in(&properties);
        let about = ["RuntimeDirectory", "Environment=NACC_TRACE_DIR="];
        let lines = written.lines().filter(|line| about.iter().any(|it| line.starts_with(it)));
        lines.map(String::from).collect::<Vec<_>>()
    };
    let folder = [
        "RuntimeDirectory=netacc/%n",
        "RuntimeDirectoryPreserve=yes",
        "Environment=NACC_TRACE_DIR=%t/netacc/%n",
    ];
    let nothing: [&str; 0] = [];
    assert_eq!(of("User=redis\nRemoveIPC=yes\n"), folder);
    assert_eq!(of("DynamicUser=yes\nRemoveIPC=yes\nUser=\n"), folder);
    assert_eq!(of("User=redis\nRemoveIPC=no\n"), nothing);
    for root in ["", "root", "0"] {
        assert_eq!(of(&format!("User={root}\nRemoveIPC=yes\n")), nothing, "root's stays");
    }
    let own = "User=redis\nRemoveIPC=yes\nEnvironment=A=1 NACC_TRACE_DIR=/run/own\n";
    assert_eq!(of(own), nothing);
}
