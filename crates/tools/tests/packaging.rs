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
    drop_in_of("some", properties)
}

/// Where Debian's package has the library, and its folder.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libnetacc-preload.so";
const FOLDER: &str = "/usr/lib";

/// The same of a unit by its name. (There is no library here in those places: another one stands in
/// for it, in a folder that stands in for that.)
fn drop_in_of(unit: &str, properties: &str) -> String {
    let scratch = Scratch::new();
    let library = scratch.library();
    let folder = library.parent().unwrap().display().to_string();
    scratch.write("properties", &properties.replace(FOLDER, &folder));
    let said = "#!/bin/sh\nfor word; do case $word in --property=*) name=${word#*=};; esac; done\n\
                sed -n \"s/^$name=//p\" \"$(dirname \"$0\")/properties\"\n";
    scratch.script("systemctl", said);
    let folder = scratch.path("");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/netacc-enable");
    let mut command = Command::new("sh");
    command.arg(script).arg(unit).env("PATH", path).env("NETACC_UNIT_DIR", &folder);
    let ran = run(command.env("NETACC_LIB", &library));
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let file = scratch.path(&format!("{unit}.service.d/50-netacc.conf"));
    std::fs::read_to_string(file).unwrap().replace(&library.display().to_string(), LIBRARY)
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

/// The calls of one of systemd's groups; `None` where there is no systemd to ask.
fn calls_of(group: &str) -> Option<BTreeSet<String>> {
    let mut command = Command::new("systemd-analyze");
    let said = command.args(["--no-pager", "syscall-filter", group]).output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut all = BTreeSet::new();
    for word in text.lines().skip(1).map(str::trim).filter(|word| !word.starts_with('#')) {
        match word.starts_with('@') {
            true => all.extend(calls_of(word)?),
            false => all.extend([word.to_owned()].into_iter().filter(|word| !word.is_empty())),
        }
    }
    (!all.is_empty()).then_some(all)
}

/// The manual shows what is written for Debian's Redis.
#[test]
fn the_page_about_installing_has_the_drop_in_of_debians_redis() {
    let filter = calls_of("@system-service").map(|mut calls| {
        for refused in ["@privileged", "@resources"] {
            let refused = calls_of(refused).unwrap_or_default();
            calls.retain(|call| !refused.contains(call));
        }
        calls.into_iter().collect::<Vec<_>>().join(" ")
    });
    // (What it says of that unit, of Debian 12; without its calls where nobody knows which those
    // are: it filters as well.)
    let filter = filter.unwrap_or_else(|| String::from("~"));
    let properties = format!(
        "LoadState=loaded\nUser=redis\nDynamicUser=no\nRemoveIPC=yes\nEnvironment=\n\
         SystemCallFilter={filter}\nSystemCallLog=~\nSystemCallArchitectures=native\n\
         RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX\nRestrictNamespaces=yes\n\
         MemoryDenyWriteExecute=yes\nLockPersonality=yes\nNoExecPaths=/\n\
         ExecPaths=/usr/bin/redis-server {FOLDER} /lib\n"
    );
    let written = drop_in_of("redis-server", &properties);
    let page = include_str!("../../../docs/manual/install.md");
    let shown = page.split("```ini\n").find(|block| block.contains("50-netacc.conf\n")).unwrap();
    let (name, shown) = shown.split("\n```").next().unwrap().split_once('\n').unwrap();
    assert_eq!(name, "# /etc/systemd/system/redis-server.service.d/50-netacc.conf");
    assert_eq!(shown, written.trim_end());
}
