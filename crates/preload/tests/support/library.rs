//! Where the shared object under test is.

use std::path::PathBuf;
use std::process::Command;

/// `$NETACC_LIB`, or the library that cargo builds beside this test program.
pub fn path() -> PathBuf {
    if let Some(path) = std::env::var_os("NETACC_LIB") {
        return path.into();
    }
    let program = std::env::current_exe().unwrap();
    let profile = program.ancestors().nth(2).unwrap().to_path_buf();
    // A cdylib is not built for the sake of an integration test.
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--package", "netacc-preload"])
        // As the profile says, whatever the environment makes of the tests.
        .args(["--config", "profile.dev.panic='abort'", "--target-dir"])
        .arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(
        output.status.success(),
        "the library does not build: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    profile.join("libnetacc_preload.so")
}
