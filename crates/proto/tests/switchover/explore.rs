//! Visits every reachable state of a [`World`], breadth first.

use crate::model::{Action, Config, World};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hasher};

/// States are remembered by a 64-bit fingerprint, which is already a hash.
#[derive(Default)]
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys");
    }

    fn write_u64(&mut self, v: u64) {
        self.0 = v;
    }
}

/// What an exploration found.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
pub struct Outcome {
    pub states: usize,
    pub steps: usize,
    /// Length of the longest shortest way to a state: everything up to this many steps was tried.
    pub depth: u32,
    /// Different ends that were reached.
    pub ends: usize,
    /// States of the two halves that were visited.
    pub tx_states: BTreeSet<u32>,
    pub rx_states: BTreeSet<u32>,
}

/// A wrong step, with the shortest way there.
#[derive(Debug)]
pub struct Failure {
    pub violation: String,
    pub trace: Vec<Action>,
}

/// Visits all states, or stops at a violation.
///
/// Also checks that from every state the end can be reached without a fault: nobody is ever stuck.
pub fn explore(config: Config) -> Result<Outcome, Failure> {
    let hash = BuildHasherDefault::<DefaultHasher>::default();
    let mut ids: HashMap<u64, u32, BuildHasherDefault<Fingerprint>> = HashMap::default();
    let mut parents: Vec<(u32, Action)> = vec![(0, Action::Arm)];
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut ends: Vec<u32> = Vec::new();
    let mut queue = VecDeque::from([(0u32, 0u32, World::new(config))]);
    ids.insert(hash.hash_one(World::new(config)), 0);
    let mut actions = Vec::new();
    let mut tx_states = BTreeSet::new();
    let mut rx_states = BTreeSet::new();
    let mut depth = 0;
    let mut steps = 0;
    while let Some((id, level, world)) = queue.pop_front() {
        depth = level;
        tx_states.insert(world.tx.state() as u32);
        rx_states.insert(world.rx.state() as u32);
        if world.is_finished() {
            ends.push(id);
            continue;
        }
        world.actions(&mut actions);
        for &action in &actions {
            steps += 1;
            let mut next = world;
            if let Err(violation) = next.apply(action) {
                return Err(Failure {
                    violation,
                    trace: trace(&parents, id, action),
                });
            }
            let count = u32::try_from(ids.len()).unwrap();
            let next_id = *ids.entry(hash.hash_one(next)).or_insert(count);
            if next_id == count {
                parents.push((id, action));
                queue.push_back((next_id, level + 1, next));
            }
            if !action.is_fault() && next_id != id {
                edges.push((next_id, id));
            }
        }
    }
    if let Some(stuck) = find_stuck(parents.len(), &mut edges, &ends) {
        let (from, action) = parents[stuck];
        return Err(Failure {
            violation: "from here the end cannot be reached".into(),
            trace: trace(&parents, from, action),
        });
    }
    Ok(Outcome {
        states: ids.len(),
        steps,
        depth,
        ends: ends.len(),
        tx_states,
        rx_states,
    })
}

fn trace(parents: &[(u32, Action)], mut id: u32, last: Action) -> Vec<Action> {
    let mut trace = vec![last];
    while id != 0 {
        let (parent, action) = parents[id as usize];
        trace.push(action);
        id = parent;
    }
    trace.reverse();
    trace
}

/// A state from which no end can be reached. `edges` are (to, from).
fn find_stuck(states: usize, edges: &mut [(u32, u32)], ends: &[u32]) -> Option<usize> {
    edges.sort_unstable();
    let mut reaches = vec![false; states];
    let mut todo = ends.to_vec();
    ends.iter().for_each(|&id| reaches[id as usize] = true);
    while let Some(id) = todo.pop() {
        let first = edges.partition_point(|&(to, _)| to < id);
        for &(_, from) in edges[first..].iter().take_while(|&&(to, _)| to == id) {
            if !reaches[from as usize] {
                reaches[from as usize] = true;
                todo.push(from);
            }
        }
    }
    reaches.iter().position(|&reached| !reached)
}
