//! Processes of the victim's own user that are confined: no capabilities, a pid namespace of their own, no_new_privs.

use super::Test;

pub const TESTS: &[Test] = &[];

/// The programs of this file's tests; false: not one of them.
pub fn part(_words: &[&str]) -> bool {
    false
}
