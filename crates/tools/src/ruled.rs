//! Which rule of `netacc.conf` holds for a connection: its record has a number for the rule's name,
//! the process's configuration has the names.

use crate::segment::Process;
use netacc_control::config::rendered_rules;
use netacc_control::stats::{Connection, NO_RULE};

/// The rules of a process, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Rules(Vec<(u32, String)>);

/// Whether a rule was found to hold for it.
fn is_ruled(connection: &Connection) -> bool {
    ![0, NO_RULE].contains(&connection.rule)
}

impl Rules {
    /// Those that hold for its connections.
    pub(crate) fn of(process: &Process) -> Rules {
        if !process.connections.iter().any(|connection| is_ruled(&connection)) {
            return Rules::default();
        }
        let (rules, _) = rendered_rules(&process.header.config);
        Rules(rules.into_iter().map(|rule| (rule.tag(), rule.name)).collect())
    }

    /// That of a connection, `?` where it has none of that name any more, or too many to show.
    /// `None`: no rule holds, or the connection has not been looked up yet.
    pub(crate) fn name(&self, connection: &Connection) -> Option<&str> {
        let known = self.0.iter().find(|(tag, _)| *tag == connection.rule);
        is_ruled(connection).then(|| known.map_or("?", |(_, name)| name.as_str()))
    }
}
