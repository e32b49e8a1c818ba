//! `netacc doctor PROGRAM` of what cannot be started, or only without the library; each program is
//! a real one.

mod support;

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use support::doctor::{doctor, finding, line_of, mend, says, told};
use support::{HELLO, Scratch, run};

/// A program is in the way: what it says, and a part of what mends it, in words or as a command.
fn is_in_the_way(scratch: &Scratch, library: &Path, program: &Path, found: &str, remedy: &str) {
    let (told, status) = told(&mut doctor(library), &[program]);
    assert_eq!((status, &told["verdict"]), (Some(1), &"obstructed".into()), "{told:#}");
    let problem = finding(&told, "program", "problem");
    says(problem, &found.replace("DIR", scratch.path("").to_str().unwrap()));
    let words = problem["remedy"].as_str().unwrap();
    let is = words.contains(remedy) || line_of(problem).1.contains(remedy);
    assert!(is, "{remedy}: {problem}");
}

/// As that; and the command that is named mends it, after which that program is clear.
fn is_mended(scratch: &Scratch, library: &Path, program: &Path, clear: &Path) {
    let problem = told(&mut doctor(library), &[program]).0;
    mend(finding(&problem, "program", "problem"), &scratch.path(""));
    let (told, status) = told(&mut doctor(library), &[clear]);
    assert_eq!((status, &told["verdict"]), (Some(0), &"clear".into()), "{told:#}");
}

/// What a script's first line cannot be followed for.
#[test]
fn a_script_whose_interpreter_is_missing_is_in_the_way() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let held = scratch.write("held", "#!/bin/sh\n");
    std::fs::set_permissions(&held, std::fs::Permissions::from_mode(0o644)).unwrap();
    let path = |name: &str| scratch.path(name).display().to_string();
    let by_held = format!("#!{}\n", path("held"));
    let itself = format!("#!{}\n", path("itself"));
    for (name, text, found, remedy) in [
        (
            "direct",
            "#!/nowhere/no-such-one -u\n",
            "/nowhere/no-such-one, which its first line names, does not",
            "head -n 1 ",
        ),
        (
            "env",
            "#!/usr/bin/env no-such-one\n",
            "no-such-one, which its first line has env",
            "PATH",
        ),
        ("split", "#!/usr/bin/env -S A=1 no-such-one -u\n", "no-such-one, which its first", "PATH"),
        ("option", "#!/usr/bin/env sh -u\n", "sh -u, which its first line has env", "env -S"),
        ("elsewhere", "#!/nowhere/sh -u\n", "/nowhere/sh, which its first", "'1s|/nowhere/sh|"),
        (
            "returns",
            "#!/bin/sh\r\necho\r\n",
            "ends in a carriage return",
            "sed -i --follow-symlinks '1s/\\r$//' ",
        ),
        (
            "env-returns",
            "#!/usr/bin/env sh\r\n",
            "ends in a carriage return",
            "sed -i --follow-symlinks '1s/",
        ),
        ("by-held", &by_held, "held, which its first line names, has no execute bit", "chmod +x "),
        ("itself", &itself, "more than the kernel follows", "head -n 1 "),
        (
            "clears",
            "#!/usr/bin/env -S -i /bin/sh\n",
            "has env start it without LD_PRELOAD",
            "no -i",
        ),
    ] {
        let script = scratch.script(name, text);
        is_in_the_way(&scratch, &library, &script, found, remedy);
    }
    is_in_the_way(&scratch, &library, &held, "held cannot be started: it has no", "chmod +x ");
    for name in ["elsewhere", "returns", "env-returns"] {
        let script = scratch.path(name);
        is_mended(&scratch, &library, &script, &script);
    }
    is_mended(&scratch, &library, &scratch.path("by-held"), &held);
    // What it names by way of env has to be whole, too.
    let found = scratch.script("found", "#!/usr/bin/env -S -u HOME sh -u\n");
    let (told, status) = told(&mut doctor(&library), &[found]);
    assert_eq!(status, Some(0), "{told:#}");
    says_ok(&told, ", run by /");
}

fn says_ok(told: &serde_json::Value, text: &str) {
    let found = finding(told, "program", "ok")["found"].as_str().unwrap();
    assert!(found.contains(text), "{found}");
}

