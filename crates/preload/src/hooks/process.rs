//! New programs and new processes.
//!
//! What a new program inherits goes back to the kernel's path before it starts; a connection that
//! was never attached may go on in the new program (`adoption/exec.rs` of core). fork runs the
//! handlers that the constructor registered. The hook of vfork, which cannot return twice, only
//! notes that there may be a child that shares this memory: the core tells it by its process id.

use super::{fd, stdio};
use crate::init;
use libc::{FILE, c_char, c_int, c_void, pid_t};
use netacc_control::stats::Reason;
use netacc_core::api::{self, Program};

type Arguments = *const *const c_char;

/// Calls that make another program of this process, which `$program` says, and their way on if they
/// fail.
macro_rules! becomes_program {
    ($($(#[$meta:meta])* $name:ident($($arg:ident: $ty:ty),*), $program:expr;)*) => {$(
        hook! {
            $(#[$meta])*
            unchecked fn $name($($arg: $ty),*) -> c_int |next| {
                api::before_exec_of(&$program);
                let result = next($($arg),*);
                api::exec_failed();
                result
            }
        }
    )*};
}

becomes_program! {
    /// `execve(2)`.
    execve(path: *const c_char, arguments: Arguments, environment: Arguments), file(path, environment);
    /// `execv(3)`.
    execv(path: *const c_char, arguments: Arguments), file(path, environ);
    /// `execvp(3)`.
    execvp(name: *const c_char, arguments: Arguments), found(name, environ);
    /// `execvpe(3)`.
    execvpe(name: *const c_char, arguments: Arguments, environment: Arguments), found(name, environment);
    /// `execveat(2)`.
    execveat(dir: c_int, path: *const c_char, arguments: Arguments, environment: Arguments, flags: c_int), Program { dir, flags, ..file(path, environment) };
    /// `fexecve(3)`.
    fexecve(fd: c_int, arguments: Arguments, environment: Arguments), Program { dir: fd, flags: libc::AT_EMPTY_PATH, ..file(c"".as_ptr(), environment) };
}

unsafe extern "C" {
    static environ: Arguments;
}

fn file(path: *const c_char, environment: Arguments) -> Program {
    Program { dir: libc::AT_FDCWD, path, flags: 0, search: None, environment }
}

/// Looked for where libc looks: in the folders that this process's own environment names.
fn found(name: *const c_char, environment: Arguments) -> Program {
    // SAFETY: a C string. (It only reads, as execvp does.)
    let folders = unsafe { libc::getenv(c"PATH".as_ptr()) };
    Program { search: Some(folders), ..file(name, environment) }
}

/// Calls that start a program, after `$before`.
macro_rules! starts_program {
    ($before:path: $($(#[$meta:meta])* $name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        hook! {
            $(#[$meta])*
            unchecked fn $name($($arg: $ty),*) -> c_int |next| {
                $before();
                next($($arg),*)
            }
        }
    )*};
}

// This process goes on.
starts_program! { api::before_spawn:
    /// `posix_spawn(3)`: the child runs inside libc.
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Arguments, environment: Arguments);
    /// `posix_spawnp(3)`.
    posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Arguments, environment: Arguments);
    /// `system(3)`: spawns inside libc.
    system(command: *const c_char);
    /// `wordexp(3)`: may spawn a shell inside libc.
    wordexp(words: *const c_char, expansion: *mut c_void, flags: c_int);
}

hook! {
    /// `posix_spawn_file_actions_adddup2(3)`: the child will hold the socket even if it is closed
    /// on exec here.
    unchecked fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int |next| {
        api::need_kernel(fd, Reason::InheritedByExec);
        next(actions, fd, new)
    }
}

/// `popen` and its alias.
macro_rules! popen {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        hook! {
            $(#[$meta])*
            unchecked fn $name(command: *const c_char, mode: *const c_char) -> *mut FILE |next| {
                api::before_spawn();
                stdio::opened(next(command, mode))
            }
        }
    )*};
}

popen! {
    /// `popen(3)`: spawns inside libc.
    popen;
    /// libc's older public name of `popen`.
    _IO_popen;
}

watch! {
    /// `execl(3)`.
    fn execl, before_exec
}
watch! {
    /// `execle(3)`.
    fn execle, before_exec
}
watch! {
    /// `execlp(3)`.
    fn execlp, before_exec
}

watch! {
    /// `vfork(2)`.
    fn vfork, before_vfork
}
watch! {
    /// libc's older public name of `vfork`.
    fn __vfork, before_vfork
}
watch! {
    /// `clone(2)`, which may share this memory.
    fn clone, before_vfork
}
watch! {
    /// libc's older public name of `clone`.
    fn __clone, before_vfork
}

watch! {
    /// `pidfd_spawn(3)`, since glibc 2.39.
    fn pidfd_spawn, before_spawn
}
watch! {
    /// `pidfd_spawnp(3)`, since glibc 2.39.
    fn pidfd_spawnp, before_spawn
}

watch! {
    /// `_exit(2)`.
    fn _exit, before_end
}
watch! {
    /// `_Exit(3)`.
    fn _Exit, before_end
}
watch! {
    /// `quick_exit(3)`.
    fn quick_exit, before_end
}

fn before_end(_first: usize) {
    api::before_end();
}

fn before_spawn(_first: usize) {
    api::before_spawn();
}

pub(super) fn before_vfork(_first: usize) {
    api::before_vfork();
}

fn before_exec(_first: usize) {
    api::before_exec();
}

hook! {
    /// `daemon(3)`: forks, with handlers, and puts /dev/null onto 0, 1 and 2 by private calls.
    unchecked fn daemon(keep_directory: c_int, keep_stdio: c_int) -> c_int |next| {
        api::before_daemon();
        let result = next(keep_directory, keep_stdio);
        if result == 0 && keep_stdio == 0 {
            fd::replaced_stdio();
        }
        result
    }
}
hook! {
    /// `forkpty(3)`: the child has the new terminal on 0, 1 and 2.
    unchecked fn forkpty(main: *mut c_int, name: *mut c_char, settings: *const c_void, size: *const c_void) -> pid_t |next| {
        let pid = next(main, name, settings, size);
        match pid {
            0 => fd::replaced_stdio(),
            1.. => api::on_new_fd(*main),
            _ => {}
        }
        pid
    }
}
hook! {
    /// `_Fork(3)`: a fork that runs no handlers, for signal handlers; the library's own can run
    /// there.
    unchecked fn _Fork() -> pid_t |next| {
        api::await_threads();
        init::fork_prepare();
        let pid = next();
        match pid {
            0 => init::fork_child(),
            _ => init::fork_parent(),
        }
        pid
    }
}
