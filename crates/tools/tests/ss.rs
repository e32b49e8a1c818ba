//! `netacc_ss` against a segment that this test makes of itself.

mod support;

use netacc_control::stats::{
    CONNS_OFFSET, ConnRecord, Counter, Header, LIBRARY, MAGIC, Reason, UNCOUNTED, VERSION,
};
use netacc_tools::processes::Looks;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Lines};
use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use support::segment::Segment;
use support::{Ran, Scratch, run};

/// One segment at a time: all tests of this file are one process.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn ss(arguments: &[&str]) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_netacc_ss")).args(arguments))
}

fn json_of(what: &str) -> Value {
    let ran = ss(&["-p", &std::process::id().to_string(), "-s", what, "--json"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn json_is_as_agreed() {
    let _alone = alone();
    let pid = std::process::id();
    let _inherited = Segment::filled(pid + 1);
    let segment = Segment::filled(pid);
    segment.u64(offset_of!(Header, library), 0xb_0001_0002_0003);

    let cnt = json_of("cnt");
    assert_eq!(cnt["pid"], json!(pid));
    assert_eq!(
        cnt["program"],
        json!(std::fs::read_to_string("/proc/self/comm").unwrap().trim_end())
    );
    assert_eq!(cnt["library_version"], json!("1.2.3"));
    assert_eq!(cnt["protocol_version"], json!(11));
    assert_eq!(cnt["connections_total"], json!(15));
    assert_eq!(cnt["accelerated_total"], json!(11));
    assert_eq!(cnt["open"], json!({"tcp": 1, "shm": 2, "rdma": 1, "utcp": 0}));
    assert_eq!(cnt["total"], json!({"tcp": 4, "shm": 6, "rdma": 5, "utcp": 0}));
    // Of the connections that have ended, and of the open ones.
    assert_eq!(cnt["tx_bytes"], json!({"tcp": 1 + 10, "shm": 1000, "rdma": 300 + 3000, "utcp": 0}));
    assert_eq!(cnt["rx_bytes"], json!({"tcp": 20, "shm": 2 + 2000, "rdma": 400 + 4000, "utcp": 0}));
    assert_eq!((&cnt["tx_messages"], &cnt["rx_messages"]), (&json!(111), &json!(22)));
    assert_eq!(cnt["counters"]["rdma_pairs_created"], json!(3));
    for (counter, total) in [
        ("shm_bytes_tx", 1000),
        ("shm_bytes_rx", 2 + 2000),
        ("tcp_bytes_tx", 1 + 10),
        ("tcp_bytes_rx", 20),
        ("rdma_bytes_tx", 300 + 3000),
        ("rdma_bytes_rx", 400 + 4000),
        ("messages_tx", 100 + 11),
        ("messages_rx", 22),
    ] {
        assert_eq!(cnt["counters"][counter], json!(total), "{counter}");
    }
    assert_eq!(cnt["reasons"], json!({"none": 6, "peer-without-library": 3, "unknown-60": 1}));
    assert_eq!(cnt["open_reasons"], json!({"none": 1, "peer-remote": 1, "rdma-lost": 1}));
    assert_eq!(cnt["counters"]["accepted"], json!(10));
    assert_eq!(cnt["counters"].as_object().unwrap().len(), Counter::ALL.len());

    let sock = json_of("sock");
    let mut expected = json!({"pid": pid, "sockets": [
        {"fd": 5, "local": "[::1]:0", "peer": "[2001:db8::]:0", "tx_path": "tcp", "rx_path": "tcp",
         "reason": "peer-remote", "rule": null, "tx_tcp_bytes": 0, "tx_shm_bytes": 0, "rx_tcp_bytes": 0, "rx_shm_bytes": 0,
         "tx_rdma_bytes": 0, "rx_rdma_bytes": 0, "tx_utcp_bytes": 0, "rx_utcp_bytes": 0,
         "tx_messages": 0, "rx_messages": 0, "tx_ring_used": null, "tx_ring_bytes": null,
         "rx_ring_used": null, "rx_ring_bytes": null,
         "promotions": 0, "demotions": 1, "peer_pid": 0, "opened_unix_ns": 0},
        {"fd": 7, "local": "127.0.0.1:6379", "peer": "127.0.0.2:40000", "tx_path": "shm", "rx_path": "shm",
         "reason": "none", "rule": null, "tx_tcp_bytes": 10, "tx_shm_bytes": 1000, "rx_tcp_bytes": 20, "rx_shm_bytes": 2000,
         "tx_rdma_bytes": 0, "rx_rdma_bytes": 0, "tx_utcp_bytes": 0, "rx_utcp_bytes": 0,
         "tx_messages": 11, "rx_messages": 22, "tx_ring_used": 512, "tx_ring_bytes": 65536,
         "rx_ring_used": null, "rx_ring_bytes": null,
         "promotions": 2, "demotions": 0, "peer_pid": 99, "opened_unix_ns": 0},
        {"fd": 8, "local": "-", "peer": "-", "tx_path": "rdma", "rx_path": "tcp",
         "reason": "rdma-lost", "rule": null, "tx_tcp_bytes": 0, "tx_shm_bytes": 0, "rx_tcp_bytes": 0, "rx_shm_bytes": 0,
         "tx_rdma_bytes": 3000, "rx_rdma_bytes": 4000, "tx_utcp_bytes": 0, "rx_utcp_bytes": 0,
         "tx_messages": 0, "rx_messages": 0, "tx_ring_used": null, "tx_ring_bytes": null,
         "rx_ring_used": null, "rx_ring_bytes": null,
         "promotions": 0, "demotions": 0, "peer_pid": 0, "opened_unix_ns": 0},
    ]});
    // Nothing was measured.
    for socket in expected["sockets"].as_array_mut().unwrap() {
        for times in ["answer", "serve"] {
            for what in ["count", "p50_ns", "p99_ns", "max_ns"] {
                socket[format!("{times}_{what}")] = Value::Null;
            }
        }
    }
    assert_eq!(sock, expected);

    let cfg = json_of("cfg");
    assert_eq!(cfg["pid"], json!(pid));
    assert_eq!(cfg["library_version"], json!("1.2.3"));
    assert_eq!(cfg["protocol_version"], json!(11));
    assert_eq!(cfg["config"]["NACC_LOG_PATH"], json!({"value": "/a b", "origin": "file"}));
    assert_eq!(
        cfg["config"]["NACC_SOR_IO_THREADS"],
        json!({"value": "2", "origin": "environment"})
    );
    assert_eq!(cfg["config"]["NACC_POLL_MS"], json!({"value": "", "origin": "default"}));

    let channels = json!([
        {"path": "shm", "peer": "-", "peer_pid": 99, "peer_library": null, "state": "open", "slots_used": 2, "slots_total": 256,
         "pairs": 0, "connections_total": 6, "arena_bytes": 65536},
        {"path": "rdma", "peer": "10.0.0.2", "peer_pid": 4711, "peer_library": "1.2.3", "state": "open", "slots_used": 1, "slots_total": 32,
         "pairs": 3, "connections_total": 5, "arena_bytes": 262144},
    ]);
    assert_eq!(json_of("qp"), json!({"pid": pid, "channels": channels}));
    assert_eq!(
        json_of("mem"),
        json!({"pid": pid, "channels": channels, "arena_bytes": 65536, "registered_bytes": 262144,
               "mappings": []})
    );

    let all = json_of("all");
    let keys: Vec<&String> = all.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["cnt", "sock", "cfg", "mem", "qp"]);
    assert_eq!(all["sock"], sock);
}

/// Bytes that the kernel moves past the library are not 0.
#[test]
fn what_is_not_counted_is_not_said() {
    let _alone = alone();
    let pid = std::process::id().to_string();
    let segment = Segment::filled(std::process::id());
    let at = CONNS_OFFSET + 2 * size_of::<ConnRecord>();
    segment.u64(at + offset_of!(ConnRecord, origin), UNCOUNTED);
    segment.u64(at + offset_of!(ConnRecord, tx_bytes), 77);
    segment.u64(at + offset_of!(ConnRecord, tx_bytes) + 8, 5);
    segment.u64(at + offset_of!(ConnRecord, tx_messages), 7);
    let said = |arguments: &[&str]| {
        let ran = ss(arguments);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
        ran.out
    };
    let sockets: Value = serde_json::from_str(&said(&["-s", "sock", "--json", &pid])).unwrap();
    for (socket, is_counted) in [(0, false), (1, true)] {
        let socket = &sockets["sockets"][socket];
        for name in ["tx_tcp_bytes", "rx_tcp_bytes", "tx_messages", "rx_messages"] {
            assert_eq!(socket[name].is_u64(), is_counted, "{name}: {socket}");
            assert_eq!(socket[name].is_null(), !is_counted, "{name}: {socket}");
        }
        assert!(socket["tx_shm_bytes"].is_u64(), "what went by a ring is: {socket}");
    }
    let row = |out: &str| -> Vec<String> {
        let row = out.lines().find(|row| row.contains("peer-remote")).unwrap();
        row.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row(&said(&["-s", "sock", &pid]))[5..], ["-", "-"]);
    let wide = row(&said(&["-s", "sock", "--wide", &pid]));
    assert_eq!(wide[8..18], ["-", "5", "0", "0", "-", "0", "0", "0", "-", "-"], "{wide:?}");
    // Nor is a rate of it.
    let out = said(&["-w", "0.1", "-n", "1", "-s", "sock", "--json", &pid]);
    let rates: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    let sockets = rates.pointer("/processes/0/sock").or(rates.pointer("/sock")).unwrap();
    for name in ["tx_bytes", "rx_bytes_per_s", "tx_messages_per_s"] {
        assert!(sockets[0][name].is_null(), "{name}: {sockets}");
        assert!(sockets[1][name].is_number(), "{name}: {sockets}");
    }
    assert_eq!(row(&said(&["-w", "0.1", "-n", "1", "-s", "sock", &pid]))[5..], ["-", "-"]);
}

#[test]
fn tables_say_the_same() {
    let _alone = alone();
    let pid = std::process::id().to_string();
    let segment = Segment::filled(std::process::id());
    segment.u64(offset_of!(Header, library), 0xb_0001_0002_0003);
    let text = |arguments: &[&str]| {
        let ran = ss(arguments);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
        ran.out
    };
    let cnt = text(&[&pid, "--wide"]);
    assert!(cnt.starts_with(&format!("Process {pid} (")), "{cnt}");
    assert!(cnt.contains("15 connections, 11 accelerated (73.3 %)"), "{cnt}");
    for both in [&cnt, &text(&["-s", "cfg", &pid])] {
        assert!(both.contains("\nLibrary 1.2.3, protocol 11\n"), "{both}");
    }
    assert!(
        cnt.contains(
            "peer-without-library     0      3  No process with the library has asked for this connection as its peer.\n"
        ),
        "{cnt}"
    );
    let words = |text: &str| -> Vec<String> {
        let rows = text.lines().map(|row| row.split_whitespace());
        rows.map(|row| row.collect::<Vec<_>>().join(" ")).collect()
    };
    assert!(words(&cnt).contains(&"rdma 1 5 3300 4400".to_owned()), "{cnt}");
    // The counters of the rdma path, and no others, stand in the last table.
    let (common, rdma) = cnt.split_once("\nRDMA counter").unwrap();
    for counter in Counter::ALL {
        let row = |text: &str| {
            words(text).iter().any(|row| row.split(' ').next() == Some(counter.name()))
        };
        assert_eq!((row(common), row(rdma)), (!counter.is_rdma(), counter.is_rdma()));
    }
    assert!(words(rdma).contains(&"rdma_pairs_created 3".to_owned()), "{cnt}");
    assert!(words(common).contains(&"fail_overs 2".to_owned()), "{cnt}");
    assert_eq!(cnt, text(&["-p", &pid, "-s", "cnt", "--wide"]));
    // In 80 columns: what is 0 is only counted.
    let short = text(&[&pid]);
    assert!(short.lines().all(|line| line.chars().count() <= 80), "{short}");
    assert!(
        short.contains("\nnone                     1      6  The connection is accelerated.\n"),
        "{short}"
    );
    assert!(short.contains("\nMessages: 111 sent, 22 received\n"), "{short}");
    let zero = Counter::ALL.len() - 11;
    assert!(
        short.ends_with(&format!("\n{zero} more counters are 0: --wide shows them\n")),
        "{short}"
    );
    let counters = short.split("\nMessages: ").nth(1).unwrap();
    assert!(words(counters).contains(&"rdma_pairs_created 3".to_owned()));
    assert!(!counters.contains(" 0\n"), "{counters}");
    let sock = text(&["-s", "sock", &pid]);
    for row in [
        "7 127.0.0.1:6379 127.0.0.2:40000 shm none 1010 B 2.0 KiB",
        "8 - - rdma/tcp rdma-lost 2.9 KiB 3.9 KiB",
    ] {
        assert!(words(&sock).contains(&row.to_owned()), "{sock}");
    }
    assert!(sock.lines().all(|line| line.chars().count() <= 80), "{sock}");
    let sock = text(&["-s", "sock", &pid, "--wide"]);
    for row in [
        "7 127.0.0.1:6379 127.0.0.2:40000 99 shm shm none - 10 1000 0 0 20 2000 0 0 11 22 512 B/64.0 KiB 2 0 - - - - - - -",
        "8 - - - rdma tcp rdma-lost - 0 0 3000 0 0 0 4000 0 0 0 - 0 0 - - - - - - -",
    ] {
        assert!(words(&sock).contains(&row.to_owned()), "{sock}");
    }
    let first = CONNS_OFFSET + offset_of!(ConnRecord, tx_path);
    segment.u32(first, 3);
    segment.u64(CONNS_OFFSET + offset_of!(ConnRecord, tx_bytes) + 24, 55);
    segment.u64(CONNS_OFFSET + offset_of!(ConnRecord, rx_bytes) + 24, 66);
    let sock = text(&["-s", "sock", &pid, "--wide"]);
    let utcp = "7 127.0.0.1:6379 127.0.0.2:40000 99 utcp shm none - 10 1000 0 55 20 2000 0 66 11 22 - 2 0 - - - - - - -";
    assert!(words(&sock).contains(&utcp.to_owned()), "{sock}");
    segment.u32(first, 1);
    for at in [offset_of!(ConnRecord, tx_bytes), offset_of!(ConnRecord, rx_bytes)] {
        segment.u64(CONNS_OFFSET + at + 24, 0);
    }
    assert!(text(&["-s", "cfg", &pid]).contains("NACC_LOG_PATH=\"/a b\" # file:2\n"));
    let qp = text(&["-s", "qp", &pid]);
    for row in ["shm - 99 open 2 256 0 6 64.0 KiB", "rdma 10.0.0.2 4711 open 1 32 3 5 256.0 KiB"] {
        assert!(words(&qp).contains(&row.to_owned()), "{qp}");
    }
    let mem = text(&["-s", "mem", &pid]);
    let sums =
        ": 0 B reserved within the host, 0 B touched, 0 B locked; 256.0 KiB registered for RDMA\n";
    assert!(mem.contains(sums), "{mem}");
    for row in ["shm - 99 open 64.0 KiB", "rdma 10.0.0.2 4711 open 256.0 KiB"] {
        assert!(words(&mem).contains(&row.to_owned()), "{mem}");
    }
    let all = text(&["-s", "all", &pid]);
    for what in ["cnt", "sock", "cfg", "mem", "qp"] {
        assert!(all.contains(&text(&["-s", what, &pid])));
    }
}

#[test]
fn broken_segments_are_reported_or_read_without_harm() {
    let _alone = alone();
    let id = std::process::id();
    let pid = id.to_string();
    let error = || {
        let ran = ss(&[&pid]);
        assert_eq!((ran.status, ran.out.as_str()), (Some(1), ""));
        ran.err
    };
    let segment = Segment::new(id);
    segment.u32(offset_of!(Header, version), 77);
    assert!(error().contains("layout version 77, this tool reads version 1"));
    segment.u32(offset_of!(Header, version), VERSION);
    segment.u64(0, 0);
    assert!(error().contains("not a statistics segment"));
    segment.u64(0, MAGIC);
    segment.0.set_len(100).unwrap();
    assert!(error().contains("cut short"));

    // Lengths beyond the end of the file, and terminal control sequences as text.
    let segment = Segment::filled(id);
    segment.u32(offset_of!(Header, conn_high_water), u32::MAX);
    segment.u32(offset_of!(Header, conn_capacity), u32::MAX);
    segment.config("NACC_LOG_PATH=\u{1b}[2J\n");
    segment.u32(offset_of!(Header, config_len), u32::MAX);
    let ran = ss(&["-s", "all", &pid]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert!(!ran.out.contains('\u{1b}'));
}

#[test]
fn the_newest_segment_counts() {
    let _alone = alone();
    let id = std::process::id();
    let old = Segment::new(id);
    old.u64(offset_of!(Header, started_unix_ns), 1);
    old.u64(offset_of!(Header, total_by_path), 5);
    let new = Segment::new(id);
    new.u64(offset_of!(Header, started_unix_ns), 2);
    new.u64(offset_of!(Header, total_by_path), 6);
    assert_eq!(json_of("cnt")["connections_total"], json!(6));
}

#[test]
fn who_only_reads_a_segment_is_not_taken_for_its_process() {
    let _alone = alone();
    let id = std::process::id();
    let segment = Segment::filled(id);
    let reader = File::open(format!("/proc/self/fd/{}", segment.0.as_raw_fd())).unwrap();
    let mut looks = Looks::default();
    let mut is_found = || looks.all().0.iter().any(|found| found.pid == id);
    assert!(is_found());
    // Its number leads to the reader, too.
    let mut place = std::os::fd::OwnedFd::from(segment.0);
    rustix::io::dup2(&reader, &mut place).unwrap();
    assert!(!is_found());
    assert!(ss(&[&id.to_string()]).err.contains("is not loaded"));
}

#[test]
fn no_more_than_some_segments_of_others_are_looked_at() {
    let _alone = alone();
    let id = std::process::id();
    let is_found = || Looks::default().all().0.iter().any(|found| found.pid == id);
    // (A descriptor with a lower number is looked at before one with a higher one.)
    let low = Segment::filled(id);
    let _own = rustix::io::fcntl_dupfd_cloexec(&low.0, 900).unwrap();
    drop(low);
    let others = Segment::filled(id + 1);
    let mut many: Vec<_> = (0..62).map(|_| others.0.try_clone().unwrap()).collect();
    assert!(is_found());
    many.push(others.0.try_clone().unwrap());
    assert!(!is_found());
}

#[test]
fn a_segment_may_move_between_two_looks() {
    let _alone = alone();
    let id = std::process::id();
    let segment_in = |looks: &mut Looks| {
        let found = looks.all().0.into_iter().find(|found| found.pid == id);
        found.map(|found| found.process.map(|process| process.known.at).ok())
    };
    // (A program without the library is not asked at each look; seen once, it may have only begun.)
    let mut early = Looks::default();
    assert_eq!(segment_in(&mut early), None);
    let segment = Segment::filled(id);
    assert!(segment_in(&mut early).is_some());
    let mut looks = Looks::default();
    let mut look = || segment_in(&mut looks);
    let first = look().unwrap().unwrap();
    assert_eq!(look(), Some(Some(first)));
    // Something else gets the number.
    let moved = segment.0.try_clone().unwrap();
    drop(segment);
    let _other = File::open("/dev/null").unwrap();
    let second = look().unwrap().unwrap();
    assert_ne!(first, second);
    // And so does another process's segment.
    let strangers = Segment::filled(id + 1);
    let mut moved = std::os::fd::OwnedFd::from(moved);
    rustix::io::dup2(&strangers.0, &mut moved).unwrap();
    assert_eq!(look(), None);
}

#[test]
fn why_there_is_nothing_to_show() {
    let _alone = alone();
    let ours = std::process::id();
    let error = |pid: u32| {
        let ran = ss(&[&pid.to_string()]);
        assert_eq!((ran.status, ran.out.as_str()), (Some(1), ""));
        ran.err
    };
    assert_eq!(error(4_194_305), "netacc_ss: 4194305: no such process\n");
    assert_eq!(
        error(ours),
        format!(
            "netacc_ss: {ours}: libnetacc-preload.so is not loaded: start the program with netacc_run\n"
        )
    );

    let scratch = Scratch::new();
    let library = scratch.library();
    let mut child = Command::new("sleep").arg("60").env("LD_PRELOAD", &library).spawn().unwrap();
    let pid = child.id();
    let loaded = || {
        error(pid).contains("is loaded, but the process has made or accepted no TCP connection yet")
    };
    // The child may not have reached its dynamic loader.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !loaded() {
        assert!(std::time::Instant::now() < deadline, "{}", error(pid));
        std::thread::yield_now();
    }
    child.kill().unwrap();
    let ended = || error(pid).contains("the process has ended");
    while !ended() {
        assert!(std::time::Instant::now() < deadline, "{}", error(pid));
        std::thread::yield_now();
    }
    child.wait().unwrap();
}

#[test]
fn processes_of_other_users() {
    use std::os::unix::process::CommandExt;
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        support::skip("needs root to become somebody else");
        return;
    }
    let _segment = Segment::filled(std::process::id());
    let scratch = Scratch::new();
    let tool = scratch.path("netacc_ss");
    std::fs::copy(env!("CARGO_BIN_EXE_netacc_ss"), &tool).unwrap();
    let mut command = Command::new(&tool);
    let ran = run(command.arg(std::process::id().to_string()).uid(65534).gid(65534));
    assert_eq!(ran.status, Some(1));
    assert!(ran.err.contains(": not permitted: "), "{}", ran.err);
}

#[test]
fn several_sections_at_once() {
    let _alone = alone();
    let pid = std::process::id().to_string();
    let _segment = Segment::filled(std::process::id());
    // NetACC's own example.
    let ran = ss(&["-p", &pid, "-s", "mem,cnt"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    let one = |what| ss(&["-p", &pid, "-s", what]).out;
    assert_eq!(ran.out, format!("{}\n{}", one("mem"), one("cnt")));
    let both = ss(&[&pid, "-s", "cnt", "-s", "sock"]).out;
    assert_eq!(both, format!("{}\n{}", one("cnt"), one("sock")));
    let parts = json_of("mem,cnt");
    assert_eq!(parts, json!({"mem": json_of("mem"), "cnt": json_of("cnt")}));
    assert_eq!(json_of("all,cnt"), json_of("all"));
}

#[test]
fn several_processes_and_names() {
    let _alone = alone();
    let id = std::process::id();
    let pid = id.to_string();
    let _segment = Segment::filled(id);
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let name = name.trim_end();
    let list = |arguments: &[&str]| -> Value {
        let ran = ss(arguments);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{arguments:?}");
        serde_json::from_str(&ran.out).unwrap()
    };
    let alone = json_of("cnt");
    // A name is answered by a list; so are several words, each process once. (Other runs of this
    // program may be there.)
    let named = list(&[name, "--json"]);
    assert!(named.as_array().unwrap().contains(&alone), "{named}");
    assert_eq!(list(&["-p", &format!("{pid},{pid}"), "--json"]), json!([alone]));
    assert_eq!(list(&[&pid, &pid, "--json"]), json!([alone]));
    // What can't be read is said; the others are shown.
    let ran = ss(&[&pid, "4194305"]);
    assert_eq!(ran.status, Some(1));
    assert_eq!(ran.err, "netacc_ss: 4194305: no such process\n");
    assert_eq!(ran.out, ss(&[&pid]).out);
    let ran = ss(&["no-such-program"]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(1), ""));
    assert!(
        ran.err.starts_with("netacc_ss: no-such-program: no process of this name"),
        "{}",
        ran.err
    );
}

#[test]
fn without_a_process_it_shows_which_there_are() {
    let _alone = alone();
    let id = std::process::id();
    let segment = Segment::filled(id);
    segment.u64(offset_of!(Header, library), 0x1_0002_0003);
    segment.u64(offset_of!(Header, open_by_path) + 24, 4);
    let netacc =
        |arguments: &[&str]| run(Command::new(env!("CARGO_BIN_EXE_netacc")).args(arguments));
    let table = ss(&[]);
    assert_eq!(table.status, Some(0));
    let mut rows = table.out.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&id.to_string().as_str())).unwrap();
    assert_eq!(row[3], "1.2.3");
    assert_eq!(row[5..], ["1", "2", "1", "4", "15", "73.3", "%"]);
    let all: Value = serde_json::from_str(&netacc(&["ps", "--json"]).out).unwrap();
    let ours = all.as_array().unwrap().iter().find(|row| row["pid"] == json!(id)).unwrap();
    assert_eq!(ours["uid"], json!(rustix::process::getuid().as_raw()));
    assert_eq!(ours["library_version"], json!("1.2.3"));
    assert_eq!(ours["protocol_version"], json!(null), "an older library");
    assert_eq!(ours["library_replaced"], json!(false));
    assert_eq!(ours["connections_total"], json!(15));
    assert_eq!(ours["open"], json!({"tcp": 1, "shm": 2, "rdma": 1, "utcp": 4}));
    assert!(ours["uptime_s"].as_u64().unwrap() < 3600);

    // One that can't be read is no reason to hide it.
    segment.u32(offset_of!(Header, version), 77);
    assert!(ss(&[]).out.contains(&format!("{id}: the statistics have layout version 77")));
    let all: Value = serde_json::from_str(&ss(&["--json"]).out).unwrap();
    let ours = all.as_array().unwrap().iter().find(|row| row["pid"] == json!(id)).unwrap();
    assert!(ours["problem"].as_str().unwrap().contains("layout version 77"));
}

