//! Calls by which a process becomes somebody else, or confines itself. A forked child gives up what
//! it shares with its parent before that.
//!
//! Failing calls do that, too: what they are asked for says that the program is about to.

use netacc_core::api;

fn becoming(_first: usize) {
    api::before_rights_change();
}

watch! {
    /// `setuid(2)`.
    fn setuid, becoming
}
watch! {
    /// `seteuid(3)`.
    fn seteuid, becoming
}
watch! {
    /// `setreuid(2)`.
    fn setreuid, becoming
}
watch! {
    /// `setresuid(2)`.
    fn setresuid, becoming
}
watch! {
    /// `setfsuid(2)`.
    fn setfsuid, becoming
}
watch! {
    /// `setgid(2)`.
    fn setgid, becoming
}
watch! {
    /// `setegid(3)`.
    fn setegid, becoming
}
watch! {
    /// `setregid(2)`.
    fn setregid, becoming
}
watch! {
    /// `setresgid(2)`.
    fn setresgid, becoming
}
watch! {
    /// `setfsgid(2)`.
    fn setfsgid, becoming
}
watch! {
    /// `setgroups(2)`.
    fn setgroups, becoming
}
watch! {
    /// `initgroups(3)`: sets them inside libc.
    fn initgroups, becoming
}
watch! {
    /// `capset(2)`.
    fn capset, becoming
}
watch! {
    /// `setns(2)`: perhaps into a user namespace, or a network namespace.
    fn setns, before_setns
}
watch! {
    /// `unshare(2)`.
    fn unshare, before_unshare
}

watch! {
    /// `chroot(2)`: who confines itself is about to be somebody that its parent is to be safe from.
    fn chroot, becoming
}
watch! {
    /// `prctl(2)`: no_new_privs, seccomp, capabilities.
    fn prctl, before_prctl
}

fn before_prctl(option: usize) {
    if api::confines(option) {
        api::before_rights_change();
    }
}

fn before_setns(_fd: usize) {
    api::before_network_change();
    api::before_rights_change();
}

fn before_unshare(flags: usize) {
    if flags & libc::CLONE_NEWNET as usize != 0 {
        api::before_network_change();
    }
    if flags & libc::CLONE_NEWUSER as usize != 0 {
        api::before_rights_change();
    }
}
