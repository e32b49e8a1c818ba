//! `netacc metrics`: its text is what Prometheus takes, and only who may is answered.

mod support;

use netacc_control::stats::{
    CONNS_OFFSET, ConnRecord, Counter, Header, MAGIC, MEMFD_NAME, Path, Reason, VERSION,
};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::{offset_of, size_of};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Scratch, run};

/// A segment of this process, which then has the library, as it seems.
fn segment() -> File {
    let file = File::from(memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC).unwrap());
    file.set_len(CONNS_OFFSET as u64).unwrap();
    let word = |at: usize, value: u64| file.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
    word(offset_of!(Header, magic), MAGIC);
    let both = u64::from(VERSION) | u64::from(std::process::id()) << 32;
    word(offset_of!(Header, version), both);
    word(offset_of!(Header, open_by_path) + 8, 7);
    word(offset_of!(Header, total_by_path) + 8, 9);
    word(offset_of!(Header, open_by_path) + 24, 5);
    word(offset_of!(Header, counters) + 8 * Counter::UtcpBytesTx as usize, 777);
    word(offset_of!(Header, reasons) + 8 * Reason::PeerRemote as usize, 3);
    word(offset_of!(Header, counters) + 8 * Counter::Accepted as usize, 9);
    word(offset_of!(Header, counters) + 8 * Counter::ShmBytesTx as usize, 4096);
    file
}

fn metrics() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netacc"));
    command.arg("metrics");
    command
}

/// The value of the first series whose name and labels have all of these words.
fn value(text: &str, words: &[&str]) -> Option<f64> {
    let own = format!("pid=\"{}\"", std::process::id());
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && line.contains(&own));
    lines.find(|line| words.iter().all(|w| line.contains(w)))?.rsplit(' ').next()?.parse().ok()
}

fn is_complete(text: &str) {
    assert_eq!(value(text, &["netacc_connections{", "path=\"shm\""]), Some(7.0), "{text}");
    assert_eq!(value(text, &["netacc_connections{", "path=\"utcp\""]), Some(5.0));
    assert_eq!(value(text, &["netacc_sent_bytes_total{", "path=\"utcp\""]), Some(777.0));
    assert_eq!(value(text, &["netacc_connections_seen{"]), Some(9.0));
    assert_eq!(value(text, &["netacc_connections_by_reason{", "\"peer-remote\""]), Some(3.0));
    assert_eq!(value(text, &["netacc_accepted_total{"]), Some(9.0));
    assert_eq!(value(text, &["netacc_sent_bytes_total{", "path=\"shm\""]), Some(4096.0));
    assert_eq!(value(text, &["netacc_process_info{", "library=\"\""]), Some(1.0));
    for counter in Counter::ALL.iter().filter(|c| !c.name().contains("_bytes_")) {
        let name = format!("netacc_{}_total{{", counter.name());
        assert!(value(text, &[&name]).is_some(), "{name}: {text}");
    }
}

/// What Debian's prometheus says of it, where it is there.
fn checked_by_promtool(arguments: &[&str], input: &str) {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus");
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = command.stderr(Stdio::piped()).spawn() else {
        support::skip("no promtool");
        return;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    assert!(output.stderr.is_empty() || arguments[0] == "test", "{arguments:?}: {output:?}");
}

#[test]
fn prometheus_takes_the_text_and_the_rules() {
    let _segment = segment();
    let ran = run(&mut metrics());
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.ends_with("# EOF\n"), "{}", ran.out);
    is_complete(&ran.out);

    let scratch = Scratch::new();
    let file = scratch.path("netacc.prom");
    let ran = run(metrics().arg("--textfile").arg(&file));
    assert_eq!((ran.status, ran.out.as_str(), ran.err.as_str()), (Some(0), "", ""));
    let text = fs::read_to_string(&file).unwrap();
    is_complete(&text);
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    // It has every user's processes: it is for its owner and the group of its folder.
    let is = fs::metadata(&file).unwrap();
    assert_eq!(is.mode() & 0o7, 0, "{:o}", is.mode());
    assert_eq!(is.gid(), fs::metadata(file.parent().unwrap()).unwrap().gid());
    // Which group reads it may be said once.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, None, Some(4711)).unwrap();
        assert_eq!(run(metrics().arg("--textfile").arg(&file)).status, Some(0));
        let is = fs::metadata(&file).unwrap();
        assert_eq!((is.mode() & 0o777, is.gid()), (0o640, 4711));
    }
    checked_by_promtool(&["check", "metrics"], &text);
    checked_by_promtool(&["check", "rules", "netacc.rules.yml"], "");
    checked_by_promtool(&["test", "rules", "netacc.rules.test.yml"], "");
}