#[test]
fn a_name_may_be_any_bytes() {
    let _alone = alone();
    let id = std::process::id();
    let _segment = Segment::filled(id);
    let comm = "/proc/self/comm";
    let before = std::fs::read(comm).unwrap();
    std::fs::write(comm, b"\xff\nb").unwrap();
    let (all, one) = (ss(&[]), ss(&[&id.to_string()]));
    std::fs::write(comm, before.trim_ascii_end()).unwrap();
    let row = all.out.lines().find(|line| line.contains(&id.to_string())).unwrap_or_default();
    assert!(row.contains(" \u{fffd}?b "), "{}", all.out);
    assert!(
        one.out.starts_with(&format!("Process {id} (\u{fffd}?b): ")),
        "{} {}",
        one.out,
        one.err
    );
}

#[test]
fn a_library_that_was_replaced_is_named() {
    let _alone = alone();
    let scratch = Scratch::new();
    let library = scratch.library();
    // A child that has the library, and a segment of ours among its descriptors.
    let segment = Segment::filled(0);
    rustix::io::fcntl_setfd(&segment.0, rustix::io::FdFlags::empty()).unwrap();
    let mut child = Command::new("sleep").arg("60").env("LD_PRELOAD", &library).spawn().unwrap();
    segment.u32(offset_of!(Header, pid), child.id());
    let shown = |what: &str| {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let out = ss(&[]).out;
            if out.contains(what) || std::time::Instant::now() > deadline {
                break out;
            }
            std::thread::yield_now();
        }
    };
    let row = format!("{}  sleep ", child.id());
    let out = shown(&row);
    let note = format!("{}: its library has been replaced", child.id());
    assert!(out.contains(&row) && !out.contains(&note), "{out}");
    std::fs::rename(scratch.write("new", "another one"), &library).unwrap();
    let out = shown(&note);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(out.contains(&note), "{out}");
}

