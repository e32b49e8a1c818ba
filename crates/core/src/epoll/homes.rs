//! The sets that a socket is in, its *homes*: the peer notifies each of them of its news.
//!
//! A home is taken before the kernel has the registration, and moved into when the set has the
//! item. All of it is done under the lock of the set that comes or goes; what another set does
//! meanwhile concerns another home.

use super::{EXCLUSIVE, Epoll};
use crate::socket::{Home, Socket};
use core::ptr;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// Of a home's item: the registration has EPOLLEXCLUSIVE.
const IS_EXCLUSIVE: u64 = 1 << 63;
/// A home that is taken, and whose set has no item yet.
const TAKEN: *mut () = ptr::dangling_mut();

fn address(e: &Epoll) -> *mut () {
    ptr::from_ref(e).cast_mut().cast()
}

/// Which of the socket's homes the set is.
#[inline(always)]
pub(super) fn at(s: &Socket, e: &Epoll) -> Option<usize> {
    s.homes.iter().position(|home| ptr::eq(home.set.load(Acquire), address(e)))
}

/// The socket's item in the set, if that is a home of it.
#[inline(always)]
pub(super) fn item(s: &Socket, e: &Epoll) -> Option<u32> {
    item_of_first(s, e).or_else(|| item_of_others(s, e).map(|(_, item)| item))
}

/// As [`item`], if the set is the socket's first home.
#[inline(always)]
pub(super) fn item_of_first(s: &Socket, e: &Epoll) -> Option<u32> {
    let [first, ..] = &s.homes;
    let here = ptr::eq(first.set.load(Acquire), address(e));
    here.then(|| first.item.load(Relaxed) as u32)
}

/// As [`item`], behind which of the socket's homes the set is.
#[cold]
#[inline(never)]
pub(super) fn item_of_others(s: &Socket, e: &Epoll) -> Option<(usize, u32)> {
    let at = at(s, e)?;
    Some((at, s.homes.get(at)?.item.load(Relaxed) as u32))
}

/// The sets that have an item of the socket. (An inherited socket's are its maker's.)
pub(super) fn sets_of(s: &Socket) -> impl Iterator<Item = &'static Epoll> + '_ {
    let homes: &[Home] = if s.is_inherited() { &[] } else { &s.homes };
    homes.iter().filter_map(|home| {
        let set = home.set.load(SeqCst);
        // SAFETY: null, no address at all, or a type-stable instance of this process.
        if ptr::eq(set, TAKEN) { None } else { unsafe { set.cast::<Epoll>().as_ref() } }
    })
}

/// Takes a home of the socket's for a set that is about to get it with these events. `Err`: it
/// cannot be in that set as well. (Of news that only one of several sets is to have the kernel
/// alone knows which. Of two sets that take a home at a time, each says what it is before it looks
/// at the other.)
pub(super) fn take(s: &Socket, e: &Epoll, events: u32) -> Result<usize, Reason> {
    if at(s, e).is_some() {
        return Err(Reason::DuplicateInEpoll);
    }
    let free =
        |home: &Home| home.set.compare_exchange(ptr::null_mut(), TAKEN, SeqCst, Relaxed).is_ok();
    let (mine, home) =
        s.homes.iter().enumerate().find(|(_, home)| free(home)).ok_or(Reason::SeveralEpollSets)?;
    let exclusive = if events & EXCLUSIVE != 0 { IS_EXCLUSIVE } else { 0 };
    home.item.store(exclusive, SeqCst);
    let mut others = s
        .homes
        .iter()
        .enumerate()
        .filter(|(i, home)| *i != mine && !home.set.load(SeqCst).is_null());
    if others.any(|(_, other)| (exclusive | other.item.load(SeqCst)) & IS_EXCLUSIVE != 0) {
        give_back(s, mine);
        return Err(Reason::SeveralEpollSets);
    }
    Ok(mine)
}

/// The set has its item: the peer, and whoever looks for the socket's sets, finds it from now on.
pub(super) fn move_in(s: &Socket, at: usize, e: &'static Epoll, item: u32) {
    if let Some(home) = s.homes.get(at) {
        home.item.fetch_or(u64::from(item), SeqCst);
        home.set.store(address(e), SeqCst);
    }
}