#[test]
fn a_program_that_is_not_whole_is_in_the_way() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let hello = scratch.compile("hello", HELLO, &[]).unwrap();
    let whole = std::fs::read(&hello).unwrap();
    let write = |name: &str, bytes: &[u8]| -> PathBuf {
        let file = scratch.script(name, "");
        std::fs::write(&file, bytes).unwrap();
        file
    };
    for length in [4, 10, 63, 100, 200] {
        let file = write(&format!("cut-{length}"), &whole[..length]);
        is_in_the_way(&scratch, &library, &file, "it is a damaged ELF file", "copy it again");
    }
    for length in [2000, 8000] {
        let file = write(&format!("cut-{length}"), &whole[..length]);
        let found = format!("it is cut off: it has {length} bytes, and needs ");
        is_in_the_way(&scratch, &library, &file, &found, "copy it again");
    }
    let garbage: Vec<u8> =
        b"\x7fELF".iter().copied().chain((0..200).map(|n: u8| n.wrapping_mul(7))).collect();
    is_in_the_way(&scratch, &library, &write("garbage", &garbage), "damaged", "copy it again");
    if let Some(object) = scratch.compile("object.o", HELLO, &["-c"]) {
        std::fs::set_permissions(&object, std::fs::Permissions::from_mode(0o755)).unwrap();
        is_in_the_way(&scratch, &library, &object, "an ELF file, but no program", "od -A d");
    }
    // A script is as whole as what runs it.
    let script = scratch.script("script", &format!("#!{}\n", scratch.path("cut-8000").display()));
    is_in_the_way(&scratch, &library, &script, "cut-8000, which its first line names", "copy");
    // (An empty file is one for the shell.)
    let (told, status) = told(&mut doctor(&library), &[scratch.script("empty", "")]);
    assert_eq!(status, Some(0), "{told:#}");
}

#[test]
fn a_loader_that_is_missing_or_musl_s_is_in_the_way() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let with = |name: &str, loader: &str| {
        scratch.compile(name, HELLO, &[&format!("-Wl,--dynamic-linker={loader}")]).unwrap()
    };
    let program = with("missing", "/nowhere/ld-linux-x86-64.so.2");
    let found = "/nowhere/ld-linux-x86-64.so.2, its dynamic loader, does not exist";
    is_in_the_way(&scratch, &library, &program, found, "install the program built for");
    // Of another machine's program that is no news.
    let other = scratch.script("other", "");
    let mut bytes = std::fs::read(&program).unwrap();
    bytes[18] = 183; // AArch64
    std::fs::write(&other, bytes).unwrap();
    is_in_the_way(&scratch, &library, &other, "it is made for AArch64", "install the program for");
    // By its own name, and by glibc's.
    let musl = scratch.script("libc.musl-x86_64.so.1", "");
    let program = with("musl", musl.to_str().unwrap());
    is_in_the_way(&scratch, &library, &program, "libc.musl-x86_64.so.1", "instead of Alpine");
    let link = scratch.path("ld-linux-x86-64.so.2");
    symlink(&musl, &link).unwrap();
    let program = with("link", link.to_str().unwrap());
    is_in_the_way(&scratch, &library, &program, "its dynamic loader is ", "instead of Alpine");
}

#[test]
fn privileges_count_of_what_runs_a_script_and_not_of_the_script() {
    let scratch = Scratch::new();
    let library = scratch.library();
    // (Who may not give a file away cannot make such a program.)
    let nobody = Some(65534);
    let script = scratch.script("script", "#!/bin/sh\n");
    if chown(&script, nobody, None).is_err() {
        return;
    }
    let raise = |file: &Path| {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o4755)).unwrap();
    };
    raise(&script);
    let (told, status) = told(&mut doctor(&library), &[script]);
    assert_eq!(status, Some(0), "{told:#}");
    let hello = scratch.compile("hello", HELLO, &[]).unwrap();
    chown(&hello, nobody, None).unwrap();
    raise(&hello);
    for (name, line) in
        [("direct", ""), ("env", "/usr/bin/env "), ("split", "/usr/bin/env -S A=1 ")]
    {
        let script = scratch.script(name, &format!("#!{line}{}\n", hello.display()));
        is_in_the_way(
            &scratch,
            &library,
            &script,
            "hello runs unaccelerated: it is set-",
            "bin/hello",
        );
    }
    is_mended(&scratch, &library, &hello, &scratch.path("bin/hello"));
}

#[test]
fn a_directory_is_no_program() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let directory = scratch.path("");
    let (told, status) = told(&mut doctor(&library), &[&directory]);
    assert_eq!((status, &told["verdict"]), (Some(2), &"unknown".into()), "{told:#}");
    let problem = finding(&told, "program", "problem");
    says(problem, "is not a file that can be run");
    assert!(line_of(problem).1.starts_with("ls -l "), "{problem}");
    // (Nor does PATH find one.)
    let name = directory.parent().unwrap().file_name().unwrap();
    let ran = run(doctor(&library).env("PATH", directory.parent().unwrap()).arg(name));
    assert_eq!(ran.status, Some(2), "{}", ran.out);
}
