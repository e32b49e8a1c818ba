//! A number that an option does not take is answered by those that it does take.

mod support;

use std::process::Command;
use support::run;

#[test]
fn each_option_says_which_numbers_it_takes() {
    const PORT: &str = "valid: a whole number from 1 to 65535";
    const ONE: &str = "valid: a whole number from 1 to 4294967295";
    for (words, name, valid) in [
        ("ss --port", "--port", PORT),
        ("capture -p 1 -w x --port", "--port", PORT),
        ("capture -p 1 -w x -c", "-c", ONE),
        ("trace show --port", "--port", PORT),
        ("trace show --last", "--last", "valid: a whole number from 0 to 4294967295"),
        ("ss -w 1 -n", "-n", ONE),
        ("ps -w 1 -n", "-n", ONE),
        ("bench --rounds", "--rounds", ONE),
        ("bench -c", "--connections", "valid: a whole number from 1 to 60000"),
        ("bench -t", "--threads", "valid: a whole number from 1 to 1024"),
        ("bench -P", "--pipeline", "valid: a whole number from 1 to 65536"),
        ("bench --idle-connections", "--idle-connections", "from 1 to 60000"),
        ("bench --load", "--load", "valid: a whole number from 0 to 4294967295"),
        ("bench --seconds", "--seconds", "valid: 0 to 86400 seconds"),
        ("bench --size", "--size", "valid: 8 bytes to 64M"),
    ] {
        for value in ["99999999999", "1.5x", "-1"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_netacc"));
            let ran = run(command.args(words.split(' ')).arg(value));
            let is_size = name == "--size" && value != "99999999999";
            let valid = if is_size { "is not a size (examples: 64, 128K, 1M)" } else { valid };
            assert_eq!((ran.status, ran.out.as_str()), (Some(2), ""), "{words} {value}");
            let first = ran.err.lines().next().unwrap_or_default();
            let says = first.contains(&format!("'{value}'")) && first.contains(name);
            assert!(says && first.ends_with(valid), "{words} {value}: {}", ran.err);
        }
    }
}
