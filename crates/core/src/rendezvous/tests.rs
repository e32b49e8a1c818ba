extern crate std;
use super::doorbell::is_doorbell;
use super::names::advert_name;
use super::*;
use std::format;

#[test]
fn advert_names() {
    for (port, k, text) in
        [(80, 0, "netacc/1/80/0"), (65535, 31, "netacc/1/65535/31"), (1, 9, "netacc/1/1/9")]
    {
        let (name, len) = advert_name(port, k);
        assert_eq!(&name[..3], &[libc::AF_UNIX as u8, 0, 0]);
        assert_eq!(name[3..len].strip_prefix(crate::testing::room()), Some(text.as_bytes()));
    }
}

#[test]
fn numbers_in_paths() {
    for n in [0, 7, 10, 1024, u32::MAX] {
        let mut out = [0u8; 32];
        let len = decimal_path(b"/proc/self/fd/", n, &mut out);
        assert_eq!(&out[..len], format!("/proc/self/fd/{n}").as_bytes());
        assert_eq!(out[len], 0);
    }
}

#[test]
fn only_eventfds_are_doorbells() {
    let event = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
    let unix = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) as c_int;
    let inet = sys::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) as c_int;
    let file = sys::open(b"/dev/null\0", libc::O_RDWR | libc::O_CLOEXEC, 0) as c_int;
    let memfd = sys::memfd_create(b"x\0", libc::MFD_CLOEXEC) as c_int;
    assert!(is_doorbell(event));
    for wrong in [unix, inet, file, memfd, -1] {
        assert!(!is_doorbell(wrong));
    }
    for fd in [event, unix, inet, file, memfd] {
        let _ = sys::close(fd);
    }
}

#[test]
fn events_name_one_life_of_a_link() {
    let e = event_of(63, u32::MAX);
    assert_eq!(e & (EVENT_LINK | EVENT_ADVERT), EVENT_LINK);
    assert_eq!(link_of(e), (63, u32::MAX));
}
