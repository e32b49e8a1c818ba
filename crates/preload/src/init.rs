//! The constructor: resolves the next symbols, reads the environment once, and starts the core.
//!
//! It opens nothing, starts no thread and leaves the environment as it is. In a set-user-id program
//! (AT_SECURE) the core is never started: every hook then passes on.

use crate::original;
use alloc::string::String;
use core::ffi::{CStr, c_char, c_void};
use libc::c_int;
use netacc_core::api;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

/// Other threads may still be in calls of ours: nothing is taken down here.
extern "C" fn destructor() {
    let errno = crate::errno::get();
    api::at_exit();
    crate::errno::set(errno);
}

extern "C" fn constructor() {
    let errno = crate::errno::get();
    original::resolve_all();
    // SAFETY: getauxval has no preconditions.
    if unsafe { libc::getauxval(libc::AT_SECURE) } == 0 {
        #[allow(clippy::missing_transmute_annotations, reason = "the fields name the types")]
        let next = api::NextSymbols {
            // SAFETY: null or a function of this signature, which is what the field's type says.
            pthread_create: unsafe {
                core::mem::transmute::<*mut c_void, _>(symbol(c"pthread_create"))
            },
            // SAFETY: as above.
            pthread_detach: unsafe {
                core::mem::transmute::<*mut c_void, _>(symbol(c"pthread_detach"))
            },
        };
        api::init(&variable, next);
        // SAFETY: the handlers are functions of this library, which is never unloaded (-z
        // nodelete).
        unsafe { pthread_atfork(Some(fork_prepare), Some(fork_parent), Some(fork_child)) };
    }
    crate::errno::set(errno);
}

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

pub(crate) extern "C" fn fork_prepare() {
    api::fork_prepare();
}

pub(crate) extern "C" fn fork_parent() {
    api::fork_parent();
}

pub(crate) extern "C" fn fork_child() {
    netacc_core::heap::after_fork();
    api::fork_child();
}

unsafe extern "C" {
    static environ: *const *const c_char;
    // In libc_nonshared.a: it registers the handlers as this library's.
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

/// The value of an environment variable, in memory of our own: programs overwrite their environment
/// (setproctitle).
fn variable(name: &str) -> Option<&'static str> {
    // SAFETY: no thread but this one runs yet that could change the environment.
    let mut entry = unsafe { environ };
    if entry.is_null() {
        return None;
    }
    loop {
        // SAFETY: `environ` is an array of C strings that ends with null, and `entry` has not
        // passed its end.
        let text = unsafe { *entry };
        if text.is_null() {
            return None;
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        if let Some(value) =
            text.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
        {
            let value = core::str::from_utf8(value).ok()?;
            return Some(String::from(value).leak());
        }
        entry = entry.wrapping_add(1);
    }
}
