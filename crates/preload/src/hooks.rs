//! The hooked symbols, by family. `docs/hooks.md` says for each why it is here.

mod epoll;
mod fd;
mod io;
mod message;
mod poll;
mod process;
mod socket;
mod stdio;
mod syscall;
mod time;
