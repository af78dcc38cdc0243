//! The source of a report: a live process, a snapshot, or a core file.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use formats::{
    Capture, CaptureMethod, Family, FamilyMemory, FindingKind, FindingRow, Report, ReportGroup,
    Snapshot, SnapshotError, Why,
};
use image::{Core, CoreError, CoreFile, Target};
use ledger::{Analyses, Dump, Explanation, Facts, Ledger, NoExplanation, Subject};
use linux::proc::{self, Member, Rollup};
use linux::{Sysroot, both, one_line};

use crate::attempts::{self, Captured};
use crate::error::Error;
use crate::isolation::isolated;
use crate::name::SourceName;
use crate::options::{CaptureOptions, Detail};
use crate::process::{Id, command, open, target};
use crate::progress::Progress;
use crate::sandbox::Sandbox;

/// The maximum size of a snapshot's file. The snapshot of a process of 100 GiB is smaller.
const MAX_BYTES: u64 = 2 << 30;

/// A source that was found and opened.
pub enum Source {
    /// A Ruby process that runs.
    Process(Box<Target>),
    /// The snapshot of a process.
    Snapshot(SnapshotFile),
    /// The core file of a process.
    Core(CoreSource),
}

/// The open file of a snapshot.
pub struct SnapshotFile {
    path: PathBuf,
    /// The bytes that were read already.
    head: Vec<u8>,
    file: File,
}

/// The open core file of a process, and the folder with the files that it had mapped.
pub struct CoreSource {
    path: PathBuf,
    file: CoreFile,
    sysroot: Sysroot,
    started: Instant,
}

/// A source of which everything is open or read, so that the rest needs no rights.
pub(crate) enum Taken {
    Process {
        pid: i32,
        captured: Box<Captured>,
        started: Instant,
        family: Option<FamilyMemory>,
        group: Option<ReportGroup>,
    },
    Snapshot(SnapshotFile),
    Core {
        path: PathBuf,
        core: Box<Core>,
        started: Instant,
    },
    /// A process that was accounted for before another one was captured, for less memory.
    Done(Box<Snapshot>),
}

impl Source {
    /// Finds the process, or opens the file.
    ///
    /// # Errors
    /// If there is no such process or file, or it is something else.
    pub fn open(name: SourceName) -> Result<Self, Error> {
        match name {
            SourceName::Process(name) => Ok(Self::Process(Box::new(open(name)?))),
            SourceName::File { path, sysroot } => Self::of_file(path, sysroot),
        }
    }

