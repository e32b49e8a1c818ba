//! libibverbs and librdmacm, opened when they are first needed, and the functions of theirs that
//! are called.
//!
//! Neither library is linked: the preload library works where rdma-core is absent, and a process
//! without rdma connections does not pay for it (opening both costs 0.6 ms and, with the first
//! device, a dozen providers). They are never closed again.
//!
//! Opening takes the dynamic linker's lock, allocates from the application's heap and opens files:
//! it belongs into a helper thread, never into a hook.

use crate::ffi::*;
use core::ffi::{CStr, c_char, c_int, c_void};

/// How libraries are opened; [`Loader::LIBC`] unless the caller has reasons.
#[derive(Clone, Copy, Debug)]
pub struct Loader {
    /// `dlopen`.
    pub open: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void,
    /// `dlsym`.
    pub symbol: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void,
}

impl Loader {
    /// libc's own.
    pub const LIBC: Self = Self { open: libc::dlopen, symbol: libc::dlsym };
}

/// Why verbs cannot be used in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The library is not installed, or cannot be opened here.
    NoLibrary(&'static CStr),
    /// It lacks a function: it is too old, or something else of that name.
    NoSymbol {
        /// The library.
        library: &'static CStr,
        /// The function.
        symbol: &'static CStr,
    },
    /// No memory for the table of functions.
    NoMemory,
}

impl core::fmt::Display for LoadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let text = |s: &'static CStr| s.to_str().unwrap_or("?");
        match self {
            Self::NoLibrary(library) => write!(f, "{} cannot be opened", text(library)),
            Self::NoSymbol { library, symbol } => {
                write!(f, "{} has no {}", text(library), text(symbol))
            }
            Self::NoMemory => f.write_str("no memory"),
        }
    }
}

/// Declares the table: one field per function, filled by [`Api::load`].
macro_rules! functions {
    ($($library:literal { $($need:ident $name:ident($($arg:ty),*) $(-> $ret:ty)?;)* })*) => {
        /// The functions, each resolved once.
        pub(crate) struct Api {
            $($(pub(crate) $name: functions!(@field $need unsafe extern "C" fn($($arg),*) $(-> $ret)?),)*)*
        }

        impl Api {
            /// Opens both libraries and resolves every function.
            pub(crate) fn load(loader: &Loader) -> Result<Self, LoadError> {
                $(
                    let library: &'static CStr = $library;
                    let handle = open(loader, library)?;
                    $(
                        // SAFETY: `functions!` below states the C signature of each function; an
                        // absent one is not made a function pointer (see `Missing`).
                        let $name = unsafe { functions!(@resolve $need loader, handle, library, $name, ($($arg),*) $(-> $ret)?) };
                    )*
                )*
                Ok(Self { $($($name,)*)* })
            }

            /// Names of all functions, for tests that stand in for the libraries.
            #[cfg(test)]
            pub(crate) const NAMES: &'static [&'static str] = &[$($(stringify!($name)),*),*];
        }
    };
    (@field need $f:ty) => { $f };
    (@field may $f:ty) => { Option<$f> };
    (@resolve need $loader:ident, $handle:ident, $library:ident, $name:ident, ($($arg:ty),*) $(-> $ret:ty)?) => {{
        let at = find($loader, $handle, symbol_name!($name))
            .ok_or(LoadError::NoSymbol { library: $library, symbol: symbol_name!($name) })?;
        core::mem::transmute::<core::ptr::NonNull<c_void>, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(at)
    }};
    (@resolve may $loader:ident, $handle:ident, $library:ident, $name:ident, ($($arg:ty),*) $(-> $ret:ty)?) => {{
        find($loader, $handle, symbol_name!($name))
            .map(|at| core::mem::transmute::<core::ptr::NonNull<c_void>, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(at))
    }};
}

macro_rules! symbol_name {
    ($name:ident) => {
        // A literal with one NUL at its end is a C string; anything else fails to compile.
        const {
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a NUL inside of a symbol's name"),
            }
        }
    };
}

functions! {
    c"libibverbs.so.1" {
        need ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        need ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        need ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        need ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        need ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        need ibv_dereg_mr(*mut ibv_mr) -> c_int;
        need ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        need ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        need ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        need ibv_destroy_cq(*mut ibv_cq) -> c_int;
        need ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        need ibv_ack_cq_events(*mut ibv_cq, u32);
        need ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        need ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        need ibv_destroy_qp(*mut ibv_qp) -> c_int;
        need ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        need ibv_ack_async_event(*mut ibv_async_event);
        may ibv_is_fork_initialized() -> c_int;
    }
    c"librdmacm.so.1" {
        need rdma_create_event_channel() -> *mut rdma_event_channel;
        need rdma_destroy_event_channel(*mut rdma_event_channel);
        need rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int) -> c_int;
        need rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        need rdma_bind_addr(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        need rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        need rdma_resolve_addr(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        need rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        need rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        need rdma_destroy_qp(*mut rdma_cm_id);
        need rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        need rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        need rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        need rdma_disconnect(*mut rdma_cm_id) -> c_int;
        need rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        need rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
        need rdma_get_src_port(*mut rdma_cm_id) -> u16;
        need rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
    }
}

fn open(loader: &Loader, library: &'static CStr) -> Result<*mut c_void, LoadError> {
    // SAFETY: a C string; the constructors of the libraries do nothing but set themselves up.
    let handle = unsafe { (loader.open)(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() { Err(LoadError::NoLibrary(library)) } else { Ok(handle) }
}

fn find(
    loader: &Loader,
    handle: *mut c_void,
    symbol: &'static CStr,
) -> Option<core::ptr::NonNull<c_void>> {
    // SAFETY: a handle that `open` returned, and a C string.
    core::ptr::NonNull::new(unsafe { (loader.symbol)(handle, symbol.as_ptr()) })
}

#[cfg(test)]
pub(crate) mod tests;