/// Wherever its file lies, which nobody has touched; and whatever newer ones there are.
#[test]
fn a_library_that_is_older_than_the_tools_is_named() {
    let _alone = alone();
    let id = std::process::id();
    let segment = Segment::filled(id);
    let [major, minor, patch] = [
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ]
    .map(|number| number.parse::<u64>().unwrap());
    let own = major << 32 | minor << 16 | patch;
    // (The version of the protocol, above it, does not count.)
    let protocol = 0xb_u64 << 48;
    for (version, is_older) in
        [(own - 1, true), (0, true), (own, false), (own + 1, false), (1 << 40, false)]
    {
        let packed = if version == 0 { 0 } else { version | protocol };
        segment.u64(offset_of!(Header, library), packed);
        let note =
            format!("{id}: its library is older than these tools ({}):", env!("CARGO_PKG_VERSION"));
        let out = ss(&[]).out;
        assert_eq!(out.contains(&note), is_older, "{version:x}: {out}");
        let all: Value = serde_json::from_str(&ss(&["--json"]).out).unwrap();
        let ours = all.as_array().unwrap().iter().find(|row| row["pid"] == json!(id)).unwrap();
        let said = [&ours["library_older"], &ours["library_replaced"]];
        assert_eq!(said, [&json!(is_older), &json!(false)], "{version:x}");
    }
}

