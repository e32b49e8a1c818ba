//! What a process may not do ends it in no way. (Alone: limits are the whole process's.)

use netacc_packet::shared::File;
use netacc_packet::sys::Errno;

#[test]
fn a_file_beyond_the_limit_is_an_error_and_no_signal() {
    let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a live rlimit. (Where the hard limit is lower this shows nothing.)
    if unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } != 0 {
        return;
    }
    let file = File::new().unwrap();
    assert_eq!(file.lengthen(1 << 20), Ok(()));
    assert_eq!(file.lengthen((1 << 20) + 1), Err(Errno(libc::EFBIG)));
}
