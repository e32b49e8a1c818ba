//! What the machine has, and this process may use of it.

use super::syscall;
use libc::timespec;

/// CPU time that a process has used, all its threads together; 0 when it cannot be known.
pub(crate) fn cpu_time_ns(pid: u32) -> u64 {
    // linux/posix-timers.h: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
    let clock = (!(pid as i32)) << 3 | 2;
    let mut ts = timespec { tv_sec: 0, tv_nsec: 0 };
    if sys!(SYS_clock_gettime, clock, &mut ts as *mut timespec) < 0 {
        return 0;
    }
    (ts.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(ts.tv_nsec as u64)
}
/// CPUs that this thread may run on.
pub(crate) fn allowed_cpus() -> u64 {
    let mut mask = [0u64; 64];
    let n = sys!(SYS_sched_getaffinity, 0, 512, mask.as_mut_ptr());
    if n <= 0 { 1 } else { mask.iter().map(|w| w.count_ones() as u64).sum::<u64>().max(1) }
}

/// How many bytes this process may lock in memory (RLIMIT_MEMLOCK, soft).
pub(crate) fn memlock_limit() -> u64 {
    soft_limit(libc::RLIMIT_MEMLOCK as usize)
}

/// How large it may make a file (RLIMIT_FSIZE, soft).
pub(crate) fn file_size_limit() -> u64 {
    soft_limit(libc::RLIMIT_FSIZE as usize)
}

fn soft_limit(of: usize) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live rlimit; prlimit64(2) of this process, which sets nothing.
    let r = unsafe { syscall(libc::SYS_prlimit64, 0, of, 0, &raw mut limit as usize, 0, 0) };
    if r >= 0 { limit.rlim_cur } else { 0 }
}

/// Bytes of this host's memory.
pub(crate) fn host_memory() -> u64 {
    // SAFETY: all zero is a valid sysinfo.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    // SAFETY: sysinfo(2) writes that structure.
    let r = unsafe { syscall(libc::SYS_sysinfo, &raw mut info as usize, 0, 0, 0, 0, 0) };
    if r >= 0 { info.totalram.saturating_mul(u64::from(info.mem_unit)) } else { u64::MAX }
}

/// Lets the calling thread run on these CPUs only; on all that it may when there are none in the
/// list.
pub(crate) fn set_affinity(cpus: &netacc_control::config::CpuList) {
    let mut set = [0u64; 16];
    let mut any = false;
    for cpu in cpus.iter() {
        if let Some(word) = set.get_mut(cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
            any = true;
        }
    }
    if any {
        // SAFETY: sched_setaffinity(2) of this thread reads that many bytes.
        let _ = unsafe {
            syscall(
                libc::SYS_sched_setaffinity,
                0,
                size_of_val(&set),
                set.as_ptr() as usize,
                0,
                0,
                0,
            )
        };
    }
}