#[test]
fn an_argument_moves_no_cursor() {
    let ran = ss(&["x\u{1b}[2J\ny"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.err.starts_with("netacc_ss: x?[2J?y: no process of this name"), "{:?}", ran.err);
}

#[test]
fn usage() {
    for arguments in [&["0"][..], &["-s", "x", "1"], &["-s", "cnt,x", "1"], &["--what", "1"]] {
        let ran = ss(arguments);
        assert_eq!(ran.status, Some(2), "{arguments:?}");
        assert!(ran.err.starts_with("netacc_ss: "), "{}", ran.err);
    }
    assert!(ss(&["-h"]).out.starts_with("Usage: netacc_ss [OPTIONS] [[-p] <pid|name>...]"));
    assert!(ss(&["-v"]).out.starts_with("netacc_ss 0."));
}

/// The descriptors that are shown, in order.
fn shown(arguments: &[&str]) -> Vec<u64> {
    let pid = std::process::id().to_string();
    let ran = ss(&[&["--json", &pid], arguments].concat());
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    let sockets = told["sockets"].as_array().unwrap_or_else(|| panic!("{told:#}"));
    sockets.iter().map(|socket| socket["fd"].as_u64().unwrap()).collect()
}

#[test]
fn connections_are_selected_and_ordered() {
    let _alone = alone();
    let segment = Segment::filled(std::process::id());
    for (index, opened) in [(0, 3), (1, 1), (2, 2)] {
        let at = CONNS_OFFSET + index * size_of::<ConnRecord>();
        segment.u64(at + offset_of!(ConnRecord, opened_unix_ns), opened);
    }
    for (arguments, fds) in [
        (&["-s", "sock"][..], &[5, 7, 8][..]),
        (&["--port", "6379"], &[7]),
        (&["--port", "40000,1"], &[7]),
        (&["--port", "1"], &[]),
        (&["--peer", "127.0.0.0/8"], &[7]),
        (&["--peer", "2001:db8::", "--peer", "127.0.0.2"], &[5, 7]),
        (&["--path", "shm"], &[7]),
        (&["--path", "rdma,shm"], &[7, 8]),
        (&["--path", "tcp"], &[5, 8]),
        (&["--reason", "none"], &[7]),
        (&["--reason", "rdma-lost,peer-remote"], &[5, 8]),
        (&["--reason", "none", "--path", "tcp"], &[]),
        (&["--sort", "sent"], &[8, 7, 5]),
        (&["--sort", "received", "--path", "shm,rdma"], &[8, 7]),
        (&["--sort", "age"], &[8, 5, 7]),
        (&["--sort", "messages"], &[7, 5, 8]),
        // Nothing was measured.
        (&["--sort", "answer-p50"], &[5, 7, 8]),
        (&["--sort", "answer-p99"], &[5, 7, 8]),
        (&["--sort", "serve-p99"], &[5, 7, 8]),
        (&["--sort", "path"], &[5, 7, 8]),
        (&["--sort", "peer"], &[8, 7, 5]),
        (&["--sort", "reason"], &[7, 5, 8]),
    ] {
        assert_eq!(shown(arguments), fds, "{arguments:?}");
    }
    let pid = std::process::id().to_string();
    let ran = ss(&[&pid, "--path", "shm"]);
    assert!(ran.out.contains(": 1 of 3 open connections\n"), "{}", ran.out);
    // The counts are those of all.
    let ran = ss(&[&pid, "--path", "shm", "-s", "cnt"]);
    assert!(ran.out.contains("15 connections, 11 accelerated"), "{}", ran.out);
    for (wrong, valid) in [
        (["--path", "air"], "shm"),
        (["--reason", "bad-luck"], "peer-remote"),
        (["--sort", "colour"], "received, messages, answer-p50, answer-p99, serve-p99, age"),
        (["--port", "0"], "65535"),
        (["--peer", "10.0.0.0/33"], "0 to 32"),
        (["-w", "0"], "0.1 to 86400"),
        (["-n", "3"], "-w"),
    ] {
        let ran = ss(&[&[pid.as_str()], &wrong[..]].concat());
        assert_eq!((ran.status, ran.out.as_str()), (Some(2), ""), "{wrong:?}");
        assert!(ran.err.contains(valid), "{}", ran.err);
    }
}

#[test]
fn ten_thousand_connections_are_shown_in_full() {
    let _alone = alone();
    let segment = Segment::new(std::process::id());
    const ALL: u32 = 10_000;
    let mut records = vec![0; ALL as usize * size_of::<ConnRecord>()];
    for (fd, record) in (3..).zip(records.chunks_exact_mut(size_of::<ConnRecord>())) {
        let mut put = |at: usize, n: u32| record[at..at + 4].copy_from_slice(&n.to_ne_bytes());
        put(offset_of!(ConnRecord, fd), fd);
        put(offset_of!(ConnRecord, state), 1);
        put(offset_of!(ConnRecord, tx_messages), fd);
        put(offset_of!(ConnRecord, family), 2);
        put(offset_of!(ConnRecord, local_port), 6379);
        put(offset_of!(ConnRecord, peer_port), fd);
    }
    segment.0.write_all_at(&records, CONNS_OFFSET as u64).unwrap();
    segment.u32(offset_of!(Header, conn_high_water), ALL);
    let pid = std::process::id().to_string();
    let ran = ss(&[&pid, "-s", "sock", "--wide", "--json"]);
    let all: Value = serde_json::from_str(&ran.out).unwrap();
    let sockets = all["sockets"].as_array().unwrap();
    assert_eq!(sockets.len(), ALL as usize);
    for (fd, socket) in (3..).zip(sockets) {
        assert_eq!((&socket["fd"], &socket["tx_messages"]), (&json!(fd), &json!(fd)));
        assert_eq!(socket["peer"], json!(format!("0.0.0.0:{fd}")));
        assert_eq!(socket["answer_p99_ns"], Value::Null);
    }
    // As an object of several sections it is the same, and in the order of `-s`.
    let both: Value = serde_json::from_str(&ss(&[&pid, "-s", "sock,cnt", "--json"]).out).unwrap();
    assert_eq!(both["sock"], all);
    let keys: Vec<&String> = both.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["sock", "cnt"]);
}

