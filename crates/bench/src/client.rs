//! The measured client: an ordinary program. It reports on standard output, one JSON object a line:
//! `start` when measuring begins, `done` with the result. It keeps its connections until standard
//! input ends.

use crate::framing::{self, Framer};
use crate::spec::{Spec, Traffic};
use crate::stats::{self, Latencies};
use crate::sys::{self, Epoll};
use serde_json::json;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// What a client thread measured.
struct Outcome {
    /// Messages, bytes or connections, whichever [`Spec::rate_unit`] counts.
    units: u64,
    elapsed: Duration,
    latencies: Latencies,
}

/// Runs the client's side of `spec` against the server on `ports`.
pub(crate) fn main(spec: &str, ports: &[u16]) -> crate::Result<()> {
    let spec = Spec::from_argument(spec)?;
    let servers: Vec<SocketAddr> =
        ports.iter().map(|&port| (Ipv4Addr::LOCALHOST, port).into()).collect();
    let &server = servers.first().ok_or("no port")?;
    sys::raise_descriptor_limit();
    // Open connections are kept in `_open` until standard input ends.
    let (outcome, _open) = match spec.traffic {
        Traffic::PingPong => pingpong(&spec, server)?,
        Traffic::PingPongEpoll => pingpong_epoll(&spec, server)?,
        Traffic::ReqRep => threads(&spec, &servers, reqrep)?,
        Traffic::Bulk => bulk(&spec, server)?,
        Traffic::Rate => threads(&spec, &servers, connection_rate)?,
        Traffic::Idle => idle(&spec, server)?,
    };
    let seconds = outcome.elapsed.as_secs_f64();
    let done = json!({
        "event": "done",
        "rate": if seconds > 0.0 { outcome.units as f64 / seconds } else { 0.0 },
        "latencies": stats::pairs(&outcome.latencies),
    });
    crate::say(&format!("{done}\n"))?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

type Open = Vec<TcpStream>;

fn started() {
    // (Who has started this one is gone where that fails; it ends with its standard input.)
    let _ = crate::say(&format!("{}\n", json!({ "event": "start" })));
}

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn check(got: u64, expected: u64) -> io::Result<()> {
    if got == expected {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "wrong bytes: message {got:#x} came instead of {expected:#x}"
        )))
    }
}

/// Times `round_trip` first for the warm-up, then for the measured seconds. Reading the clock twice
/// for each round trip keeps the recording out of the measured interval; one reading remains in it.
fn measure(spec: &Spec, mut round_trip: impl FnMut(u64) -> io::Result<()>) -> io::Result<Outcome> {
    let mut sequence = 0;
    let warm = Instant::now() + Duration::from_secs_f64(spec.warmup);
    loop {
        sequence += 1;
        round_trip(sequence)?;
        if Instant::now() >= warm {
            break;
        }
    }
    started();
    let mut latencies = stats::latencies();
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(spec.seconds);
    let before = sequence;
    loop {
        sequence += 1;
        let start = Instant::now();
        round_trip(sequence)?;
        let stop = Instant::now();
        stats::record(&mut latencies, stop - start);
        if stop >= end {
            return Ok(Outcome { units: sequence - before, elapsed: stop - begin, latencies });
        }
    }
}

fn exchange(stream: &mut TcpStream, message: &mut [u8], sequence: u64) -> io::Result<()> {
    message[..8].copy_from_slice(&sequence.to_le_bytes());
    stream.write_all(message)?;
    stream.read_exact(message)?;
    let (head, _) = message.split_at(8);
    check(u64::from_le_bytes(head.try_into().unwrap_or_default()), sequence)
}

fn pingpong(spec: &Spec, server: SocketAddr) -> crate::Result<(Outcome, Open)> {
    let mut stream = connect(server)?;
    let mut message = vec![0x5a; spec.request];
    let outcome = measure(spec, |sequence| exchange(&mut stream, &mut message, sequence))?;
    Ok((outcome, vec![stream]))
}

fn pingpong_epoll(spec: &Spec, server: SocketAddr) -> crate::Result<(Outcome, Open)> {
    let mut lane = Lane::open(spec, server)?;
    let set = Epoll::new()?;
    set.add(&lane.stream, sys::READABLE, 0)?;
    let mut events = [sys::NO_EVENT; 8];
    let mut buffer = vec![0; 64 * 1024];
    let outcome = measure(spec, |_| {
        lane.send_batch()?;
        while lane.outstanding > 0 {
            // A message larger than the socket's buffer: make room by reading.
            set.wait_ms(&mut events, if lane.all_sent() { -1 } else { 1 })?;
            lane.receive(&mut buffer)?;
            lane.flush()?;
        }
        Ok(())
    })?;
    Ok((outcome, vec![lane.stream]))
}

