//! Processes and signals.

use super::*;

pub fn fork() -> Result<libc::pid_t, E> {
    fd_of(call!(libc::fork()))
}

pub fn exit_now(status: c_int) -> ! {
    // SAFETY: _exit does not return.
    unsafe { libc::_exit(status) }
}

/// Waits for a child; `Ok(status)` as a shell would show it (128 + signal when killed).
pub fn wait_child(pid: libc::pid_t) -> Result<i32, E> {
    let mut status = 0;
    loop {
        match call!(libc::waitpid(pid, &mut status, 0)) {
            Err(E(libc::EINTR)) => {}
            Err(e) => return Err(e),
            Ok(_) if libc::WIFEXITED(status) => return Ok(libc::WEXITSTATUS(status)),
            Ok(_) => return Ok(128 + libc::WTERMSIG(status)),
        }
    }
}

pub fn getppid() -> libc::pid_t {
    // SAFETY: getppid cannot fail.
    unsafe { libc::getppid() }
}

pub fn getpid() -> libc::pid_t {
    // SAFETY: getpid cannot fail.
    unsafe { libc::getpid() }
}

/// Whether a process, its first thread, sleeps.
pub fn is_asleep(pid: libc::pid_t) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") S "))
}

/// A process that has not ended.
pub fn exists(pid: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

pub fn gettid() -> libc::pid_t {
    // SAFETY: gettid cannot fail.
    unsafe { libc::gettid() }
}

pub fn kill(pid: libc::pid_t, signal: c_int) -> R {
    call!(libc::kill(pid, signal))
}

/// Whether each thread of a process stands still.
pub fn is_stopped(pid: libc::pid_t) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
    tasks.flatten().all(|task| {
        std::fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") T "))
    })
}

/// Sends a signal to one thread of this process.
pub fn tgkill(tid: libc::pid_t, signal: c_int) -> R {
    call!(libc::syscall(libc::SYS_tgkill, getpid(), tid, signal))
}

