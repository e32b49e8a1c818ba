//! What the rdma path needs of a verbs provider, tried on the device that has ADDRESS.
//!
//! ```text
//! selftest ADDRESS [PORT]                  both ends in this process, all checks
//! selftest serve ADDRESS PORT COUNT        one end of COUNT connections, one after the other
//! selftest call ADDRESS PEER PORT COUNT    the other end, with 200 rounds of ping-pong on each
//! selftest watch ADDRESS SECONDS COMMAND   what is heard of a connection after a shell COMMAND, for so many seconds
//! selftest failing FUNCTION ADDRESS        both ends, and this C function fails whenever it is called
//! ```
//!
//! `serve` and `call` keep in step over a TCP connection to PORT + 1.
//!
//! Prints a line for each check; status 1 when one failed, 77 when verbs cannot be used here.

mod checks;

use checks::{Bed, Failed, Side};
use netacc_verbs::{Host, Loader, Verbs};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
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
    Failing { function: String, address: IpAddr },
    Watch { address: IpAddr, limit: Duration, command: String },
    Call { address: IpAddr, peer: SocketAddr, count: u32 },
}

fn task(arguments: &[String]) -> Option<Task> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Some(match words[..] {
        [address] => Task::All { address: address.parse().ok()?, port: 0 },
        ["serve", address, port, count] => Task::Serve {
            address: address.parse().ok()?,
            port: port.parse().ok()?,
            count: count.parse().ok()?,
        },
        ["failing", function, address] => {
            Task::Failing { function: function.into(), address: address.parse().ok()? }
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

/// The function that fails.
static FAILING: OnceLock<CString> = OnceLock::new();
/// How often it has.
static FAILED: AtomicU32 = AtomicU32::new(0);

/// As functions that return 0 or -1 fail.
unsafe extern "C" fn fails() -> c_int {
    FAILED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    -1
}

/// As functions that return an object fail.
unsafe extern "C" fn fails_to_make() -> *mut c_void {
    // SAFETY: counts, and sets errno.
    unsafe { fails() };
    std::ptr::null_mut()
}

unsafe extern "C" fn symbol(library: *mut c_void, name: *const c_char) -> *mut c_void {
    const OBJECTS: [&CStr; 6] = [
        c"ibv_alloc_pd",
        c"ibv_reg_mr",
        c"ibv_create_comp_channel",
        c"ibv_create_cq",
        c"ibv_create_qp",
        c"rdma_create_event_channel",
    ];
    // SAFETY: the loader passes C strings.
    let wanted = unsafe { CStr::from_ptr(name) };
    match FAILING.get() {
        Some(failing) if failing.as_c_str() == wanted && OBJECTS.contains(&wanted) => {
            fails_to_make as *mut c_void
        }
        Some(failing) if failing.as_c_str() == wanted => fails as *mut c_void,
        // SAFETY: as the loader calls it.
        _ => unsafe { libc::dlsym(library, name) },
    }
}

/// An error says which call failed, and how; nothing is waited for that cannot come.
fn failing(verbs: Verbs, function: &str, address: IpAddr) -> usize {
    let life = || {
        let bed =
            Bed::new(Side::open(verbs, address, 1)?, Side::open(verbs, address, 2)?, 0, 1, |_| ())?;
        checks::life(&bed)?;
        bed.close()
    };
    let result: Result<(), Failed> = life();
    let count = FAILED.load(Ordering::Relaxed);
    let text = format!("{function} failed {count} times: {result:?}");
    // Optional ones may fail: how long to be patient, what fork does, whether immediates are known,
    // cleaning up.
    let may = [
        "rdma_set_option",
        "ibv_is_fork_initialized",
        "ibv_modify_qp",
        "ibv_destroy_qp",
        "ibv_get_cq_event",
    ];
    let may = may.contains(&function);
    let reported = match &result {
        Ok(()) => count == 0 || may,
        Err(why) => count > 0 && why.contains("12)"),
    };
    said("failing", &if reported { Ok(text) } else { Err(text) })
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
    steps
        .write_all(&byte)
        .and_then(|()| steps.read_exact(&mut byte))
        .map_err(|e| format!("the other end: {e}"))
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
        Task::Failing { function, address } => Ok(failing(verbs, &function, address)),
        Task::Watch { address, limit, command } => {
            let (x, y) = (Side::open(verbs, address, 1)?, Side::open(verbs, address, 2)?);
            let bed = Bed::new(x, y, 0, 1, |_| ())?;
            // Not waited for: removing a device waits for us to let go of it.
            let mut child = None;
            let run =
                || child = std::process::Command::new("sh").arg("-c").arg(&command).spawn().ok();
            let failed = said("watch", &checks::watch(bed, run, limit));
            println!("{command}: {:?}", child.map(|mut child| child.wait()));
            Ok(failed)
        }
        Task::Serve { address, port, count } => {
            let side = Side::open(verbs, address, 1)?;
            let listener = TcpListener::bind((address, port + 1)).map_err(|e| e.to_string())?;
            println!("listening");
            let mut steps = listener.accept().map_err(|e| e.to_string())?.0;
            let failed =
                said("serve", &checks::serve(&side, port, count, &mut || step(&mut steps)));
            if failed == 0 { side.close().map(|()| 0) } else { Ok(failed) }
        }
        Task::Call { address, peer, count } => {
            let side = Side::open(verbs, address, 1)?;
            let steps = TcpStream::connect((peer.ip(), peer.port() + 1));
            let mut steps = steps.map_err(|e| e.to_string())?;
            let failed =
                said("call", &checks::call(&side, peer, count, ROUNDS, &mut || step(&mut steps)));
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
    if let Task::Failing { function, .. } = &task
        && let Ok(name) = CString::new(function.as_str())
    {
        FAILING.get_or_init(|| name);
    }
    let loader = Loader { symbol, ..Loader::LIBC };
    let verbs = match Verbs::load(Host { loader, adopt, release: |_| () }) {
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
