//! The fabric's types and libraries.

pub(super) use crate::wire::Net;
use netacc_verbs::fabric::Fabric;

pub(super) type Manager = <Net as Fabric>::Manager;
pub(super) type Listener = <Net as Fabric>::Listener;
pub(super) type Device = <Net as Fabric>::Device;
pub(super) type Domain = <Net as Fabric>::Domain;
pub(super) type Pair = <Net as Fabric>::Pair;

#[cfg(test)]
pub(super) use super::tests::load;

/// Opens the libraries. In the thread "netacc-rdma" only.
#[cfg(not(test))]
pub(super) fn load() -> Result<Net, netacc_verbs::LoadError> {
    use crate::{fd_table, numbers};
    use core::ffi::c_int;

    /// A descriptor of the libraries': out of the application's way.
    fn adopt(fd: c_int) -> c_int {
        if matches!(fd_table::get(fd), fd_table::Entry::Internal) {
            return fd;
        }
        let own = numbers::exclusively(|| numbers::adopt(fd));
        if own >= 0 {
            super::note_own(own);
        }
        own
    }

    fn release(fd: c_int) {
        super::forget_own(fd);
        fd_table::set(fd, fd_table::Entry::None);
    }

    Net::load(netacc_verbs::Host { loader: netacc_verbs::Loader::LIBC, adopt, release })
}
