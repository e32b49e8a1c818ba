//! As much of HTTP/1.1 as a scraper and a browser need: one request of a connection, GET, no body.
//!
//! A visitor costs a thread for a few seconds at most, and there are few at a time.

use super::visitors::Visitors;
use super::{State, now};
use crate::latencies;
use crate::metrics::Format;
use crate::segment::field;
use crate::show;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::{emulate_default_handler, pipe};
use std::ffi::c_int;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const REQUEST_MAX: usize = 8192;
/// unix(7), `sun_path`: 108 bytes, with a NUL.
const UNIX_PATH_MAX: usize = 107;
const VISITORS_MAX: usize = 16;
/// So many more, for a moment each, are told that there are too many.
const TURNED_AWAY_MAX: usize = 16;
/// For a request, and for taking the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// For the request of one who gets nothing for it: he is not to keep others away.
const PATIENCE_WITH_STRANGERS: Duration = Duration::from_millis(100);

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// Where it is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On loopback.
    Loopback(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl Place {
    /// `unix:PATH`, `ADDRESS:PORT` of loopback, or a port of 127.0.0.1.
    pub fn parse(word: &str) -> Result<Place, String> {
        if let Some(path) = word.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return match path.len() {
                0..=UNIX_PATH_MAX => Ok(Place::Unix(PathBuf::from(path))),
                length => Err(format!(
                    "the path of a unix socket has {UNIX_PATH_MAX} bytes at most, this one has {length}"
                )),
            };
        }
        let port = word.parse::<u16>().map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        match port.ok().or_else(|| word.parse().ok()) {
            Some(address) if address.ip().is_loopback() => Ok(Place::Loopback(address)),
            Some(_) => {
                Err(String::from("not an address of this host alone: 127.0.0.1:PORT, [::1]:PORT"))
            }
            None => Err(String::from("valid: ADDRESS:PORT, PORT or unix:PATH")),
        }
    }
}

struct Server {
    visitors: Visitors,
    state: Mutex<State>,
    busy: AtomicUsize,
}

/// Serves until the process is ended.
pub(super) fn serve(place: &Place, visitors: Visitors) -> io::Result<()> {
    let server = Arc::new(Server { visitors, state: Mutex::default(), busy: AtomicUsize::new(0) });
    let named =
        |error: io::Error, name: String| io::Error::new(error.kind(), format!("{name}: {error}"));
    match place {
        Place::Loopback(address) => {
            let listener = TcpListener::bind(address).map_err(|e| named(e, address.to_string()))?;
            let own = listener.local_addr()?;
            announce(&format!("http://{own}/"));
            loop {
                let Ok((stream, visitor)) = listener.accept() else {
                    pause();
                    continue;
                };
                let server = Arc::clone(&server);
                visit(&server.clone(), move |is_full| {
                    let is_known = server.visitors.has(visitor, own);
                    server.answer(stream, Visit { is_known, is_full, is_loopback: true });
                });
            }
        }
        Place::Unix(path) => {
            let listener = bind(path).map_err(|e| named(e, path.display().to_string()))?;
            take_away_at_the_end(path)?;
            announce(&format!("unix:{}", path.display()));
            loop {
                let Ok((stream, _)) = listener.accept() else {
                    pause();
                    continue;
                };
                let server = Arc::clone(&server);
                visit(&server.clone(), move |is_full| {
                    let is_known = server.visitors.has_unix(&stream);
                    server.answer(stream, Visit { is_known, is_full, is_loopback: false });
                });
            }
        }
    }
}

/// (Too many descriptors are open, perhaps.)
fn pause() {
    std::thread::sleep(Duration::from_millis(100));
}

/// (Not folded: a place is copied as a whole.)
fn announce(place: &str) {
    let _ = writeln!(io::stderr(), "netacc metrics: {place}");
}

