//! The pairs of a link, in no order, and found by their numbers: a link may have thousands, and
//! each is asked for several times when it ends.

use super::pair::Pair;
use alloc::collections::BTreeMap;
use alloc::vec::{Drain, Vec};
use core::ops::{Deref, DerefMut};

#[derive(Default)]
pub(super) struct Pairs {
    list: Vec<Pair>,
    /// Where in the list each number is.
    places: BTreeMap<u32, usize>,
}

impl Pairs {
    /// The pair of that number.
    pub(super) fn of(&self, number: u32) -> Option<&Pair> {
        self.list.get(*self.places.get(&number)?)
    }

    pub(super) fn of_mut(&mut self, number: u32) -> Option<&mut Pair> {
        self.list.get_mut(*self.places.get(&number)?)
    }

    /// There is none of its number.
    pub(super) fn push(&mut self, pair: Pair) {
        self.places.insert(pair.number, self.list.len());
        self.list.push(pair);
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Pair> {
        let at = self.places.remove(&number)?;
        let pair = self.list.swap_remove(at);
        if let Some(moved) = self.list.get(at) {
            self.places.insert(moved.number, at);
        }
        Some(pair)
    }

    pub(super) fn take_all(&mut self) -> Drain<'_, Pair> {
        self.places.clear();
        self.list.drain(..)
    }
}

impl Deref for Pairs {
    type Target = [Pair];
    fn deref(&self) -> &[Pair] {
        &self.list
    }
}

/// (Nobody changes a pair's number.)
impl DerefMut for Pairs {
    fn deref_mut(&mut self) -> &mut [Pair] {
        &mut self.list
    }
}