/// A connection of the epoll client with a batch of requests on its way.
struct Lane {
    stream: TcpStream,
    responses: Framer,
    request: usize,
    pipeline: usize,
    out: Vec<u8>,
    sent: usize,
    /// Sequence number of the last response that was received.
    received: u64,
    outstanding: usize,
    sent_at: Instant,
    waits_for_room: bool,
}

impl Lane {
    fn open(spec: &Spec, server: SocketAddr) -> io::Result<Self> {
        let stream = connect(server)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            responses: Framer::new(spec.response),
            request: spec.request,
            pipeline: spec.pipeline,
            out: Vec::new(),
            sent: 0,
            received: 0,
            outstanding: 0,
            sent_at: Instant::now(),
            waits_for_room: false,
        })
    }

    fn send_batch(&mut self) -> io::Result<()> {
        self.out.clear();
        self.sent = 0;
        self.outstanding = self.pipeline;
        for n in 1..=self.pipeline as u64 {
            framing::append(&mut self.out, self.request, self.received + n);
        }
        self.flush()
    }

    fn all_sent(&self) -> bool {
        self.sent == self.out.len()
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.all_sent() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once and checks what came. Returns the number of complete responses.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = match self.stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        };
        let (mut complete, mut verdict) = (0, Ok(()));
        let received = &mut self.received;
        self.responses.push(&buffer[..n], |sequence| {
            *received += 1;
            complete += 1;
            if verdict.is_ok() {
                verdict = check(sequence, *received);
            }
        });
        verdict?;
        self.outstanding = self
            .outstanding
            .checked_sub(complete)
            .ok_or_else(|| io::Error::other("more responses than requests"))?;
        Ok(complete)
    }
}

/// The common time line of several client threads.
#[derive(Clone, Copy)]
struct Window {
    begin: Instant,
    end: Instant,
}

impl Window {
    fn includes(&self, start: Instant, stop: Instant) -> bool {
        start >= self.begin && stop <= self.end
    }
}

/// What a client thread does with its share of the connections. It calls the last argument when it
/// has connected, to wait for the others and learn the window.
type Work = fn(
    &Spec,
    usize,
    &[SocketAddr],
    &mut dyn FnMut() -> Window,
) -> io::Result<(u64, Latencies, Open)>;

/// Runs `work` in `spec.threads` threads, each with the connections that fall to it.
fn threads(spec: &Spec, servers: &[SocketAddr], work: Work) -> crate::Result<(Outcome, Open)> {
    let count = spec.threads.clamp(1, spec.connections.max(1));
    let connected = std::sync::Barrier::new(count + 1);
    let window = std::sync::OnceLock::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..count)
            .map(|index| {
                let mine = spec.connections / count + usize::from(index < spec.connections % count);
                let (connected, window) = (&connected, &window);
                scope.spawn(move || {
                    work(spec, mine, servers, &mut || {
                        connected.wait();
                        *window.get_or_init(|| {
                            let begin = Instant::now() + Duration::from_secs_f64(spec.warmup);
                            Window { begin, end: begin + Duration::from_secs_f64(spec.seconds) }
                        })
                    })
                    // A thread that fails leaves the others waiting for it.
                    .unwrap_or_else(|error| {
                        crate::complain(&format!("netacc: bench client: {error}"));
                        std::process::exit(1)
                    })
                })
            })
            .collect();
        connected.wait();
        thread::sleep(Duration::from_secs_f64(spec.warmup));
        started();
        let mut outcome = Outcome {
            units: 0,
            elapsed: Duration::from_secs_f64(spec.seconds),
            latencies: stats::latencies(),
        };
        let mut open = Vec::new();
        for worker in workers {
            let (units, latencies, streams) =
                worker.join().map_err(|_| "a client thread panicked")?;
            outcome.units += units;
            outcome.latencies.add(latencies)?;
            open.extend(streams);
        }
        Ok((outcome, open))
    })
}

