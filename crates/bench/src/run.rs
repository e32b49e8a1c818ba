//! One run: a server process and a client process, their clocks, and what became of them.

use crate::library::{self, Proof, Tools};
use crate::spec::{Kind, Spec, Traffic};
use crate::stats::{self, Latencies};
use crate::sys;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// What one run found.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// In [`Spec::rate_unit`].
    pub(crate) rate: f64,
    pub(crate) latencies: Latencies,
    /// CPU time during the measured seconds as a share of one CPU.
    pub(crate) cpu_server: f64,
    pub(crate) cpu_client: f64,
    pub(crate) proof: Proof,
}

/// A run may take this much longer than it was told to.
const PATIENCE: Duration = Duration::from_secs(20);
/// From the last byte of an idle run until its CPU time is counted: spinning has to have ended by
/// then.
const SETTLE: Duration = Duration::from_millis(500);

/// Runs `spec` once. `cpus`: where the server and the client are bound.
pub(crate) fn run(
    spec: &Spec,
    kind: Kind,
    tools: &Tools,
    cpus: Option<[usize; 2]>,
) -> crate::Result<Measured> {
    let deadline = Instant::now() + Duration::from_secs_f64(spec.warmup + spec.seconds) + PATIENCE;
    let argument = spec.to_argument()?;
    let mut server = Peer::start(
        "server",
        std::slice::from_ref(&argument),
        tools,
        kind.on_server(),
        cpus.map(|c| c[0]),
    )?;
    let listening = server.event("listening", deadline)?;
    let ports = listening["ports"].as_array().ok_or("the server sent no ports")?;
    let arguments: Vec<String> =
        std::iter::once(argument).chain(ports.iter().map(Value::to_string)).collect();
    let mut client =
        Peer::start("client", &arguments, tools, kind.on_client(), cpus.map(|c| c[1]))?;

    client.event("start", deadline)?;
    if spec.traffic == Traffic::Idle {
        thread::sleep(SETTLE);
    }
    let before = (server.cpu_time()?, client.cpu_time()?, Instant::now());
    let done = if spec.traffic == Traffic::Idle {
        thread::sleep(Duration::from_secs_f64(spec.seconds));
        None
    } else {
        Some(client.event("done", deadline)?)
    };
    let seconds = before.2.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
    let share =
        |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64() / seconds;
    let (cpu_server, cpu_client) =
        (share(before.0, server.cpu_time()?), share(before.1, client.cpu_time()?));
    let done = match done {
        Some(done) => done,
        None => {
            client.say("go on")?;
            client.event("done", deadline)?
        }
    };

    // Both still live, with every connection open that the traffic leaves open.
    let proof = match kind {
        Kind::Plain => Proof::NotAsked,
        Kind::Accelerated | Kind::ServerOnly => Proof::of(server.child.id(), tools),
        Kind::ClientOnly => Proof::of(client.child.id(), tools),
    };
    client.end_by_eof(deadline)?;
    server.end_by_signal()?;
    Ok(Measured {
        rate: done["rate"].as_f64().ok_or("the client sent no rate")?,
        latencies: stats::from_pairs(&done["latencies"]).ok_or("the client sent no latencies")?,
        cpu_server,
        cpu_client,
        proof,
    })
}

/// A process of ours; killed when dropped.
struct Peer {
    role: &'static str,
    child: Child,
    lines: Receiver<String>,
}

impl Peer {
    fn start(
        role: &'static str,
        arguments: &[String],
        tools: &Tools,
        with_library: bool,
        cpu: Option<usize>,
    ) -> crate::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("netacc")
            .arg(format!("bench-{role}"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let library = tools.library.as_deref().ok().filter(|_| with_library);
        match library::preload(std::env::var_os("LD_PRELOAD").as_deref(), library) {
            Some(value) => command.env("LD_PRELOAD", value),
            None => command.env_remove("LD_PRELOAD"),
        };
        sys::prepare_child(&mut command, cpu);
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let (sender, lines) = channel();
        thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { role, child, lines })
    }

    /// Waits for the report called `name`.
    fn event(&mut self, name: &str, deadline: Instant) -> crate::Result<Value> {
        let role = self.role;
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let value: Value = serde_json::from_str(&line)?;
                if value["event"] == name {
                    Ok(value)
                } else {
                    Err(format!("{role} said {line}, not {name}").into())
                }
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                Err(format!("{role} hangs (before `{name}`)").into())
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                Err(format!("{role} ended before `{name}`: {}", self.child.wait()?).into())
            }
        }
    }

    fn say(&mut self, line: &str) -> crate::Result<()> {
        let stdin = self.child.stdin.as_mut().ok_or("no pipe")?;
        writeln!(stdin, "{line}")?;
        Ok(())
    }

    fn cpu_time(&self) -> crate::Result<Duration> {
        Ok(sys::cpu_time(self.child.id())?)
    }

    fn end_by_eof(mut self, deadline: Instant) -> crate::Result<()> {
        drop(self.child.stdin.take());
        // Its output ends when it does.
        if let Ok(line) =
            self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            return Err(format!("{} said {line} at its end", self.role).into());
        }
        match self.wait(deadline)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{}: {status}", self.role).into()),
            None => Err(format!("{} hangs at its end", self.role).into()),
        }
    }

    fn end_by_signal(mut self) -> crate::Result<()> {
        sys::terminate(&self.child);
        match self.wait(Instant::now() + Duration::from_secs(5))? {
            Some(status) if status.signal() == Some(libc::SIGTERM) => Ok(()),
            Some(status) => Err(format!("{}: {status}", self.role).into()),
            None => Err(format!("{} does not end by SIGTERM", self.role).into()),
        }
    }

    fn wait(&mut self, deadline: Instant) -> crate::Result<Option<std::process::ExitStatus>> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Busy loops that run while this lives.
#[derive(Debug)]
pub(crate) struct Load(Vec<Child>);

impl Load {
    pub(crate) fn start(count: usize) -> crate::Result<Self> {
        let mut load = Self(Vec::new());
        for _ in 0..count {
            let mut command = Command::new("/proc/self/exe");
            command.arg0("netacc").arg("bench-load").stdin(Stdio::null()).env_remove("LD_PRELOAD");
            sys::prepare_child(&mut command, None);
            load.0.push(command.spawn()?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
