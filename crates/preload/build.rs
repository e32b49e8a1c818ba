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
    // The crate libc asks for libc's library only where its feature std is off, and cargo turns it
    // on for all where one wants it. So it is asked for here: without it there is no DT_NEEDED, and
    // no symbol has a version.
    println!("cargo::rustc-link-arg-cdylib=-lc");
    println!("cargo::rerun-if-changed=build.rs");
}
