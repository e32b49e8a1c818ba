//! The hooked symbols, by family. `docs/hooks.md` says for each why it is here.

mod aio;
pub(crate) mod cancel;
#[macro_use]
mod epoll;
mod fd;
mod io;
mod message;
mod poll;
mod process;
mod rights;
mod signal;
mod socket;
mod stdio;
mod syscall;
mod time;
mod uring;
