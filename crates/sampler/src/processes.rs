//! The processes that are watched: one, and those that it starts.

use std::collections::HashMap;

use linux::proc;

use crate::process::Process;

/// All processes that have not ended.
#[derive(Default)]
pub(crate) struct Processes {
    all: HashMap<i32, Process>,
    /// Their ids, in the order in which they were first seen.
    order: Vec<i32>,
    /// Processes that may have ended.
    ending: Vec<i32>,
}

impl Processes {
    /// The ids of all processes, in the order in which they were first seen.
    pub(crate) fn ids(&self) -> &[i32] {
        &self.order
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Process> {
        self.order.iter().filter_map(|pid| self.all.get(pid))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.all.values_mut()
    }

    pub(crate) fn get_mut(&mut self, pid: i32) -> Option<&mut Process> {
        self.all.get_mut(&pid)
    }

    pub(crate) fn has(&self, pid: i32) -> bool {
        self.all.contains_key(&pid)
    }

    /// The process `pid`; a new one runs the program of its parent.
    pub(crate) fn find_or_add(&mut self, pid: i32, parent: Option<i32>) -> &mut Process {
        if !self.has(pid) {
            let program_of = |parent| self.all.get(&parent).and_then(|it| it.program.clone());
            let process = match parent.and_then(program_of) {
                Some(program) => Process::forked(pid, program),
                None => Process::new(pid, self.iter().find_map(|it| it.program.clone())),
            };
            self.all.insert(pid, process);
            self.order.push(pid);
            // Its records may have come after it had ended.
            self.ending.push(pid);
        }
        self.all.get_mut(&pid).expect("it was inserted")
    }

    /// The process runs another program, of which nothing is known yet.
    pub(crate) fn replace(&mut self, pid: i32) {
        self.all.insert(pid, Process::new(pid, None));
    }

    /// Removes a process, which closes everything that is open for it.
    pub(crate) fn remove(&mut self, pid: i32) -> Option<Process> {
        self.order.retain(|&it| it != pid);
        self.all.remove(&pid)
    }

    /// The process may have ended.
    pub(crate) fn suspect(&mut self, pid: i32) {
        self.ending.push(pid);
    }

    /// All but these processes may have ended.
    pub(crate) fn suspect_all_but(&mut self, pids: &[i32]) {
        self.ending = self.order.iter().copied().filter(|pid| !pids.contains(pid)).collect();
    }

    /// Returns the processes that have ended among those that may have ended.
    pub(crate) fn take_ended(&mut self) -> Vec<i32> {
        let mut ended = Vec::new();
        for pid in std::mem::take(&mut self.ending) {
            match proc::lives(pid) {
                Ok(false) => ended.push(pid),
                // Its first thread has ended, and others have not.
                Ok(true) if proc::thread_state(pid, pid) == Some('Z') => self.ending.push(pid),
                Ok(true) => {}
                Err(_) => self.ending.push(pid),
            }
        }
        ended
    }
}
