//! What the rdma path needs of a verbs provider, tried on the device that has ADDRESS.
//!
//! ```text
//! selftest ADDRESS [PORT]                  both ends in this process, all checks
//! selftest serve ADDRESS PORT COUNT        one end of COUNT connections, one after the other
//! selftest call ADDRESS PEER PORT COUNT    the other end, with 200 rounds of ping-pong on each
//! selftest watch ADDRESS SECONDS COMMAND   what is heard of a connection after a shell COMMAND, for so many seconds
//! ```
//!
//! `serve` and `call` keep in step over a TCP connection to PORT + 1.
//!
//! Prints a line for each check; status 1 when one failed, 77 when verbs cannot be used here.

mod checks;

use checks::{Bed, Failed, Side};
use netacc_verbs::{Host, Loader, Verbs};
use std::ffi::c_int;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

const ROUNDS: u32 = 200;
/// Where the libraries' descriptors are moved to, as the preload library does it.
const OUT_OF_THE_WAY: c_int = 500;

fn adopt(fd: c_int) -> c_int {
    if fd >= OUT_OF_THE_WAY {
        return fd;
    }
    // SAFETY: a descriptor of the libraries', which go on under the new number.
    unsafe {
        let high = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
        libc::close(fd);
        high
    }
}

/// How many descriptors stand where the application's do.
fn in_the_way() -> usize {
    // SAFETY: asks only.
    (0..OUT_OF_THE_WAY).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).count()
}

enum Task {
    All { address: IpAddr, port: u16 },
    Serve { address: IpAddr, port: u16, count: u32 },
    Watch { address: IpAddr, limit: Duration, command: String },
    Call { address: IpAddr, peer: SocketAddr, count: u32 },
}

fn task(arguments: &[String]) -> Option<Task> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Some(match words[..] {
        [address] => Task::All { address: address.parse().ok()?, port: 0 },
        ["serve", address, port, count] => {
            Task::Serve { address: address.parse().ok()?, port: port.parse().ok()?, count: count.parse().ok()? }
        }
        ["watch", address, seconds, command] => Task::Watch {
            address: address.parse().ok()?,
            limit: Duration::from_secs(seconds.parse().ok()?),
            command: command.into(),
        },
        ["call", address, peer, port, count] => Task::Call {
            address: address.parse().ok()?,
            peer: SocketAddr::new(peer.parse().ok()?, port.parse().ok()?),
            count: count.parse().ok()?,
        },
        [address, port] => Task::All { address: address.parse().ok()?, port: port.parse().ok()? },
        _ => return None,
    })
}

fn said(name: &str, result: &Result<String, Failed>) -> usize {
    match result {
        Ok(said) => println!("ok   {name}: {said}"),
        Err(why) => println!("FAIL {name}: {why}"),
    }
    usize::from(result.is_err())
}

/// Says that this end has come so far, and waits for the other.
fn step(steps: &mut TcpStream) -> Result<(), Failed> {
    let mut byte = [0];
    steps.write_all(&byte).and_then(|()| steps.read_exact(&mut byte)).map_err(|e| format!("the other end: {e}"))
}

fn run(verbs: Verbs, task: Task) -> Result<usize, Failed> {
    match task {
        Task::All { address, port } => {
            let before = in_the_way();
            let (x, y) = (Side::open(verbs, address, 1)?, Side::open(verbs, address, 2)?);
            // Time passes by itself.
            let bed = Bed::new(x, y, port, ROUNDS, |_| ())?;
            let left = match in_the_way() - before {
                0 => Ok("all were moved out of the way".into()),
                n => Err(format!("{n} stand where the application's do")),
            };
            let mut failed = said("descriptors", &left);
            failed += checks::all(&bed, |name, result| {
                said(name, result);
            });
            if failed == 0 {
                failed += said("close", &bed.close().map(|()| "everything is closed".into()));
            }
            Ok(failed)
        }
        Task::Watch { address, limit, command } => {
            let (x, y) = (Side::open(verbs, address, 1)?, Side::open(verbs, address, 2)?);
            let bed = Bed::new(x, y, 0, 1, |_| ())?;
            // Not waited for: removing a device waits for us to let go of it.
            let mut child = None;
            let run = || child = std::process::Command::new("sh").arg("-c").arg(&command).spawn().ok();
            let failed = said("watch", &checks::watch(bed, run, limit));
            println!("{command}: {:?}", child.map(|mut child| child.wait()));
            Ok(failed)
        }
        Task::Serve { address, port, count } => {
            let side = Side::open(verbs, address, 1)?;
            let listener = TcpListener::bind((address, port + 1)).map_err(|e| e.to_string())?;
            println!("listening");
            let mut steps = listener.accept().map_err(|e| e.to_string())?.0;
            let failed = said("serve", &checks::serve(&side, port, count, &mut || step(&mut steps)));
            if failed == 0 { side.close().map(|()| 0) } else { Ok(failed) }
        }
        Task::Call { address, peer, count } => {
            let side = Side::open(verbs, address, 1)?;
            let steps = TcpStream::connect((peer.ip(), peer.port() + 1));
            let mut steps = steps.map_err(|e| e.to_string())?;
            let failed = said("call", &checks::call(&side, peer, count, ROUNDS, &mut || step(&mut steps)));
            if failed == 0 { side.close().map(|()| 0) } else { Ok(failed) }
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(task) = task(&arguments) else {
        eprintln!(
            "usage: selftest ADDRESS [PORT] | serve ADDRESS PORT COUNT | call ADDRESS PEER PORT COUNT | watch ADDRESS SECONDS COMMAND"
        );
        return ExitCode::from(2);
    };
    let verbs = match Verbs::load(Host { loader: Loader::LIBC, adopt, release: |_| () }) {
        Ok(verbs) => verbs,
        Err(e) => {
            println!("SKIPPED: {e}");
            return ExitCode::from(77);
        }
    };
    match run(verbs, task) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            println!("FAIL {why}");
            ExitCode::FAILURE
        }
    }
}