/// Nobody lives there any more.
pub(super) fn give_back(s: &Socket, at: usize) {
    if let Some(home) = s.homes.get(at) {
        home.set.store(ptr::null_mut(), SeqCst);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;
    use crate::epoll::at as set_at;
    use crate::socket::new_socket;
    use crate::{api, fd_table, numbers, sys, testing};
    use alloc::vec::Vec;
    use netacc_ring::sleepers::SETS;
    use proptest::prelude::*;
    use std::sync::Barrier;

    /// As many sets, which their descriptors hold.
    fn sets(count: usize) -> Vec<&'static Epoll> {
        testing::init();
        let new = |_| {
            let fd = numbers::make(|| sys::epoll_create1(libc::EPOLL_CLOEXEC));
            api::on_epoll_create(fd);
            set_at(fd_table::epoll(fd).unwrap())
        };
        (0..count).map(new).collect()
    }

    fn end(sets: &[&'static Epoll]) {
        sets.iter().for_each(|set| assert_eq!(api::close(set.fd.load(Relaxed)), 0));
    }

    fn free(s: &Socket) {
        (0..SETS).for_each(|at| give_back(s, at));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Comes { set: usize, exclusive: bool },
        Moves { set: usize },
        Goes { set: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            5 => (0..6usize, prop::bool::weighted(0.2))
                .prop_map(|(set, exclusive)| Step::Comes { set, exclusive }),
            5 => (0..6usize).prop_map(|set| Step::Moves { set }),
            3 => (0..6usize).prop_map(|set| Step::Goes { set }),
        ];
        proptest::collection::vec(step, 0..60)
    }

    /// What a set has of a socket: its home, whether it is exclusive, and its item.
    type Held = Option<(usize, bool, Option<u32>)>;

    fn allowed(held: &[Held; 6], set: usize, exclusive: bool) -> Result<(), Reason> {
        let others: Vec<_> = held.iter().flatten().collect();
        match () {
            _ if matches!(held[set], Some((_, _, Some(_)))) => Err(Reason::DuplicateInEpoll),
            _ if others.len() == SETS => Err(Reason::SeveralEpollSets),
            _ if !others.is_empty() && exclusive => Err(Reason::SeveralEpollSets),
            _ if others.iter().any(|other| other.1) => Err(Reason::SeveralEpollSets),
            _ => Ok(()),
        }
    }

    proptest! {
        #[test]
        fn a_socket_has_four_homes_and_is_found_in_each(steps in steps()) {
            let sets = sets(6);
            let s = new_socket(-1).unwrap();
            let mut held: [Held; 6] = [None; 6];
            for (step, i) in steps.iter().zip(1u32..) {
                match *step {
                    // (A set that has taken one moves in, or gives it back, under one lock.)
                    Step::Comes { set, .. } if matches!(held[set], Some((_, _, None))) => {}
                    Step::Comes { set, exclusive } => {
                        let taken = take(s, sets[set], if exclusive { EXCLUSIVE } else { 1 });
                        prop_assert_eq!(taken.map(|_| ()), allowed(&held, set, exclusive));
                        if let Ok(at) = taken {
                            prop_assert!(held.iter().flatten().all(|other| other.0 != at));
                            held[set] = Some((at, exclusive, None));
                        }
                    }
                    Step::Moves { set } => {
                        if let Some((at, _, item @ None)) = &mut held[set] {
                            move_in(s, *at, sets[set], i);
                            *item = Some(i);
                        }
                    }
                    Step::Goes { set } => {
                        if let Some((at, ..)) = held[set].take() {
                            give_back(s, at);
                        }
                    }
                }
                for (set, held) in sets.iter().zip(&held) {
                    prop_assert_eq!(item(s, set), held.and_then(|held| held.2));
                    let home = held.filter(|held| held.2.is_some()).map(|held| held.0);
                    prop_assert_eq!(at(s, set), home);
                    prop_assert_eq!(sets_of(s).any(|e| ptr::eq(e, *set)), home.is_some());
                }
            }
            free(s);
            end(&sets);
        }
    }

    /// Of two registrations that come at a time, and of which one is exclusive, one is refused.
    #[test]
    fn none_is_beside_an_exclusive_one() {
        let sets = sets(2);
        let s = new_socket(-1).unwrap();
        let start = Barrier::new(2);
        for _ in 0..2000 {
            let comes = |set: usize, events| {
                start.wait();
                let taken = take(s, sets[set], events);
                start.wait();
                taken.into_iter().for_each(|at| give_back(s, at));
                taken.is_ok()
            };
            let both = std::thread::scope(|scope| {
                let other = scope.spawn(|| comes(1, EXCLUSIVE));
                (comes(0, 1), other.join().unwrap())
            });
            assert_ne!(both, (true, true));
        }
        free(s);
        end(&sets);
    }
}
