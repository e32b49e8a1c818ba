//! Loading, with a loader that stands in for the libraries.

use super::*;
use alloc::string::ToString;
use core::ffi::CStr;
use std::cell::Cell;

std::thread_local! {
    static WITHOUT_LIBRARY: Cell<&'static CStr> = const { Cell::new(c"") };
    static WITHOUT_SYMBOL: Cell<&'static str> = const { Cell::new("") };
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

extern "C" fn nothing() {}

unsafe extern "C" fn open(name: *const c_char, _flags: c_int) -> *mut c_void {
    // SAFETY: `load` passes C strings.
    let name = unsafe { CStr::from_ptr(name) };
    if name == WITHOUT_LIBRARY.get() { core::ptr::null_mut() } else { core::ptr::dangling_mut() }
}

unsafe extern "C" fn symbol(_handle: *mut c_void, name: *const c_char) -> *mut c_void {
    ASKED.set(ASKED.get() + 1);
    // SAFETY: `load` passes C strings.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
    if name == WITHOUT_SYMBOL.get() { core::ptr::null_mut() } else { nothing as *mut c_void }
}

pub(crate) const STAND_IN: Loader = Loader { open, symbol };

#[test]
fn each_function_is_resolved_once() {
    ASKED.set(0);
    assert!(Api::load(&STAND_IN).is_ok());
    assert_eq!(ASKED.get(), Api::NAMES.len());
}

#[test]
fn a_missing_library_is_named() {
    for library in [c"libibverbs.so.1", c"librdmacm.so.1"] {
        WITHOUT_LIBRARY.set(library);
        let error = Api::load(&STAND_IN).err();
        assert_eq!(error, Some(LoadError::NoLibrary(library)));
        assert!(error.unwrap().to_string().starts_with(library.to_str().unwrap()));
    }
    WITHOUT_LIBRARY.set(c"");
}

#[test]
fn a_missing_function_is_named_with_its_library() {
    // Older than rdma-core 35: the only function that may be absent.
    const MAY: &str = "ibv_is_fork_initialized";
    for name in Api::NAMES {
        WITHOUT_SYMBOL.set(name);
        match Api::load(&STAND_IN) {
            Ok(api) => assert!(*name == MAY && api.ibv_is_fork_initialized.is_none()),
            Err(LoadError::NoSymbol { library, symbol }) => {
                assert_eq!(symbol.to_str().unwrap(), *name);
                let of_verbs = library == c"libibverbs.so.1";
                assert_eq!(of_verbs, name.starts_with("ibv_"), "{name}");
            }
            Err(other) => panic!("{name}: {other:?}"),
        }
    }
    WITHOUT_SYMBOL.set("");
}

/// The real libraries, where they are installed: every name exists in them.
#[test]
fn the_installed_libraries_have_every_function() {
    match Api::load(&Loader::LIBC) {
        Ok(_) => {}
        Err(LoadError::NoLibrary(library)) => {
            assert!(
                std::env::var_os("NETACC_NEED_VERBS_HEADERS").is_none(),
                "{library:?} cannot be opened"
            );
            std::eprintln!("SKIPPED: {library:?} is not installed");
        }
        Err(other) => panic!("{other}"),
    }
}
