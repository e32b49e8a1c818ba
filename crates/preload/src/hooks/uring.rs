//! liburing, where it is a library of its own: what a program is about to submit is read before the
//! kernel gets it.
//!
//! liburing's system calls are in its own code, but programs call its functions, and these can be
//! hooked as libc's. Only the names that nobody else uses: `io_uring_setup`, `io_uring_enter` and
//! `io_uring_register` are what programs call wrappers of their own.
//!
//! The next symbol is looked for at the first call: nearly no program has one. It may be in a
//! plugin, which the global scope does not have though its calls come here: then in whatever the
//! process has loaded.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use libc::{RTLD_DEFAULT, RTLD_LAZY, RTLD_NEXT, RTLD_NOLOAD, c_uint, dl_phdr_info, size_t};
use netacc_core::api::{self, Liburing, PASS};

/// A function of liburing's.
struct Next {
    at: AtomicPtr<c_void>,
    name: &'static CStr,
}

impl Next {
    /// Null: it has none of that name.
    fn get(&self) -> *mut c_void {
        let at = self.at.load(Relaxed);
        if at.is_null() { self.find() } else { at }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: a C string.
        let mut found = unsafe { libc::dlsym(RTLD_NEXT, self.name.as_ptr()) };
        // SAFETY: as above. (It is this library's, unless something stands in front of that.)
        let own = unsafe { libc::dlsym(RTLD_DEFAULT, self.name.as_ptr()) };
        let mut object = Object { index: 0, path: [0; PATH] };
        while found.is_null() && object.next() {
            // SAFETY: a C string; it is loaded already, or nothing is.
            let handle =
                unsafe { libc::dlopen(object.path.as_ptr().cast(), RTLD_LAZY | RTLD_NOLOAD) };
            if !handle.is_null() {
                // SAFETY: a handle, which stays open with what is found by it: the address is to
                // stay.
                found = unsafe { libc::dlsym(handle, self.name.as_ptr()) };
                if found.is_null() || found == own {
                    found = null_mut();
                    // SAFETY: opened above.
                    unsafe { libc::dlclose(handle) };
                }
            }
        }
        // SAFETY: what was not found is not for the application's next dlerror.
        unsafe { libc::dlerror() };
        self.at.store(found, Relaxed);
        found
    }
}

const PATH: usize = 4096;

/// One of the objects that the process has loaded.
struct Object {
    index: usize,
    path: [u8; PATH],
}

/// What [`Object::next`] looks for.
struct Search<'a> {
    left: usize,
    path: &'a mut [u8; PATH],
}

impl Object {
    /// False: there is no other one.
    fn next(&mut self) -> bool {
        let mut search = Search { left: self.index, path: &mut self.path };
        self.index = self.index.saturating_add(1);
        // SAFETY: `at` is called before this returns. (dlopen, inside of it, could wait for another
        // thread that waits for this one.)
        unsafe { libc::dl_iterate_phdr(Some(at), (&raw mut search).cast()) != 0 }
    }
}

unsafe extern "C" fn at(info: *mut dl_phdr_info, _: size_t, search: *mut c_void) -> c_int {
    // SAFETY: what `next` passed.
    let search = unsafe { &mut *search.cast::<Search<'_>>() };
    if let Some(left) = search.left.checked_sub(1) {
        search.left = left;
        return 0;
    }
    search.path.fill(0);
    // SAFETY: a C string, or null.
    let name = unsafe { (*info).dlpi_name.as_ref() }
        .map_or(c"".to_bytes(), |name: &c_char| unsafe { CStr::from_ptr(name) }.to_bytes());
    // (A path that is longer is none: no file is opened by it.)
    if name.len() < PATH {
        search.path.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
    }
    1
}

/// Hooks of functions that return 0 or more, or `-errno`, and take integers and pointers alone.
/// `$before`: an answer, or [`PASS`].
macro_rules! liburing {
    ($(fn $name:ident($($arg:ident),*) $before:block $(then |$result:ident| $after:block)?)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_int {
            static NEXT: Next = Next {
                at: AtomicPtr::new(null_mut()),
                name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
            };
            let next = NEXT.get();
            if next.is_null() {
                return libc::ENOSYS.wrapping_neg();
            }
            let [$($arg),*, ..] = [a, b, c, d, e, f, 0];
            // SAFETY: the arguments are the caller's, who answers for them as to liburing.
            #[allow(unused_unsafe, reason = "some of the core's functions are safe")]
            let answer = unsafe { $before };
            if answer != PASS {
                return answer as c_int;
            }
            // SAFETY: a function of that name, and so of liburing's signature: at most six words.
            let next: unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int = unsafe { core::mem::transmute(next) };
            // SAFETY: as above.
            let result = unsafe { next(a, b, c, d, e, f) };
            $( let $result = result; $after )?
            result
        }
    )* };
}

/// A ring is about to be made.
fn make() -> isize {
    api::before_io_uring_setup()
}

/// It has been.
fn made(ring: usize, result: c_int) {
    if result >= 0 {
        // SAFETY: liburing has just filled it in.
        api::on_new_fd(unsafe { (*(ring as *const Liburing)).fd() });
    }
}

/// # Safety
/// `ring` is the application's argument.
unsafe fn submit(ring: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { api::before_liburing_submit(ring as *const Liburing) };
    PASS
}

/// # Safety
/// They are the application's arguments.
unsafe fn register(fds: usize, count: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { api::before_liburing_files(fds as *const c_int, count as c_uint) };
    PASS
}

liburing! {
    fn io_uring_queue_init(_entries, ring) { make() } then |r| { made(ring, r) }
    fn io_uring_queue_init_params(_entries, ring) { make() } then |r| { made(ring, r) }
    fn io_uring_queue_init_mem(_entries, ring) { make() } then |r| { made(ring, r) }
    fn io_uring_submit(ring) { submit(ring) }
    fn io_uring_submit_and_wait(ring) { submit(ring) }
    fn io_uring_submit_and_wait_timeout(ring) { submit(ring) }
    fn io_uring_submit_and_wait_min_timeout(ring) { submit(ring) }
    fn io_uring_submit_and_wait_reg(ring) { submit(ring) }
    fn io_uring_submit_and_get_events(ring) { submit(ring) }
    fn io_uring_wait_cqes(ring) { submit(ring) }
    fn io_uring_wait_cqes_min_timeout(ring) { submit(ring) }
    fn io_uring_wait_cqe_timeout(ring) { submit(ring) }
    fn io_uring_register_files(_ring, files, count) { register(files, count) }
    fn io_uring_register_files_tags(_ring, files, _tags, count) { register(files, count) }
    fn io_uring_register_files_update(_ring, _at, files, count) { register(files, count) }
    fn io_uring_register_files_update_tag(_ring, _at, files, _tags, count) { register(files, count) }
}
