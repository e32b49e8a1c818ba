//! The scenarios, by subject. Each is written as an ordinary program would be; nothing in them
//! knows of the library.

pub mod adopt;
pub mod calls;
pub mod cancelled;
pub mod close;
pub mod connect;
pub mod data;
pub mod ends;
pub mod epoll;
pub mod exhausted;
pub mod fds;
pub mod hosts;
pub mod leaving;
pub mod left;
pub mod listens;
pub mod lives;
pub mod looks;
pub mod looks_ends;
pub mod memory;
pub mod options;
pub mod outgrown;
pub mod poll;
pub mod process;
pub mod promotion;
pub mod raw;
pub mod rendezvous;
pub mod rights;
pub mod rings;
pub mod sets;
pub mod signals;
pub mod threads;
pub mod unread;
