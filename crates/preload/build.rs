//! Link options of the shared object.

fn main() {
    // Fork handlers, other threads and the addresses that programs took of hooks outlive any
    // dlclose.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
    // Everything is bound when the library is loaded: a hook must not enter the dynamic linker.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,now");
    // The name under which it is installed, for ldconfig and packages.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-soname,libnetacc-preload.so");
    // Run as a program, it says what it is (about.rs).
    println!("cargo::rustc-link-arg-cdylib=-Wl,-e,netacc_about");
    println!("cargo::rerun-if-changed=build.rs");
}