/// Watches this process: the objects of its turns. It is ended with them.
struct Watched(Child, Lines<BufReader<ChildStdout>>);

impl Watched {
    fn new(sections: &str) -> Watched {
        let mut child = Command::new(env!("CARGO_BIN_EXE_netacc_ss"))
            .args(["--json", "-w", "0.1", "--sort", "sent", "-s", sections])
            .arg(std::process::id().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Watched(child, lines)
    }

    fn turn(&mut self) -> Value {
        serde_json::from_str(&self.1.next().unwrap().unwrap()).unwrap()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn what_has_changed_is_shown_and_how_fast() {
    let _alone = alone();
    let segment = Segment::filled(std::process::id());
    let mut watched = Watched::new("cnt,sock");
    let still = watched.turn();
    assert_eq!(still["pid"], json!(std::process::id()));
    assert_eq!(still["cnt"]["new_connections"], json!(0));
    assert_eq!(still["cnt"]["counters"], json!({}));
    segment.u64(offset_of!(Header, counters) + 8 * Counter::Wakeups as usize, 50);
    segment.u64(offset_of!(Header, total_by_path) + 8, 26);
    segment.u64(CONNS_OFFSET + offset_of!(ConnRecord, tx_bytes) + 8, 1000 + 5000);
    segment.u64(offset_of!(Header, reasons) + 8 * Reason::PeerWithoutLibrary as usize, 2);
    // (A turn may have come in between; each change is in one turn alone.)
    let mut left = vec!["new", "wakeups", "counted", "bytes", "reason"];
    while !left.is_empty() {
        let turn = watched.turn();
        let cnt = &turn["cnt"];
        let mut seen = |what: &str| left.retain(|other| *other != what);
        if cnt["new_connections"] != 0 {
            assert_eq!(cnt["new_connections"], json!(20));
            assert_eq!(cnt["new"], json!({"tcp": 0, "shm": 20, "rdma": 0, "utcp": 0}));
            seen("new");
        }
        let counters = cnt["counters"].as_object().unwrap();
        for (name, change) in counters {
            // Of an open connection, too.
            let changes = [("wakeups", "wakeups", 50), ("shm_bytes_tx", "counted", 5000)];
            let (_, what, by) = changes.into_iter().find(|(of, ..)| of == name).unwrap();
            assert_eq!(*change, json!(by), "{name}");
            seen(what);
        }
        if cnt["reasons"] != json!({}) {
            assert_eq!(cnt["reasons"], json!({"peer-without-library": -1}));
            seen("reason");
        }
        if cnt["tx_bytes"]["shm"] != 0 {
            assert_eq!(cnt["tx_bytes"], json!({"tcp": 0, "shm": 5000, "rdma": 0, "utcp": 0}));
            let seconds = turn["seconds"].as_f64().unwrap();
            let rate = cnt["tx_bytes_per_s"]["shm"].as_f64().unwrap();
            assert!((rate * seconds - 5000.0).abs() < 1.0, "{rate} in {seconds} s");
            // The busiest of this time comes first, not the busiest ever.
            let first = &turn["sock"][0];
            assert_eq!((&first["fd"], &first["tx_bytes"]), (&json!(7), &json!(5000)));
            seen("bytes");
        }
    }
}

#[test]
fn a_process_that_has_got_the_number_of_another_is_not_compared_with_it() {
    let _alone = alone();
    let segment = Segment::filled(std::process::id());
    let mut watched = Watched::new("cnt");
    assert_eq!(watched.turn()["cnt"]["new_connections"], json!(0));
    // At once: when it was made, and how many connections it has had.
    let mut bytes = vec![0; CONNS_OFFSET];
    segment.0.read_exact_at(&mut bytes, 0).unwrap();
    for (at, value) in
        [(offset_of!(Header, started_unix_ns), 77u64), (offset_of!(Header, total_by_path), 1000)]
    {
        bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    segment.0.write_all_at(&bytes, 0).unwrap();
    // The first two may have begun before that.
    for _ in 0..3 {
        assert_eq!(watched.turn()["cnt"]["new_connections"], json!(0));
    }
}

#[test]
fn watching_has_80_columns_and_an_end() {
    let _alone = alone();
    let _segment = Segment::filled(std::process::id());
    let pid = std::process::id().to_string();
    let ran = ss(&["-w", "0.1", "-n", "2", "-s", "cnt,sock,qp", &pid]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert_eq!(ran.out.matches(" 3 of 3 open connections").count(), 2, "{}", ran.out);
    assert!(ran.out.lines().all(|line| line.chars().count() <= 80), "{}", ran.out);
    let all = ss(&["-w", "0.1", "-n", "1"]);
    assert!(all.out.contains(&pid) && all.out.contains("New/s"), "{}", all.out);
    let ps = |arguments: &[&str]| {
        run(Command::new(env!("CARGO_BIN_EXE_netacc")).arg("ps").args(arguments))
    };
    let all = ps(&["-w", "0.1", "-n", "1"]);
    assert!(
        all.status == Some(0) && all.out.contains(&pid) && all.out.contains("New/s"),
        "{}",
        all.out
    );
    let lines = ps(&["-w", "0.1", "-n", "2", "--json"]).out;
    let own = |line: &&str| line.starts_with(&format!("{{\"pid\":{pid},"));
    assert_eq!(lines.lines().filter(own).count(), 2, "{lines}");
    assert_eq!(ps(&["-n", "1"]).status, Some(2));
    assert_eq!(ss(&["-w", "0.1", "-n", "1", "no-such-process"]).status, Some(1));
}

/// What a forked child takes back to TCP is not in its parent's counts.
#[test]
fn what_is_left_accelerated_is_what_the_connections_say() {
    let _alone = alone();
    let pid = std::process::id();
    let segment = Segment::filled(pid);
    let exhausted = offset_of!(Header, counters) + 8 * Counter::RecordsExhausted as usize;
    segment.u64(exhausted, 0);
    let left = || {
        let left = netacc_tools::live::await_tcp(pid, std::time::Duration::ZERO);
        left.map(|left| (left.accelerated, left.is_all))
    };
    // (By the counts there are three.)
    assert_eq!(left(), Some((2, true)));
    let tx_path = CONNS_OFFSET + offset_of!(ConnRecord, tx_path);
    segment.u32(tx_path, 0);
    segment.u32(tx_path + size_of::<ConnRecord>(), 0);
    assert_eq!(left(), Some((1, true)));
    segment.u32(CONNS_OFFSET + offset_of!(ConnRecord, rx_path), 0);
    assert_eq!(left(), Some((0, true)));
    segment.u64(exhausted, 1);
    assert_eq!(left(), Some((0, false)), "one that had no record is not seen");
}

#[test]
fn garbage_is_counted_and_shown_as_it_is() {
    let _alone = alone();
    let segment = Segment::filled(std::process::id());
    for seed in 1..20 {
        segment.0.write_all_at(&garbage(seed)[16..], 16).unwrap();
        segment.u32(offset_of!(Header, pid), std::process::id());
        for arguments in [&["metrics"][..], &["ps"], &["ps", "--json"]] {
            let ran = run(Command::new(env!("CARGO_BIN_EXE_netacc")).args(arguments));
            assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{arguments:?} {seed}");
            assert!(ran.out.contains(&std::process::id().to_string()), "{arguments:?} {seed}");
        }
        let ran = ss(&["-s", "all", "--wide", &std::process::id().to_string()]);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{seed}");
        let unprintable = |c: char| c.is_control() && c != '\n';
        assert!(!ran.out.contains(unprintable), "{seed}");
    }
}

fn garbage(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = vec![0u8; CONNS_OFFSET + 64 * size_of::<ConnRecord>()];
    for word in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_ne_bytes());
    }
    bytes
}

/// What `netacc doctor` says of this process.
fn doctor() -> (Value, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netacc"));
    let ran = run(command.args(["doctor", "--json", &std::process::id().to_string()]));
    assert_eq!(ran.err, "");
    (serde_json::from_str(&ran.out).unwrap(), ran.status)
}

#[test]
fn the_doctor_says_each_reason_with_its_remedy() {
    let _alone = alone();
    let segment = Segment::filled(std::process::id());
    segment.u64(offset_of!(Header, counters) + 8 * Counter::PeerCorrupt as usize, 1);
    segment.u64(offset_of!(Header, library), LIBRARY);
    let (told, status) = doctor();
    assert_eq!(status, Some(1), "{told:#}");
    let all = told["findings"].as_array().unwrap();
    let of = |text: &str| {
        let found = all.iter().find(|f| f["found"].as_str().unwrap().contains(text));
        let found = found.unwrap_or_else(|| panic!("{text}: {told:#}"));
        (found["level"].clone(), found)
    };
    for (reason, level) in [
        (Reason::RdmaLost, "problem"),
        (Reason::PeerRemote, "problem"),
        // Of connections that are over.
        (Reason::PeerWithoutLibrary, "note"),
    ] {
        let text = format!("{}: ", reason.name());
        let (is, found) = of(&text);
        assert_eq!(is, level);
        // Beside what is said of all, the command for this process.
        assert_eq!(found["remedy"], reason.remedy());
        assert!(!found["command"].as_str().unwrap().is_empty(), "{found}");
        assert!(of(reason.explanation()).0 == level);
    }
    assert_eq!(
        of("process 4711 at 10.0.0.2, to which it has connections, has version 1.2.3").0,
        "note"
    );
    assert_eq!(of("unknown-60").0, "note");
    assert_eq!(of("peer_corrupt is 1").0, "note");
    assert_eq!(of("11 accelerated (73.3 %)").0, "ok");
}

#[test]
fn the_doctor_is_not_misled_by_garbage() {
    let _alone = alone();
    let segment = Segment::filled(std::process::id());
    segment.u32(offset_of!(Header, version), VERSION + 1);
    let (told, status) = doctor();
    assert_eq!(status, Some(1));
    let found = told["findings"][0]["found"].as_str().unwrap();
    assert!(found.contains("layout version"), "{found}");
    segment.u32(offset_of!(Header, version), VERSION);
    // Everything behind the two words that say what it is.
    for seed in 1..20 {
        segment.0.write_all_at(&garbage(seed)[16..], 16).unwrap();
        let (_, status) = doctor();
        assert!(matches!(status, Some(0 | 1)), "{status:?}");
    }
}
