//! The scenarios, by subject. Each is written as an ordinary program would be; nothing in them knows of the library.

pub mod close;
pub mod connect;
pub mod data;
pub mod epoll;
pub mod fds;
pub mod options;
pub mod poll;
pub mod process;
pub mod threads;