fn reqrep(
    spec: &Spec,
    connections: usize,
    servers: &[SocketAddr],
    ready: &mut dyn FnMut() -> Window,
) -> io::Result<(u64, Latencies, Open)> {
    let mut lanes =
        (0..connections).map(|_| Lane::open(spec, servers[0])).collect::<io::Result<Vec<_>>>()?;
    let set = Epoll::new()?;
    for (token, lane) in lanes.iter().enumerate() {
        set.add(&lane.stream, sys::READABLE, token as u64)?;
    }
    let window = ready();
    let (mut units, mut latencies) = (0, stats::latencies());
    let mut events = vec![sys::NO_EVENT; connections.max(1)];
    let mut buffer = vec![0; 64 * 1024];
    for lane in &mut lanes {
        lane.sent_at = Instant::now();
        lane.send_batch()?;
    }
    loop {
        let n = set.wait(&mut events)?;
        let now = Instant::now();
        for &event in &events[..n] {
            let token = event.u64;
            let lane = &mut lanes[token as usize];
            let complete = lane.receive(&mut buffer)?;
            if complete > 0 {
                let stop = Instant::now();
                if window.includes(lane.sent_at, stop) {
                    stats::record_many(&mut latencies, stop - lane.sent_at, complete as u64);
                }
                if stop >= window.begin && stop <= window.end {
                    units += complete as u64;
                }
            }
            if lane.outstanding == 0 {
                lane.sent_at = Instant::now();
                lane.send_batch()?;
            } else {
                lane.flush()?;
            }
            if lane.all_sent() == lane.waits_for_room {
                lane.waits_for_room = !lane.waits_for_room;
                let interest =
                    if lane.waits_for_room { sys::READABLE | sys::WRITABLE } else { sys::READABLE };
                set.modify(&lane.stream, interest, token)?;
            }
        }
        if now >= window.end {
            return Ok((units, latencies, lanes.into_iter().map(|lane| lane.stream).collect()));
        }
    }
}

fn connection_rate(
    spec: &Spec,
    _: usize,
    servers: &[SocketAddr],
    ready: &mut dyn FnMut() -> Window,
) -> io::Result<(u64, Latencies, Open)> {
    let window = ready();
    let (mut units, mut latencies) = (0, stats::latencies());
    let mut message = vec![0x5a; spec.request];
    for (sequence, &server) in (1..).zip(servers.iter().cycle()) {
        let start = Instant::now();
        let mut stream = connect(server)?;
        exchange(&mut stream, &mut message, sequence)?;
        drop(stream);
        let stop = Instant::now();
        if window.includes(start, stop) {
            units += 1;
            stats::record(&mut latencies, stop - start);
        }
        if stop >= window.end {
            break;
        }
    }
    Ok((units, latencies, Vec::new()))
}

fn bulk(spec: &Spec, server: SocketAddr) -> crate::Result<(Outcome, Open)> {
    let mut stream = connect(server)?;
    let chunk = vec![0x5a; spec.request];
    let mut total = 0_u64;
    let warm = Instant::now() + Duration::from_secs_f64(spec.warmup);
    while Instant::now() < warm {
        stream.write_all(&chunk)?;
        total += chunk.len() as u64;
    }
    started();
    let before = total;
    let mut latencies = stats::latencies();
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(spec.seconds);
    loop {
        let start = Instant::now();
        stream.write_all(&chunk)?;
        total += chunk.len() as u64;
        let stop = Instant::now();
        stats::record(&mut latencies, stop - start);
        if stop >= end {
            break;
        }
    }
    // The clock stops when the server has read everything.
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    let elapsed = begin.elapsed();
    let arrived = u64::from_le_bytes(answer);
    if arrived != total {
        return Err(format!("{arrived} of {total} bytes arrived").into());
    }
    Ok((Outcome { units: total - before, elapsed, latencies }, vec![stream]))
}

/// Opens the connections, uses each a little, and sleeps in `epoll_wait` on them until standard
/// input says to go on; then measures one round trip on each.
fn idle(spec: &Spec, server: SocketAddr) -> crate::Result<(Outcome, Open)> {
    const STDIN: u64 = u64::MAX;
    let mut message = vec![0x5a; spec.request];
    let set = Epoll::new()?;
    let mut streams = Vec::new();
    for token in 0..spec.connections as u64 {
        let stream = connect(server)?;
        set.add(&stream, sys::READABLE, token)?;
        streams.push(stream);
    }
    for sequence in 1..=10 {
        for stream in &mut streams {
            exchange(stream, &mut message, sequence)?;
        }
    }
    set.add(&io::stdin(), sys::READABLE, STDIN)?;
    started();
    let mut events = [sys::NO_EVENT; 8];
    loop {
        let n = set.wait(&mut events)?;
        if events[..n].iter().any(|event| { event.u64 } == STDIN) {
            break;
        }
        if n > 0 {
            return Err("an idle connection became ready".into());
        }
    }
    let mut latencies = stats::latencies();
    let begin = Instant::now();
    for stream in &mut streams {
        let start = Instant::now();
        exchange(stream, &mut message, 11)?;
        stats::record(&mut latencies, start.elapsed());
    }
    Ok((Outcome { units: streams.len() as u64, elapsed: begin.elapsed(), latencies }, streams))
}
