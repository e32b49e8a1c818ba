//! Where a tool cannot say what it has to say, it ends with a status and a word.

use std::process::Command;

/// What each of them prints is something on any host.
const WORDS: [&str; 6] = [
    "netacc ps",
    "netacc ps --json",
    "netacc metrics",
    "netacc trace list",
    "netacc cfg list",
    "netacc_ss",
];

fn status_and_words(shell: &str) -> Vec<(String, Option<i32>, String)> {
    let netacc = env!("CARGO_BIN_EXE_netacc");
    let ss = env!("CARGO_BIN_EXE_netacc_ss");
    let run = |words: &str| {
        let mut words = words.split(' ');
        let program = if words.next() == Some("netacc") { netacc } else { ss };
        let all: Vec<&str> = words.collect();
        let output = Command::new("sh")
            .args(["-c", &format!("\"$0\" \"$@\" {shell}"), program])
            .args(&all)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (format!("{program} {all:?}"), output.status.code(), said)
    };
    WORDS.iter().map(|words| run(words)).collect()
}

#[test]
fn a_full_disk_is_said() {
    for (words, status, said) in status_and_words(">/dev/full") {
        assert_eq!(status, Some(1), "{words}: {said}");
        assert!(said.contains("standard output: No space left"), "{words}: {said}");
    }
}

#[test]
fn a_closed_one_is_said() {
    for (words, status, said) in status_and_words(">&-") {
        assert_eq!(status, Some(1), "{words}: {said}");
        assert!(said.contains("standard output: Bad file descriptor"), "{words}: {said}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    for (words, _, said) in status_and_words("| true") {
        assert_eq!(said, "", "{words}");
    }
}
