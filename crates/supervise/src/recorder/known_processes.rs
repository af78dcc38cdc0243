//! The processes of a tree, as they start and end.

use std::collections::BTreeMap;

use formats::{Arrival, Departure, Line};
use linux::proc::Member;

use super::Watcher;

/// A process's id, start time, and current program (exec changes that).
pub(super) type ProgramId = (i32, u64, u64);

/// The living processes of a tree. The value is true for a Ruby process, and `None` until that was checked.
#[derive(Debug, Default)]
pub(crate) struct KnownProcesses {
    known: BTreeMap<ProgramId, Option<bool>>,
}

impl KnownProcesses {
    /// Returns lines for the processes that started or ended since the last call.
    pub(crate) fn update(&mut self, t_ms: u64, members: &[Member]) -> Vec<Line> {
        let mut lines = Vec::new();
        let before = std::mem::take(&mut self.known);
        for member in members {
            let program = (member.pid, member.started_ticks, member.program);
            let is_ruby = before.get(&program);
            self.known.insert(program, is_ruby.copied().flatten());
            // A process that has ended meanwhile has no command line.
            if is_ruby.is_none()
                && let Ok(command) = linux::proc::command_line(member.pid)
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

    /// The living processes.
    pub(super) fn programs(&self) -> impl Iterator<Item = ProgramId> {
        self.known.keys().copied()
    }

    /// Returns true if a living process is a Ruby. If it cannot be read, it is checked again the next time.
    pub(super) fn is_ruby(&mut self, program: ProgramId, watcher: &mut dyn Watcher) -> bool {
        match self.known.get(&program) {
            None => false,
            Some(Some(is_ruby)) => *is_ruby,
            Some(None) => {
                let Some(is_ruby) = watcher.is_ruby(program.0) else { return false };
                self.known.insert(program, Some(is_ruby));
                is_ruby
            }
        }
    }
}