    /// Returns a name for files about it: the id of the process, or the name of the file without what rbloat added to it.
    pub fn name(&self) -> String {
        match self {
            Self::Process(target) => target.pid().to_string(),
            Self::Snapshot(SnapshotFile { path, .. }) | Self::Core(CoreSource { path, .. }) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let name = name.strip_suffix(".rbloat").unwrap_or(&name);
                name.strip_prefix("rbloat-").unwrap_or(name).to_owned()
            }
        }
    }

    /// Returns the source as an argument of another command.
    pub fn argument(&self) -> String {
        match self {
            Self::Process(target) => target.pid().to_string(),
            Self::Snapshot(SnapshotFile { path, .. }) | Self::Core(CoreSource { path, .. }) => {
                path.display().to_string()
            }
        }
    }

    fn of_file(path: PathBuf, sysroot: Option<PathBuf>) -> Result<Self, Error> {
        let unreadable = |source| Error::Unreadable { path: path.clone(), source };
        let file = File::open(&path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.is_dir() {
            return Err(unreadable(io::ErrorKind::IsADirectory.into()));
        }
        let mut head = Vec::new();
        // Another file may be endless, such as a device.
        (&file).take(64).read_to_end(&mut head).map_err(unreadable)?;
        if Snapshot::begins(&head) {
            return Ok(Self::Snapshot(SnapshotFile { path, head, file }));
        }
        let (file, started) = (CoreFile::new(&path, file).map_err(not_a_core)?, Instant::now());
        let sysroot = Sysroot::open(sysroot.as_deref());
        Ok(Self::Core(CoreSource { path, file, sysroot, started }))
    }

    /// Returns the report, and the memory map if `detail` has it.
    pub fn account(
        self,
        how: CaptureOptions,
        detail: Detail,
        sandbox: &Sandbox,
        progress: &dyn Progress,
    ) -> Result<Snapshot, Error> {
        let taken = self.take(how, detail, sandbox, progress)?;
        sandbox.run(|| taken.account(detail, progress))
    }

    /// Returns the report with all owners, and the memory map.
    pub fn snapshot(
        self,
        how: CaptureOptions,
        retained_sizes: bool,
        sandbox: &Sandbox,
        progress: &dyn Progress,
    ) -> Result<Snapshot, Error> {
        self.account(how, Detail::snapshot(retained_sizes), sandbox, progress)
    }

    /// Returns the reason why a subject exists.
    pub fn explain(
        self,
        how: CaptureOptions,
        subject: &Subject,
        sandbox: &Sandbox,
        progress: &dyn Progress,
    ) -> Result<Why, Error> {
        let detail = Detail {
            owners: true,
            analyses: Analyses { retained_sizes: true, ..Analyses::default() },
            family: false,
        };
        if let Self::Snapshot(_) = self {
            return Err(Error::SnapshotWithoutReferences);
        }
        let taken = self.take(how, detail, sandbox, progress)?;
        sandbox.run(|| taken.explain(subject, detail, progress))
    }

    /// Calls `write` in the sandbox with the heap as data.
    pub fn dump<T: Send>(
        self,
        how: CaptureOptions,
        detail: Detail,
        sandbox: &Sandbox,
        progress: &dyn Progress,
        write: impl FnOnce(&Dump<'_>) -> T + Send,
    ) -> Result<T, Error> {
        if let Self::Snapshot(_) = self {
            return Err(Error::SnapshotWithoutObjects);
        }
        let taken = self.take(how, detail, sandbox, progress)?;
        sandbox.run(|| taken.dump(detail, progress, write))
    }

    /// Takes everything that needs rights, and begins the sandbox.
    pub(crate) fn take(
        self,
        how: CaptureOptions,
        detail: Detail,
        sandbox: &Sandbox,
        progress: &dyn Progress,
    ) -> Result<Taken, Error> {
        let taken = take(vec![self], how, detail, sandbox, progress)?.pop();
        Ok(taken.expect("there is one for each source"))
    }
}

/// Takes each of these sources, and begins the sandbox.
///
/// Reading processes takes rights, and opening the files of cores still takes some. So processes come first, then cores,
/// whatever their order.
fn take(
    sources: Vec<Source>,
    how: CaptureOptions,
    detail: Detail,
    sandbox: &Sandbox,
    progress: &dyn Progress,
) -> Result<Vec<Taken>, Error> {
    let is_process = |source: &Source| matches!(source, Source::Process(_));
    let mut processes = sources.iter().filter(|source| is_process(source)).count();
    let mut opened = Vec::new();
    for source in sources {
        opened.push(match source {
            Source::Process(target) => {
                processes -= 1;
                let pid = target.pid();
                progress.capture(pid, target.counts.resident_bytes);
                let started = Instant::now();
                // The list of all processes does not change with the capture.
                let (captured, family) = both(
                    || attempts::take(&target, how, detail),
                    || if detail.family { proc::family(pid) } else { Vec::new() },
                );
                let captured = Box::new(captured?);
                let family = family_memory(&family);
                let group = if detail.family { group(&target) } else { None };
                let taken = Taken::Process { pid, captured, started, family, group };
                Opened::Taken(match processes {
                    0 => taken,
                    // The next capture needs all rights.
                    _ => {
                        let earlier = Sandbox::of_analyses(how.sandbox);
                        Taken::Done(Box::new(earlier.run(|| taken.account(detail, progress))?))
                    }
                })
            }
            Source::Snapshot(file) => Opened::Taken(Taken::Snapshot(file)),
            Source::Core(core) => Opened::Core(core),
        });
    }
    let cores = opened.iter().filter_map(Opened::core);
    let sysroots: Vec<_> = cores.map(|core| &core.sysroot).collect();
    if !sysroots.is_empty() {
        let folders: Vec<_> = sysroots.iter().filter_map(|sysroot| sysroot.folder()).collect();
        sandbox.begin_with_files(&folders);
    }
    let taken = opened.into_iter().map(Opened::take).collect();
    sandbox.begin();
    taken
}

/// Returns the snapshot of each of these sources, to be compared: without their families.
pub fn snapshots(
    sources: Vec<Source>,
    how: CaptureOptions,
    retained_sizes: bool,
    sandbox: &Sandbox,
    progress: &dyn Progress,
) -> Result<Vec<Snapshot>, Error> {
    let detail = Detail { family: false, ..Detail::snapshot(retained_sizes) };
    let taken = take(sources, how, detail, sandbox, progress)?;
    taken.into_iter().map(|taken| taken.account(detail, progress)).collect()
}

/// Returns the report of a snapshot's file, which is read in the sandbox.
pub fn report_of_file(path: &Path, sandbox: &Sandbox) -> Result<Report, Error> {
    match Source::of_file(path.to_owned(), None)? {
        Source::Snapshot(file) => Ok(sandbox.run(|| file.read())?.report),
        Source::Process(_) | Source::Core(_) => {
            Err(Error::NotASnapshot { path: path.into(), error: SnapshotError::Foreign })
        }
    }
}

/// A source in the order of the arguments, while cores must wait for the processes.
enum Opened {
    Taken(Taken),
    Core(CoreSource),
}

impl Opened {
    fn core(&self) -> Option<&CoreSource> {
        match self {
            Self::Core(core) => Some(core),
            Self::Taken(_) => None,
        }
    }

    fn take(self) -> Result<Taken, Error> {
        match self {
            Self::Taken(taken) => Ok(taken),
            Self::Core(core) => core.read(),
        }
    }
}

impl CoreSource {
    /// Reads the headers, and opens the files that the process had mapped.
    fn read(self) -> Result<Taken, Error> {
        let Self { path, file, sysroot, started } = self;
        let core =
            Box::new(image::read_core(file, &sysroot, diagnosis::VARIABLES).map_err(not_a_core)?);
        Ok(Taken::Core { path, core, started })
    }
}

fn not_a_core(error: CoreError) -> Error {
    match error {
        CoreError::NoCore { path, what } => Error::NoSource { path, what },
        error => Error::Core(error),
    }
}

impl SnapshotFile {
    fn read(self) -> Result<Snapshot, Error> {
        self.read_as(Snapshot::from_bytes)
    }

    /// Returns the account of a family that the file has.
    ///
    /// # Errors
    /// If it cannot be read, or has something else.
    pub fn family(self) -> Result<Family, Error> {
        self.read_as(Family::from_bytes)
    }

    fn read_as<T>(self, parse: fn(&[u8]) -> Result<T, SnapshotError>) -> Result<T, Error> {
        let Self { path, head: mut bytes, file } = self;
        if let Err(source) = file.take(MAX_BYTES).read_to_end(&mut bytes) {
            return Err(Error::Unreadable { path, source });
        }
        parse(&bytes).map_err(|error| Error::NotASnapshot { path, error })
    }
}

impl Taken {
    /// Accounts for the memory, unless that is done.
    pub(crate) fn account(
        self,
        detail: Detail,
        progress: &dyn Progress,
    ) -> Result<Snapshot, Error> {
        let snapshot = match self {
            Self::Process { captured, started, family, group, .. } => {
                progress.account(captured.state.process.rss_bytes);
                let mut snapshot = account(*captured, detail, started);
                snapshot.report.family = family;
                diagnosis::add_group(&mut snapshot.report, group);
                progress.end();
                snapshot
            }
            Self::Snapshot(file) => file.read()?,
            Self::Core { path, core, started } => {
                check_core(&path, &core)?;
                let facts = Facts::read(&core.image, detail.read_depth());
                account_for_core(&path, &core, &facts, started, detail)
            }
            Self::Done(snapshot) => *snapshot,
        };
        let report = &snapshot.report;
        if detail.analyses.retained_sizes && report.owners.is_some() && report.dominators.is_none()
        {
            return Err(Error::NoRetainedSizes);
        }
        Ok(snapshot)
    }

    /// Calls `write` with the heap as data.
    fn dump<T>(
        self,
        detail: Detail,
        progress: &dyn Progress,
        write: impl FnOnce(&Dump<'_>) -> T,
    ) -> Result<T, Error> {
        let retained_sizes = detail.analyses.retained_sizes;
        let written = match self {
            Self::Process { pid, captured, .. } => {
                captured.check_read(pid)?;
                progress.account(captured.state.process.rss_bytes);
                let written = captured.facts.dump(&captured.state, retained_sizes, write);
                progress.end();
                written
            }
            Self::Core { path, core, .. } => {
                check_core(&path, &core)?;
                let facts = Facts::read(&core.image, detail.read_depth());
                facts.dump(&core.image.state, retained_sizes, write)
            }
            Self::Snapshot(_) | Self::Done(_) => return Err(Error::SnapshotWithoutObjects),
        };
        written.map_err(|_| Error::NoReferences)
    }

    /// Returns the reason why a subject exists.
    fn explain(
        self,
        subject: &Subject,
        detail: Detail,
        progress: &dyn Progress,
    ) -> Result<Why, Error> {
        let (explanation, report) = match self {
            Self::Process { pid, mut captured, started, .. } => {
                captured.check_read(pid)?;
                progress.account(captured.state.process.rss_bytes);
                let explanation = Explanation::find(&captured.state, &captured.facts, subject);
                captured.facts.forget_owners();
                let report = account(*captured, detail, started).report;
                progress.end();
                (explanation, report)
            }
            Self::Core { path, core, started } => {
                check_core(&path, &core)?;
                let mut facts = Facts::read(&core.image, detail.read_depth());
                let explanation = Explanation::find(&core.image.state, &facts, subject);
                facts.forget_owners();
                (explanation, account_for_core(&path, &core, &facts, started, detail).report)
            }
            Self::Snapshot(_) | Self::Done(_) => return Err(Error::SnapshotWithoutReferences),
        };
        let explanation = explanation.map_err(|reason| match (reason, subject) {
            (NoExplanation::NoGraph, _) => Error::NoReferences,
            (_, Subject::Address(address)) => Error::NothingAt(*address),
            (_, Subject::Class(name)) => Error::NoObjects(name.clone()),
        })?;
        Ok(Why::new(report, &explanation))
    }
}

/// Fails if the process of a core was not a Ruby process. In a partial core, the missing part may be the one that
/// identifies it.
fn check_core(path: &Path, core: &Core) -> Result<(), Error> {
    if core.is_partial || ruby::find(&core.image).is_some() {
        return Ok(());
    }
    let command = command(&core.image);
    let pid = core.image.state.process.pid;
    Err(Error::NotRubyCore { path: path.into(), pid, command })
}

/// Returns the report on the Ruby process `id`. Nothing shows the progress.
///
/// # Errors
/// As [`target`]; if its memory could not be read in time.
pub fn report_of(id: Id, how: CaptureOptions, detail: Detail) -> Result<Report, Error> {
    snapshot_of(id, how, detail).map(|snapshot| snapshot.report)
}

/// Like [`report_of`], with the memory map if `detail` has it.
pub fn snapshot_of(id: Id, how: CaptureOptions, detail: Detail) -> Result<Snapshot, Error> {
    let started = Instant::now();
    isolated(id.0, || {
        let target = target(id)?;
        let captured = attempts::take(&target, how, detail)?;
        captured.check_read(id.0)?;
        let group = if detail.family { group(&target) } else { None };
        let mut snapshot =
            Sandbox::of_analyses(how.sandbox).run(|| account(captured, detail, started));
        diagnosis::add_group(&mut snapshot.report, group);
        Ok(snapshot)
    })
}

/// Accounts for a captured process. The examination began at `started`.
fn account(captured: Captured, detail: Detail, started: Instant) -> Snapshot {
    let Captured { facts, state, capture, left, .. } = captured;
    let (ledger, memory_map) = Ledger::draw_up_with(detail.analyses, &state, &facts);
    let mut report = diagnosis::report(&ledger, capture.with_elapsed(started.elapsed()));
    report.findings.extend(left.map(|refusal| {
        let (pid, error) = (state.process.pid, refusal.to_string());
        FindingRow::from(FindingKind::CopyLeft { pid, error })
    }));
    Snapshot { report, memory_map }
}

/// Accounts for the process of a core. The examination began at `started`.
fn account_for_core(
    path: &Path,
    core: &Core,
    facts: &Facts,
    started: Instant,
    detail: Detail,
) -> Snapshot {
    let (ledger, memory_map) = Ledger::draw_up_with(detail.analyses, &core.image.state, facts);
    let reason = one_line(&format!("read from {}, {}", path.display(), core.origin));
    let pause = Duration::ZERO;
    let capture =
        Capture::new(CaptureMethod::Core, reason, core.written, pause, started.elapsed(), None);
    Snapshot { report: diagnosis::report(&ledger, capture), memory_map }
}

/// Returns the sums over a family; `None` if it has one member.
fn family_memory(members: &[Member]) -> Option<FamilyMemory> {
    if members.len() < 2 {
        return None;
    }
    let rollups: Vec<Rollup> =
        members.iter().filter_map(|member| proc::rollup(member.pid).ok()).collect();
    // The others may not be ours to look at.
    (rollups.len() > 1).then(|| FamilyMemory {
        processes: rollups.len() as u64,
        rss_bytes: rollups.iter().map(|it| it.rss_bytes).sum(),
        pss_bytes: rollups.iter().map(|it| it.pss_bytes).sum(),
    })
}

/// The maximum number of processes in a control group that a report accounts for.
const MAX_PROCESSES: usize = 256;

/// Returns the account of the innermost control group of a process; `None` unless much of its memory is in no process.
fn group(target: &Target) -> Option<ReportGroup> {
    let groups = target.control_groups().ok()?;
    let mut memories = groups.iter().filter_map(|group| Some((group, group.memory()?)));
    let (group, memory) = memories.next().filter(|(group, _)| !group.is_top())?;
    let processes = group.processes();
    if processes.len() > MAX_PROCESSES {
        return None;
    }
    let kernel = group.memory_of_kernel()?;
    if !diagnosis::is_much_in_no_process(memory, kernel) {
        return None;
    }
    let mut rollups = Vec::new();
    for &pid in &processes {
        match proc::rollup(pid) {
            Ok(rollup) => rollups.push(rollup),
            // The rest of the group would seem to be in no process.
            Err(linux::Error::NotPermitted { .. }) => return None,
            Err(_) => {}
        }
    }
    let files = proc::open_tmpfs_files(&processes);
    Some(diagnosis::report_group(memory, kernel, &rollups, files))
}
