//! Every structure and constant of [`super`] against the installed C headers, by a small C program.
//!
//! Skipped, with a line that says so, where there is no C compiler or no header (`libibverbs-dev`,
//! `librdmacm-dev`); with `NETACC_NEED_VERBS_HEADERS` set that is a failure.

use super::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::prelude::rust_2024::*;
use std::process::Command;
use std::{env, format, fs, process};

pub(crate) struct Structure {
    pub(crate) name: &'static str,
    pub(crate) whole: bool,
    pub(crate) size: usize,
    pub(crate) fields: &'static [(&'static str, usize, usize)],
}

/// Ours alone: parts of C's unions.
const NOT_IN_C: &[&str] = &["ibv_send_wr_rdma"];
/// Unions in C, of which we declare one arm: their size is C's business.
const UNIONS: &[(&str, &str)] = &[("ibv_send_wr", "wr"), ("rdma_cm_event", "param")];

fn program() -> String {
    let mut c = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <rdma/rdma_cma.h>\n#include <infiniband/verbs.h>\nint main(void) {\n",
    );
    for s in STRUCTURES.iter().filter(|s| !NOT_IN_C.contains(&s.name)) {
        let name = s.name;
        writeln!(c, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        for (field, ..) in s.fields.iter().filter(|f| f.0 != "_tail") {
            writeln!(
                c,
                "printf(\"{name}.{field} %zu %zu\\n\", offsetof(struct {name}, {field}), sizeof(((struct {name}*)0)->{field}));"
            )
            .unwrap();
        }
    }
    for (name, _) in CONSTANTS {
        writeln!(c, "printf(\"{name} %d\\n\", (int){name});").unwrap();
    }
    c.push_str(
        "printf(\"rkey %zu\\n\", offsetof(struct ibv_send_wr, wr.rdma.rkey));\nreturn 0; }\n",
    );
    c
}

/// What the headers say: name → numbers. `None`: no headers or no compiler here.
fn from_headers() -> Option<BTreeMap<String, Vec<usize>>> {
    let dir: PathBuf = env::temp_dir().join(format!("netacc-verbs-layout-{}", process::id()));
    fs::create_dir_all(&dir).unwrap();
    let (source, binary) = (dir.join("layout.c"), dir.join("layout"));
    fs::write(&source, program()).unwrap();
    let includes = "#include <rdma/rdma_cma.h>\n#include <infiniband/verbs.h>\n";
    fs::write(dir.join("probe.c"), includes).unwrap();
    let probe = Command::new("cc").arg("-fsyntax-only").arg(dir.join("probe.c")).output();
    let found = matches!(&probe, Ok(o) if o.status.success());
    let out = found.then(|| {
        let cc = Command::new("cc").arg("-w").arg("-o").arg(&binary).arg(&source).output().unwrap();
        assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
        Command::new(&binary).output().unwrap()
    });
    fs::remove_dir_all(&dir).unwrap();
    let text = String::from_utf8(out?.stdout).unwrap();
    Some(
        text.lines()
            .map(|l| {
                let mut words = l.split(' ');
                let name = words.next().unwrap().to_string();
                (name, words.map(|n| n.parse().unwrap()).collect())
            })
            .collect(),
    )
}

#[test]
fn structures_and_constants_are_those_of_the_c_headers() {
    let Some(c) = from_headers() else {
        assert!(
            env::var_os("NETACC_NEED_VERBS_HEADERS").is_none(),
            "no C compiler, or no headers of libibverbs and librdmacm"
        );
        std::eprintln!("SKIPPED: no C compiler, or no headers (libibverbs-dev, librdmacm-dev)");
        return;
    };
    let mut compared = 0;
    for s in STRUCTURES.iter().filter(|s| !NOT_IN_C.contains(&s.name)) {
        let size = c[s.name][0];
        if s.whole {
            assert_eq!(s.size, size, "size of {}", s.name);
        } else {
            assert!(s.size <= size.next_multiple_of(8), "{} is longer than C's", s.name);
        }
        for (field, offset, bytes) in s.fields.iter().filter(|f| f.0 != "_tail") {
            let there = &c[&format!("{}.{field}", s.name)];
            assert_eq!(*offset, there[0], "offset of {}.{field}", s.name);
            if !UNIONS.contains(&(s.name, field)) {
                assert_eq!(*bytes, there[1], "size of {}.{field}", s.name);
            }
            compared += 1;
        }
    }
    for (name, value) in CONSTANTS {
        assert_eq!(c[*name], [*value as usize], "{name}");
        compared += 1;
    }
    assert_eq!(core::mem::offset_of!(ibv_send_wr, wr.rkey), c["rkey"][0], "wr.rdma.rkey");
    assert!(
        size_of::<QpAttr>() >= c["ibv_qp_attr"][0],
        "C would read or write past our ibv_qp_attr"
    );
    assert!(compared > 200, "the program printed {compared} lines");
}