pub fn sigset(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: all-zero is a valid sigset_t; the functions only write to it.
    let mut set: libc::sigset_t = unsafe { zeroed() };
    for &signal in signals {
        // SAFETY: `set` is a live sigset_t.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

pub fn block_signals(signals: &[c_int]) -> R {
    let set = sigset(signals);
    call!(libc::pthread_sigmask(libc::SIG_BLOCK, &set, null_mut()))
}

pub fn unblock_signals(signals: &[c_int]) -> R {
    let set = sigset(signals);
    call!(libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, null_mut()))
}

pub fn on_signal(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) -> R {
    // SAFETY: all-zero is a valid sigaction.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags;
    call!(libc::sigaction(signal, &action, null_mut()))
}

pub fn ignore_signal(signal: c_int) {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

pub fn default_signal(signal: c_int) {
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

fn c_strings(list: &[&str]) -> (Vec<CString>, Vec<*const c_char>) {
    let strings: Vec<CString> = list.iter().map(|s| CString::new(*s).unwrap_or_default()).collect();
    let mut pointers: Vec<*const c_char> = strings.iter().map(|s| s.as_ptr()).collect();
    pointers.push(null());
    (strings, pointers)
}

/// Replaces the process; the environment is passed on, or is without LD_PRELOAD.
pub fn exec(path: &str, args: &[&str], keep_preload: bool) -> E {
    let program = CString::new(path).unwrap_or_default();
    let (_strings, argv) = c_strings(args);
    if keep_preload {
        let _ = call!(libc::execv(program.as_ptr(), argv.as_ptr()));
        return errno();
    }
    let env: Vec<String> = std::env::vars()
        .filter(|(k, _)| k != "LD_PRELOAD")
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    let env: Vec<&str> = env.iter().map(String::as_str).collect();
    let (_env_strings, envp) = c_strings(&env);
    let _ = call!(libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()));
    errno()
}

/// `posix_spawn` of a program that gets `close` fds closed by file actions, stdout on `out`.
pub fn spawn(path: &str, args: &[&str], close: &[Fd], out: Fd) -> Result<libc::pid_t, E> {
    let program = CString::new(path).unwrap_or_default();
    let (_strings, argv) = c_strings(args);
    let env: Vec<String> = std::env::vars().map(|(k, v)| format!("{k}={v}")).collect();
    let env: Vec<&str> = env.iter().map(String::as_str).collect();
    let (_env_strings, envp) = c_strings(&env);
    // SAFETY: posix_spawn_file_actions_init initialises it below.
    let mut actions: libc::posix_spawn_file_actions_t = unsafe { zeroed() };
    let _ = call!(libc::posix_spawn_file_actions_init(&mut actions));
    for &fd in close {
        let _ = call!(libc::posix_spawn_file_actions_addclose(&mut actions, fd));
    }
    let _ = call!(libc::posix_spawn_file_actions_adddup2(&mut actions, out, 1));
    let mut pid = 0;
    let rc = call!(libc::posix_spawn(
        &mut pid,
        program.as_ptr(),
        &actions,
        null(),
        argv.as_ptr().cast(),
        envp.as_ptr().cast()
    ))?;
    let _ = call!(libc::posix_spawn_file_actions_destroy(&mut actions));
    if rc == 0 { Ok(pid) } else { Err(E(rc as i32)) }
}

/// A vfork child closes `close` and dup2()s `from` over `over`.
pub fn vfork_child_closing(close: Fd, from: Fd, over: Fd) -> Result<i32, E> {
    // SAFETY: plain fd calls; the fd table is the child's own.
    vfork_child(&|| unsafe { libc::close(close) == 0 && libc::dup2(from, over) >= 0 })
}

/// A vfork child sets its group, to what it is.
pub fn vfork_child_setting_group() -> Result<i32, E> {
    // SAFETY: setgid(2) and getgid(2).
    vfork_child(&|| unsafe { libc::setgid(libc::getgid()) == 0 })
}

/// A vfork child does that to its descriptors, and becomes a shell, whose output goes to `out`.
pub fn vfork_child_shell(
    script: &str,
    out: Fd,
    before: &dyn Fn() -> bool,
) -> Result<libc::pid_t, E> {
    let (_strings, argv) = c_strings(&["sh", "-c", script]);
    begin_vfork_child(&|| {
        // SAFETY: a plain fd call.
        let given = unsafe { libc::dup2(out, 1) >= 0 };
        // SAFETY: C strings that the suspended parent keeps.
        given && before() && unsafe { libc::execv(c"/bin/sh".as_ptr(), argv.as_ptr()) == 0 }
    })
}

fn vfork_child(body: &dyn Fn() -> bool) -> Result<i32, E> {
    wait_child(begin_vfork_child(body)?)
}

/// A child on its own stack that shares our memory but not our fd table, and suspends us until it
/// exits, or becomes another program: what `vfork` does, in a form that Rust may call. How it ends:
/// 0 if `body` says so.
fn begin_vfork_child(body: &dyn Fn() -> bool) -> Result<libc::pid_t, E> {
    extern "C" fn child(argument: *mut c_void) -> c_int {
        // SAFETY: the parent is suspended and keeps `body` alive.
        let body = unsafe { *argument.cast::<&dyn Fn() -> bool>() };
        exit_now(c_int::from(!body()))
    }
    let mut stack = vec![0u128; 16 * 1024];
    // SAFETY: one past the end of the stack allocation.
    let top = unsafe { stack.as_mut_ptr().add(stack.len()) };
    fd_of(call!(libc::clone(
        child,
        top.cast(),
        libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
        (&raw const body).cast_mut().cast()
    )))
}

/// Sets the group of this process, to what it is: a change of rights for whoever does not look
/// closely.
pub fn set_own_group() -> R {
    // SAFETY: getgid(2).
    call!(libc::setgid(libc::getgid()))
}

pub fn geteuid() -> libc::uid_t {
    // SAFETY: geteuid cannot fail.
    unsafe { libc::geteuid() }
}

/// Only root may, and becomes root again so.
pub fn set_effective_user(user: libc::uid_t) -> R {
    // SAFETY: seteuid(2).
    call!(libc::seteuid(user))
}

/// For good: root is nobody special then.
pub fn set_user(user: libc::uid_t) -> R {
    // SAFETY: setuid(2).
    call!(libc::setuid(user))
}

pub fn unshare(flags: c_int) -> R {
    // SAFETY: unshare(2) takes flags only.
    call!(libc::unshare(flags))
}

pub fn setns(fd: Fd, kind: c_int) -> R {
    // SAFETY: setns(2).
    call!(libc::setns(fd, kind))
}

/// A further name of one of our own fds, by pidfd_getfd.
pub fn pidfd_getfd(fd: Fd) -> Result<Fd, E> {
    pidfd_getfd_of(getpid(), fd)
}

/// As [`pidfd_getfd`], of another process's.
pub fn pidfd_getfd_of(pid: i32, fd: Fd) -> Result<Fd, E> {
    let pidfd = fd_of(call!(libc::syscall(libc::SYS_pidfd_open, pid, 0)))?;
    let got = fd_of(call!(libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0)));
    let _ = close(pidfd);
    got
}

pub fn system(command: &str) -> i32 {
    let command = CString::new(command).unwrap_or_default();
    // SAFETY: a live C string.
    let status = unsafe { libc::system(command.as_ptr()) };
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}

pub fn clear_environment() {
    // SAFETY: the scenario that calls this is single-threaded.
    unsafe { libc::clearenv() };
}

pub fn exit_with_handlers(status: c_int) -> ! {
    // SAFETY: exit runs the process's own handlers and does not return.
    unsafe { libc::exit(status) }
}

/// From now on the end of this process takes some 10 ms for each of these: the kernel waits for all
/// who may be looking at a watch before it closes one (inotify(7); synchronize_srcu).
pub fn take_long_to_close(count: usize) {
    for _ in 0..count {
        // SAFETY: inotify_init1 takes no pointer.
        let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC) };
        // SAFETY: a path with its NUL.
        let watch = unsafe { libc::inotify_add_watch(fd, c"/".as_ptr(), libc::IN_DELETE_SELF) };
        assert!(watch >= 0, "inotify: {}", std::io::Error::last_os_error());
    }
}