/// What a server that is gone has left is taken away; what somebody serves is not.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    let is_gone = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(is_gone) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    // Anybody may knock: who he is decides.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// A signal that ends the process takes its socket away first, unless another one is there by now.
fn take_away_at_the_end(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let which = |path: &Path| fs::symlink_metadata(path).map(|is| (is.dev(), is.ino())).ok();
    let own = which(&path);
    let signal = Arc::new(AtomicUsize::new(0));
    let (mut come, tell) = UnixStream::pair()?;
    for number in [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|number| !is_ignored(*number)) {
        flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        pipe::register(number, tell.try_clone()?)?;
    }
    let thread = std::thread::Builder::new().name(String::from("signals"));
    thread.spawn(move || {
        // (As long as it can be waited for at all: this process holds the other end.)
        let _tell = tell;
        if come.read_exact(&mut [0]).is_ok() {
            if which(&path) == own {
                let _ = fs::remove_file(&path);
            }
            let signal = c_int::try_from(signal.load(Ordering::Relaxed)).unwrap_or(SIGTERM);
            let _ = emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

/// Whether who has started this process has it ignore a signal, as nohup(1) does.
fn is_ignored(signal: c_int) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = field(&status, "SigIgn:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}

/// In a thread, which hears whether there are too many: then the visitor is told so. Where even
/// those are too many that are told, he is not answered.
fn visit(server: &Arc<Server>, answer: impl FnOnce(bool) + Send + 'static) {
    struct Leave(Arc<Server>);
    impl Drop for Leave {
        fn drop(&mut self) {
            self.0.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let others = server.busy.fetch_add(1, Ordering::Relaxed);
    let leave = Leave(Arc::clone(server));
    if others >= VISITORS_MAX + TURNED_AWAY_MAX {
        return;
    }
    let thread = std::thread::Builder::new().name(String::from("visitor"));
    let _ = thread.spawn(move || {
        let _leave = leave;
        answer(others >= VISITORS_MAX);
    });
}

/// A connection to a visitor.
trait Stream: Read + Write {
    fn wait_at_most(&self, time: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Stream for UnixStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

/// Who has come, and how.
struct Visit {
    is_known: bool,
    is_full: bool,
    is_loopback: bool,
}

struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Server {
    fn answer(&self, mut stream: impl Stream, visit: Visit) {
        let Visit { is_known, is_full, is_loopback } = visit;
        let patience = if is_known && !is_full { PATIENCE } else { PATIENCE_WITH_STRANGERS };
        if stream.wait_at_most(patience).is_err() {
            return;
        }
        let answer = match request(&mut stream, patience) {
            _ if !is_known => {
                refused("403 Forbidden", "not for this user: see netacc metrics --user")
            }
            _ if is_full => {
                refused("503 Service Unavailable", "too many visitors at once: try again")
            }
            None => return,
            // A page of another site, whose name has been made to mean this host.
            Some(request) if is_loopback && !request.is_for_loopback() => {
                refused("421 Misdirected Request", "not this host")
            }
            Some(request) if request.method != "GET" => {
                refused("405 Method Not Allowed", "GET only")
            }
            Some(request) => self.page(&request),
        };
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Content-Security-Policy: default-src 'self'; img-src data:; frame-ancestors 'none'\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n\r\n",
            answer.status,
            answer.content_type,
            answer.body.len()
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(answer.body.as_bytes());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page(&self, request: &Request) -> Answer {
        let ok = |content_type, body| Answer { status: "200 OK", content_type, body };
        match request.path.split('?').next().unwrap_or_default() {
            "/" => ok("text/html; charset=utf-8", PAGE.to_owned()),
            "/page.js" => ok("text/javascript; charset=utf-8", SCRIPT.to_owned()),
            "/page.css" => ok("text/css; charset=utf-8", STYLE.to_owned()),
            "/processes.json" => {
                let found = self.state().looks.sums().0;
                ok("application/json", show::processes_json(&found).to_string())
            }
            "/latencies.json" => {
                let mut state = self.state();
                let found = state.looks.sums().0;
                let all: Vec<_> = found.iter().filter_map(|f| f.process.as_ref().ok()).collect();
                let all = state.past.latencies(&all);
                ok("application/json", latencies::page_json(&all).to_string())
            }
            "/metrics" => {
                let format = match request.accepts("application/openmetrics-text") {
                    true => Format::OpenMetrics,
                    false => Format::Text,
                };
                ok(format.content_type(), now(&mut self.state(), format))
            }
            _ => refused("404 Not Found", "there are / and /metrics"),
        }
    }
}

fn refused(status: &'static str, why: &str) -> Answer {
    Answer { status, content_type: "text/plain; charset=utf-8", body: format!("{why}\n") }
}

struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(is, _)| is.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    fn accepts(&self, content_type: &str) -> bool {
        self.header("accept").is_some_and(|accepted| accepted.contains(content_type))
    }

    fn is_for_loopback(&self) -> bool {
        let Some(host) = self.header("host") else { return true };
        let name = match host.parse::<SocketAddr>() {
            Ok(address) => return address.ip().is_loopback(),
            Err(_) => host.split(':').next().unwrap_or_default(),
        };
        name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    }
}

/// The request, up to its empty line; nothing where it is none, is too long, or takes too long.
fn request(stream: &mut impl Stream, patience: Duration) -> Option<Request> {
    let (begin, mut bytes, mut block) = (Instant::now(), Vec::new(), [0; 1024]);
    while !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
        let length = stream.read(&mut block).ok().filter(|length| *length > 0)?;
        bytes.extend_from_slice(&block[..length]);
        if bytes.len() > REQUEST_MAX || begin.elapsed() > patience {
            return None;
        }
    }
    parse(&String::from_utf8_lossy(&bytes))
}

fn parse(text: &str) -> Option<Request> {
    let mut lines = text.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    let headers = lines.take_while(|line| !line.is_empty()).filter_map(header).collect();
    Some(Request { method, path, headers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_is_served() {
        let loopback = |text: &str| Place::Loopback(text.parse().unwrap());
        assert_eq!(Place::parse("9464"), Ok(loopback("127.0.0.1:9464")));
        assert_eq!(Place::parse("[::1]:1"), Ok(loopback("[::1]:1")));
        assert_eq!(Place::parse("unix:/run/x"), Ok(Place::Unix(PathBuf::from("/run/x"))));
        for wrong in ["0.0.0.0:1", "[::]:1", "10.0.0.1:80", "unix:", "x", "", "127.0.0.1"] {
            assert!(Place::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_is_as_long_as_a_unix_sockets_may_be() {
        let of = |length: usize| format!("/{}", "x".repeat(length - 1));
        for (length, is_valid) in [(107, true), (108, false)] {
            let path = of(length);
            assert_eq!(std::os::unix::net::SocketAddr::from_pathname(&path).is_ok(), is_valid);
            assert_eq!(Place::parse(&format!("unix:{path}")).is_ok(), is_valid, "{length}");
        }
        let says = Place::parse(&format!("unix:{}", of(200))).unwrap_err();
        assert_eq!(says, "the path of a unix socket has 107 bytes at most, this one has 200");
    }

    #[test]
    fn requests_are_read_with_care() {
        let request = parse("GET /metrics?x HTTP/1.1\r\nHost: localhost:1\r\nAccept: a,b\r\n\r\n");
        let request = request.unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", "/metrics?x"));
        assert!(request.accepts("b") && !request.accepts("c") && request.is_for_loopback());
        for host in ["127.0.0.1", "127.0.0.1:9", "[::1]:9", "localhost"] {
            assert!(
                parse(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                    .unwrap()
                    .is_for_loopback()
            );
        }
        for host in ["evil.example", "evil.example:9464", "10.0.0.1", "localhost.evil.example"] {
            assert!(
                !parse(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                    .unwrap()
                    .is_for_loopback()
            );
        }
        for wrong in ["", "GET", "GET /", "GET / SPDY/3\r\n\r\n", "\u{fffd}\r\n\r\n"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