/// What stands behind that word in one of the files of rules.
fn named(text: &str, word: &str) -> BTreeSet<String> {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("- "));
    lines.filter_map(|line| line.strip_prefix(word)).map(|name| name.trim().to_owned()).collect()
}

#[test]
fn every_alert_is_tested() {
    let rules = include_str!("../../../packaging/prometheus/netacc.rules.yml");
    let tests = include_str!("../../../packaging/prometheus/netacc.rules.test.yml");
    let alerts = named(rules, "alert:");
    assert!(alerts.len() >= 7, "{alerts:?}");
    assert_eq!(alerts, named(tests, "alertname:"));
    for alert in alerts {
        let mut blocks = tests.split("alertname: ").filter(|block| block.starts_with(&alert));
        assert!(blocks.any(|block| block.contains("exp_labels")), "{alert} never fires");
    }
}

#[test]
fn the_page_has_each_path() {
    let [js, html, css] = [
        include_str!("../src/commands/metrics/page.js"),
        include_str!("../src/commands/metrics/page.html"),
        include_str!("../src/commands/metrics/page.css"),
    ];
    let all: Vec<_> = Path::ALL.iter().map(|path| format!("\"{}\"", path.name())).collect();
    assert!(js.contains(&format!("PATHS = [{}]", all.join(", "))), "{all:?}");
    let cells: Vec<_> = Path::ALL.iter().map(|path| format!("<th>{}</th>", path.name())).collect();
    assert!(html.contains(&cells.concat()), "{cells:?}");
    for path in Path::ALL {
        assert!(css.contains(&format!(".{} {{ stroke:", path.name())), "{path:?}");
    }
}

#[test]
fn rules_and_dashboard_name_metrics_that_are_there() {
    let _segment = segment();
    let text = run(&mut metrics()).out;
    let code = include_str!("../src/metrics.rs");
    let packaging = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
    for file in ["prometheus/netacc.rules.yml", "grafana/netacc.json"] {
        let said = fs::read_to_string(format!("{packaging}/{file}")).unwrap();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut names: Vec<&str> = said.split(|c| !is_word(c)).collect();
        names.retain(|name| name.starts_with("netacc_"));
        assert!(names.len() > 5, "{file}");
        for name in names {
            let family = name.strip_suffix("_total").unwrap_or(name);
            // Those of memory are not there without mappings, which this process has none of.
            let is_there = match family.strip_prefix("netacc_memory_") {
                Some(word) => {
                    code.contains(&format!("\"memory_{}\"", word.trim_end_matches("_bytes")))
                }
                None => text.contains(&format!("# TYPE {family} ")),
            };
            assert!(is_there, "{file}: {name}");
        }
    }
    serde_json::from_str::<serde_json::Value>(
        &fs::read_to_string(format!("{packaging}/grafana/netacc.json")).unwrap(),
    )
    .unwrap();
}

struct Server(Child, String);

impl Server {
    fn new(arguments: &[&str]) -> Server {
        Server::of(&mut metrics(), arguments)
    }

    fn of(command: &mut Command, arguments: &[&str]) -> Server {
        let command = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let place = line.trim().strip_prefix("netacc metrics: ").unwrap().to_owned();
        Server(child, place)
    }

