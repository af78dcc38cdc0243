use std::sync::OnceLock;

use linux::proc::{self, ControlGroup, GroupNames, Identity, MemoryCounts};
use linux::{Error, Machine, PauseFactors, WantedVariables};

use super::LiveMemory;
use crate::elf::{self, Module};
use crate::{Image, ProcessState};

/// Returns an image of the running process `pid`, without page states, threads and environment: that of its [`Target`].
///
/// # Errors
/// As [`Target::open`].
pub fn look(pid: i32) -> Result<Image<'static>, Error> {
    Target::open(pid, WantedVariables::default()).map(|target| target.image)
}

/// A running process that is to be examined, and the facts about it that do not change while its program runs. Each is read once.
///
/// Since the process runs on, only memory that does not change can be relied on, for example the headers of modules. A capture
/// verifies after the stop that the same program still runs: see [`Identity::verify`]. Then all facts are about the captured program.
pub struct Target {
    image: Image<'static>,
    /// The kernel's counts of its memory when it was opened.
    pub counts: MemoryCounts,
    /// `None` if they could not be read.
    groups: Option<GroupNames>,
    modules: OnceLock<Vec<Module>>,
    control_groups: OnceLock<Result<Vec<ControlGroup>, Error>>,
}

impl Target {
    /// Opens the running process `pid`, with these variables of its environment. Nothing is stopped.
    ///
    /// # Errors
    /// If there is no such process, or the kernel refuses.
    pub fn open(pid: i32, variables: WantedVariables) -> Result<Self, Error> {
        // Read first, so that everything else is of this program if it is verified later.
        let program = Identity::of(pid)?;
        let groups = GroupNames::of(pid).ok();
        let (process, counts) = proc::process_info(&program, groups.as_ref(), variables)?;
        let mappings = proc::mappings(pid, false)?;
        let machine = Machine::own();
        let state = ProcessState { program, process, machine, mappings, ..ProcessState::default() };
        Ok(Self {
            image: Image::new(state, LiveMemory::open_unscanned(pid)?),
            counts,
            groups,
            modules: OnceLock::new(),
            control_groups: OnceLock::new(),
        })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.image.state.process.pid
    }

    /// The program that runs in the process.
    #[must_use]
    pub fn program(&self) -> &Identity {
        &self.image.state.program
    }

    /// The process while it runs: an image without page states and threads.
    #[must_use]
    pub fn image(&self) -> &Image<'static> {
        &self.image
    }

    /// The facts that the length of a pause depends on.
    #[must_use]
    pub fn pause_factors(&self) -> PauseFactors {
        PauseFactors::new(self.counts, self.image.state.mappings.iter().count())
    }

    /// The modules that the program has loaded, in the order in which the dynamic linker searches them.
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        self.modules.get_or_init(|| elf::modules(&self.image))
    }

    /// The control groups of the process that count memory, from the innermost outwards.
    ///
    /// # Errors
    /// As [`GroupNames::control_groups`].
    pub fn control_groups(&self) -> Result<&[ControlGroup], &Error> {
        let groups = self.control_groups.get_or_init(|| match &self.groups {
            Some(names) => names.control_groups(),
            // For the error.
            None => proc::control_groups(self.pid()),
        });
        groups.as_ref().map(Vec::as_slice)
    }
}
