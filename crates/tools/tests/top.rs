//! `netacc top` in terminals of several widths, and without one.

mod support;

use rustix::process::Signal;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use support::terminal::Terminal;
use support::top::Top;

#[test]
fn it_draws_itself_and_leaves_the_terminal_as_it_was() {
    for columns in [40, 60, 80, 120, 132, 200] {
        let mut top = Top::new(columns, &["-d", "0.1"]);
        top.shows(&["Program", "qquits"]);
        assert_eq!(top.text().contains("Container"), columns >= 120, "{columns}: {}", top.text());
        top.press("j s");
        top.shows(&["PAUSED"][..usize::from(columns > 80)]);
        top.press("q");
        assert_eq!(top.ended().code(), Some(0), "{}", top.text());
        assert!(top.has_restored(), "{}", top.text());
    }
    // A process that has no library; the key of Ctrl-C ends it as well.
    let mut top = Top::new(80, &["1", "-d", "3600"]);
    top.shows(&["noprocessthatmayberead", "qquits"]);
    top.press("\u{3}");
    assert_eq!(top.ended().code(), Some(0), "{}", top.text());
}

#[test]
fn a_terminal_may_change_its_size() {
    let mut top = Top::new(40, &["-d", "3600"]);
    top.shows(&["Program", "qquits"]);
    top.resize(200);
    top.shows(&["Container"]);
    top.resize(0);
    top.press("q");
    assert_eq!(top.ended().code(), Some(0), "{}", top.text());
}

#[test]
fn no_key_is_lost_while_the_size_changes() {
    for _ in 0..10 {
        let mut top = Top::new(80, &["-d", "3600"]);
        top.shows(&["Program", "qquits"]);
        let resize = |top: &Top| (0..50).for_each(|more| top.resize(100 + more));
        resize(&top);
        top.press("q");
        resize(&top);
        assert_eq!(top.ended().code(), Some(0), "{}", top.text());
    }
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_as_it_was() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut top = Top::new(80, &["-d", "3600"]);
        top.shows(&["Program", "qquits"]);
        let pid = rustix::process::Pid::from_child(&top.child);
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(top.ended().signal(), Some(signal.as_raw()), "{}", top.text());
        assert!(top.has_restored(), "{}", top.text());
    }
}

#[test]
fn a_terminal_that_cannot_be_drawn_on_gets_a_word_and_no_escape_sequence() {
    for term in [Some("dumb"), Some(""), None] {
        let terminal = Terminal::new(200);
        let mut command = Command::new(env!("CARGO_BIN_EXE_netacc"));
        match term {
            Some(term) => command.env("TERM", term),
            None => command.env_remove("TERM"),
        };
        // (That it ends by itself is its answer: nobody presses a key.)
        let command = command.args(["top", "-d", "3600"]).stdin(terminal.slave());
        let mut child = command.stdout(terminal.slave()).stderr(terminal.slave()).spawn().unwrap();
        let mut said = [0; 4096];
        let length = { &terminal.master }.read(&mut said).unwrap();
        let said = String::from_utf8_lossy(&said[..length]);
        assert!(said.starts_with("netacc top: this terminal cannot be drawn on"), "{said:?}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
        assert_eq!(child.wait().unwrap().code(), Some(2));
    }
}

#[test]
fn it_ends_when_its_terminal_is_gone() {
    let mut top = Top::new(80, &["-d", "3600"]);
    top.shows(&["Program", "qquits"]);
    // The reader ends at the next block, and then nobody has the other end.
    let (_tell, said) = mpsc::channel();
    drop(std::mem::replace(&mut top.said, said));
    top.press("s");
    top.keys = File::open("/dev/null").unwrap();
    let status = top.ended();
    assert_eq!(status.code(), Some(1), "{status}");
}

#[test]
fn without_a_terminal_it_says_what_does_the_same() {
    let output = Command::new(env!("CARGO_BIN_EXE_netacc"))
        .arg("top")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        said,
        "netacc top: this takes a terminal; for files and pipes there is netacc_ss -w 1\n"
    );
    for arguments in [&["0"][..], &["-d", "0"], &["x"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_netacc")).arg("top").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