    fn address(&self) -> &str {
        self.1.trim_start_matches("http://").trim_end_matches('/')
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).unwrap()
    }

    fn get(&self, path: &str, headers: &str) -> String {
        asked(self.connect(), &format!("GET {path} HTTP/1.1\r\n{headers}\r\n"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn asked(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn it_is_served_on_loopback() {
    let _segment = segment();
    let server = Server::new(&["--listen", "127.0.0.1:0"]);
    let open = server.get("/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n");
    assert!(open.starts_with("HTTP/1.1 200 OK\r\n"), "{open}");
    assert!(open.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0"));
    assert!(open.ends_with("# EOF\n"));
    is_complete(&open);
    let text = server.get("/metrics", "Host: localhost:1\r\n");
    assert!(text.contains("\r\nContent-Type: text/plain; version=0.0.4"), "{text}");
    is_complete(&text);
    let page = server.get("/", "");
    assert!(page.contains("<title>netacc</title>"), "{page}");
    // Nothing from elsewhere, and no script but its own file.
    for part in [&page, &server.get("/page.js", ""), &server.get("/page.css", "")] {
        assert!(part.starts_with("HTTP/1.1 200 OK\r\n"), "{part}");
        assert!(part.contains("Content-Security-Policy: default-src 'self'"), "{part}");
        let elsewhere = part.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("http://") && !elsewhere.contains("https://"), "{part}");
    }
    let json = server.get("/processes.json", "");
    let own = format!("\"pid\":{}", std::process::id());
    assert!(json.split("\r\n\r\n").nth(1).unwrap().contains(&own), "{json}");
}

#[test]
fn counters_have_open_connections_and_never_fall() {
    let file = segment();
    let word = |at: usize, value: u64| file.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
    let counter = |counter: Counter| offset_of!(Header, counters) + 8 * counter as usize;
    let record = |field: usize| CONNS_OFFSET + field;
    // (Of all segments of this process the newest one counts, for the other tests as well.)
    word(offset_of!(Header, started_unix_ns), 1);
    file.set_len((CONNS_OFFSET + size_of::<ConnRecord>()) as u64).unwrap();
    word(record(offset_of!(ConnRecord, tx_messages)), 11);
    word(record(offset_of!(ConnRecord, rx_messages)), 22);
    word(record(offset_of!(ConnRecord, rx_bytes)), 333);
    word(record(offset_of!(ConnRecord, state)), 1);
    word(counter(Counter::MessagesTx), 100);
    word(offset_of!(Header, conn_capacity), 1 | 1 << 32);
    let server = Server::new(&["--listen", "127.0.0.1:0"]);
    let seen = || {
        let text = server.get("/metrics", "");
        [
            value(&text, &["netacc_messages_tx_total{"]),
            value(&text, &["netacc_messages_rx_total{"]),
            value(&text, &["netacc_received_bytes_total{", "path=\"tcp\""]),
        ]
    };
    assert_eq!(seen(), [Some(111.0), Some(22.0), Some(333.0)]);
    // It ends, and is not counted yet.
    word(record(offset_of!(ConnRecord, state)), 0);
    assert_eq!(seen(), [Some(111.0), Some(22.0), Some(333.0)]);
    word(counter(Counter::MessagesTx), 111);
    word(counter(Counter::MessagesRx), 22);
    word(counter(Counter::TcpBytesRx), 333);
    assert_eq!(seen(), [Some(111.0), Some(22.0), Some(333.0)]);
    word(counter(Counter::MessagesRx), 23);
    assert_eq!(seen(), [Some(111.0), Some(23.0), Some(333.0)]);
}

#[test]
fn strangers_and_nonsense_are_turned_away() {
    let server = Server::new(&["--listen", "0"]);
    assert!(server.get("/metrics", "Host: evil.example\r\n").starts_with("HTTP/1.1 421 "));
    assert!(server.get("/../etc/passwd", "").starts_with("HTTP/1.1 404 "));
    assert!(asked(server.connect(), "POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    for nonsense in ["\0\u{1}\u{2}\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/1.1\r\n"] {
        let mut stream = server.connect();
        stream.write_all(nonsense.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert_eq!(answer, "");
    }
    let long = format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(100_000));
    let mut stream = server.connect();
    let _ = stream.write_all(long.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer, b"");
    // Some who say nothing keep nobody else away.
    let _silent: Vec<TcpStream> = (0..10).map(|_| server.connect()).collect();
    assert!(server.get("/", "").starts_with("HTTP/1.1 200 "));
}

#[test]
fn another_user_is_not_answered_unless_named() {
    if !rustix::process::geteuid().is_root() {
        support::skip("not root");
        return;
    }
    let asked = |server: &Server, says: &str| {
        let (host, port) = server.address().rsplit_once(':').unwrap();
        let script = format!("exec 3<>/dev/tcp/{host}/{port}; printf '{says}' >&3; head -n 1 <&3");
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups", "bash", "-c", &script]);
        run(&mut command).out
    };
    let ask = |server: &Server| asked(server, "GET /metrics HTTP/1.1\\r\\n\\r\\n");
    let server = Server::new(&["--listen", "0"]);
    assert!(ask(&server).starts_with("HTTP/1.1 403 "));
    // Who says nothing is not waited for.
    assert!(asked(&server, "").starts_with("HTTP/1.1 403 "));
    let server = Server::new(&["--listen", "0", "--user", "65534"]);
    assert!(ask(&server).starts_with("HTTP/1.1 200 "));
}

#[test]
fn another_user_gets_no_number_by_a_unix_socket_unless_named() {
    if !rustix::process::geteuid().is_root() {
        support::skip("not root");
        return;
    }
    if Command::new("perl").arg("-v").output().is_err() {
        support::skip("no perl");
        return;
    }
    let _segment = segment();
    let scratch = Scratch::new();
    let path = scratch.path("socket");
    let place = format!("unix:{}", path.display());
    const REQUEST: &str = "GET /metrics HTTP/1.1\r\n\r\n";
    let other = || {
        let script = "$SIG{PIPE} = 'IGNORE'; my $s = IO::Socket::UNIX->new(Peer => shift) or die $!; \
                      print $s shift; $s->flush; print <$s>";
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["perl", "-MIO::Socket::UNIX", "-e", script]).arg(&path).arg(REQUEST);
        let ran = run(&mut command);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
        ran.out
    };
    for (options, is_answered) in [(&[][..], false), (&["--user", "65534"], true)] {
        let _server = Server::new(&[&["--listen", place.as_str()], options].concat());
        let own = asked(UnixStream::connect(&path).unwrap(), REQUEST);
        assert!(own.starts_with("HTTP/1.1 200 ") && own.contains("netacc_connections{"), "{own}");
        let answer = other();
        let status = if is_answered { "HTTP/1.1 200 " } else { "HTTP/1.1 403 " };
        assert!(answer.starts_with(status), "{answer}");
        assert_eq!(answer.contains("netacc_"), is_answered, "{answer}");
    }
}

#[test]
fn it_is_served_on_a_unix_socket_and_takes_the_place_of_one_that_is_gone() {
    let scratch = Scratch::new();
    let path = scratch.path("socket");
    let place = format!("unix:{}", path.display());
    for _ in 0..2 {
        let server = Server::new(&["--listen", &place]);
        let answer = asked(UnixStream::connect(&path).unwrap(), "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let ran = run(metrics().args(["--listen", &place]));
        assert_eq!(ran.status, Some(1));
        assert!(ran.err.contains("Address already in use"), "{}", ran.err);
        drop(server);
    }
}

#[test]
fn a_signal_takes_its_own_unix_socket_away_and_no_other_s() {
    let scratch = Scratch::new();
    let path = scratch.path("socket");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let ends_with = |is_replaced: bool| {
            let mut server = Server::new(&["--listen", &format!("unix:{}", path.display())]);
            if is_replaced {
                fs::remove_file(&path).unwrap();
                fs::write(&path, "").unwrap();
            }
            rustix::process::kill_process(Pid::from_child(&server.0), signal).unwrap();
            let status = server.0.wait().unwrap();
            assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
            path.exists()
        };
        assert!(!ends_with(false), "{signal:?}: it is left");
        assert!(ends_with(true), "{signal:?}: somebody else's file is gone");
        fs::remove_file(&path).unwrap();
    }
    // nohup(1) has it go on.
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_netacc")).arg("metrics");
    let server = Server::of(&mut command, &["--listen", &format!("unix:{}", path.display())]);
    rustix::process::kill_process(Pid::from_child(&server.0), Signal::HUP).unwrap();
    let answer = asked(UnixStream::connect(&path).unwrap(), "GET / HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn one_visitor_too_many_is_told_so() {
    let server = Server::new(&["--listen", "0"]);
    // (They are let in one after the other.)
    let silent: Vec<TcpStream> = (0..16).map(|_| server.connect()).collect();
    let answer = server.get("/metrics", "");
    assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer:?}");
    assert!(answer.ends_with("\r\n\r\ntoo many visitors at once: try again\n"), "{answer:?}");
    drop(silent);
    let end = Instant::now() + Duration::from_secs(60);
    while !server.get("/", "").starts_with("HTTP/1.1 200 ") {
        assert!(Instant::now() < end);
    }
}

#[test]
fn mistakes_are_named() {
    for (arguments, text) in [
        (&["--listen", "0.0.0.0:1"][..], "not an address of this host alone"),
        (&["--listen", "x"], "valid: ADDRESS:PORT"),
        (&["--user", "root"], "--listen"),
        (&["--every", "1"], "--textfile"),
        (&["--listen", "0", "--user", "no-such-user"], "no such user"),
    ] {
        let ran = run(metrics().args(arguments));
        assert_eq!(ran.status, Some(2), "{arguments:?}");
        assert!(ran.err.contains(text), "{arguments:?}: {}", ran.err);
    }
    let ran = run(metrics().args(["--textfile", "/no/such/folder/x"]));
    assert_eq!(ran.status, Some(1));
    assert!(ran.err.contains("/no/such/folder/x"), "{}", ran.err);
}
