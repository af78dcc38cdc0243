//! Who belongs to a tree of processes, as they come and go.

use std::collections::BTreeMap;

use capture::proc::Member;
use formats::{Arrival, Departure, Line};

/// A process by its id, when it was started, and which program it is by now.
pub(super) type Program = (i32, u64, u64);

/// Those of a tree that live, and whether each is a Ruby, once that was looked for.
#[derive(Debug, Default)]
pub(crate) struct Roll {
    known: BTreeMap<Program, Option<bool>>,
}

impl Roll {
    /// The lines on who came and who went since the last time.
    pub(crate) fn call(&mut self, t_ms: u64, members: &[Member]) -> Vec<Line> {
        let mut lines = Vec::new();
        let before = std::mem::take(&mut self.known);
        for member in members {
            let program = (member.pid, member.started_ticks, member.program);
            let is_ruby = before.get(&program);
            self.known.insert(program, is_ruby.copied().flatten());
            // Who has ended since has no command line any more.
            if is_ruby.is_none()
                && let Ok(command) = capture::proc::command_line(member.pid)
            {
                let Member { pid, parent, started_ticks, .. } = *member;
                lines.push(Line::Process(Arrival { t_ms, pid, parent, started_ticks, command }));
            }
        }
        for (pid, started_ticks, _) in before.into_keys() {
            if !members.iter().any(|it| (it.pid, it.started_ticks) == (pid, started_ticks)) {
                lines.push(Line::Gone(Departure { t_ms, pid, started_ticks }));
            }
        }
        lines
    }

    /// All that live.
    pub(super) fn programs(&self) -> impl Iterator<Item = Program> {
        self.known.keys().copied()
    }

    /// Whether a process that lives is a Ruby. One that cannot be looked at is none, for now.
    pub(super) fn is_ruby(&mut self, program: Program) -> bool {
        match self.known.get(&program) {
            None => false,
            Some(Some(is_ruby)) => *is_ruby,
            Some(None) => {
                let Ok(image) = capture::look(program.0) else { return false };
                let is_ruby = ruby::find(&image).is_some();
                self.known.insert(program, Some(is_ruby));
                is_ruby
            }
        }
    }
}
