//! The sandbox: rbloat gives up its rights before it analyses the data that it has read.
//!
//! From then on it only reads open files, computes and writes its output. It needs no capabilities, no other files, no
//! network and no other processes. Three layers take them away: capset(2), Landlock, and a seccomp filter.
//!
//! A command that needs its rights again, such as `record`, keeps them and analyses on threads that give them up. This
//! protects against errors in the logic of an analysis, but not against code that an attacker runs in rbloat, since
//! threads share their memory.
//!
//! The filter lists the allowed system calls. All others fail with ENOSYS, as on an old kernel, which C libraries and
//! allocators are built to handle. If the filter killed rbloat instead, a harmless call of a future library would cost
//! the report.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Once};

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};
use output::Output;
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, BpfProgramRef, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use crate::interruption;

/// The sandbox that the user wants.
#[derive(Debug, Clone, Copy)]
pub struct SandboxOptions {
    /// False if all rights are kept.
    pub is_enabled: bool,
    /// Gets a sentence once, if a part of the sandbox could not be set up.
    pub complain: fn(&str),
}

/// A sandbox that has not begun yet.
#[derive(Debug)]
pub struct Sandbox {
    options: SandboxOptions,
    reach: Reach,
    has_begun: Cell<bool>,
    /// The folders of outputs that have no name yet.
    folders: Vec<Arc<OwnedFd>>,
    /// True if giving them their names needs root's rights.
    takes_rights: bool,
}

/// What gives up its rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The calling thread and the threads that it starts later. The filter applies to all threads, because some threads
    /// of the capture may not have ended yet.
    Process,
    /// A new thread for each analysis.
    Analyses,
}

/// The work that remains when a sandbox begins.
#[derive(Clone, Copy)]
enum Stage<'a> {
    /// Opening files beneath these folders for reading, and computing.
    Opening(&'a [BorrowedFd<'a>]),
    /// Computing only.
    Computing,
}

/// The rights by which root reads and writes the files of others.
const TO_READ: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);
const TO_NAME: CapabilitySet = TO_READ.union(CapabilitySet::FOWNER);

/// The newest version of Landlock that was tested. Older kernels enforce the part that they support.
const LANDLOCK: ABI = ABI::V7;

impl Sandbox {
    /// Returns a sandbox for the process, in which these outputs can be completed.
    #[must_use]
    pub fn new<'a>(options: SandboxOptions, outputs: impl IntoIterator<Item = &'a Output>) -> Self {
        let pending: Vec<_> = outputs.into_iter().filter_map(Output::pending).collect();
        Self {
            options,
            reach: Reach::Process,
            has_begun: Cell::new(false),
            takes_rights: pending.iter().any(|(_, takes_rights)| *takes_rights),
            folders: pending.into_iter().map(|(folder, _)| folder).collect(),
        }
    }

    /// Returns a sandbox for the analyses of a process that needs its rights again afterwards.
    #[must_use]
    pub fn of_analyses(options: SandboxOptions) -> Self {
        Self { reach: Reach::Analyses, ..Self::new(options, []) }
    }

    /// Begins the sandbox of the process for an analysis that first opens files beneath `folders`.
    pub fn begin_with_files(&self, folders: &[BorrowedFd<'_>]) {
        if self.reach == Reach::Process {
            self.enter(Stage::Opening(folders));
        }
    }

    /// Begins the sandbox of the process. From now on, no further files can be opened. Further calls have no effect.
    pub fn begin(&self) {
        if self.reach == Reach::Process && !self.has_begun.replace(true) {
            self.enter(Stage::Computing);
        }
    }

    /// Runs an analysis in the sandbox.
    pub fn run<T: Send>(&self, analysis: impl FnOnce() -> T + Send) -> T {
        let options = self.options;
        match self.reach {
            Reach::Process => {
                self.begin();
                analysis()
            }
            Reach::Analyses => on_a_thread(move || {
                Self::of_analyses(options).enter(Stage::Computing);
                analysis()
            }),
        }
    }

    fn enter(&self, stage: Stage<'_>) {
        // A recording makes many analyses.
        static COMPLAINT: Once = Once::new();
        if !self.options.is_enabled {
            return;
        }
        let failures = match self.reach {
            Reach::Process => interruption::restricted(|| {
                self.restrict(stage, seccompiler::apply_filter_all_threads)
            }),
            Reach::Analyses => self.restrict(stage, seccompiler::apply_filter),
        };
        if !failures.is_empty() {
            let failures = failures.join("; ");
            let sentence = format!("a part of the sandbox is missing: {failures}");
            COMPLAINT.call_once(|| (self.options.complain)(&sentence));
        }
    }

    /// Sets up all layers that this kernel supports, and returns the failures. A kernel without Landlock is not a
    /// failure, since the filter forbids the same.
    fn restrict(
        &self,
        stage: Stage<'_>,
        apply: impl FnOnce(BpfProgramRef<'_>) -> Result<(), seccompiler::Error>,
    ) -> Vec<String> {
        let say = |layer: &str, error: &dyn Display| format!("{layer}: {error}");
        let rights = self.drop_capabilities(stage).map_err(|error| say("capabilities", &error));
        let files = self.restrict_files(stage).map_err(|error| say("Landlock", &error));
        // Last, since the filter forbids the calls that set up the other layers.
        let calls = self.filter(stage).and_then(|filter| apply(&filter));
        let calls = calls.map_err(|error| say("seccomp", &error));
        [rights.err(), files.err(), calls.err()].into_iter().flatten().collect()
    }

    fn drop_capabilities(&self, stage: Stage<'_>) -> rustix::io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        let mut kept = CapabilitySet::empty();
        if let Stage::Opening(_) = stage {
            kept |= TO_READ;
        }
        if self.takes_rights {
            kept |= TO_NAME;
        }
        let had = rustix::thread::capabilities(None)?;
        let sets = CapabilitySets {
            effective: had.effective & kept,
            permitted: had.permitted & kept,
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, sets)
    }

    fn restrict_files(&self, stage: Stage<'_>) -> Result<RulesetStatus, landlock::RulesetError> {
        let mut rules = Ruleset::default()
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?;
        for folder in &self.folders {
            let access = AccessFs::MakeReg | AccessFs::RemoveFile;
            rules = rules.add_rule(PathBeneath::new(folder, access))?;
        }
        if let Stage::Opening(folders) = stage {
            for folder in folders {
                rules = rules.add_rule(PathBeneath::new(folder, AccessFs::ReadFile))?;
            }
        }
        Ok(rules.restrict_self()?.ruleset)
    }

    fn filter(&self, stage: Stage<'_>) -> Result<BpfProgram, seccompiler::Error> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            COMPUTING.iter().map(|&call| (call, Vec::new())).collect();
        for (call, argument, mask, values) in conditions() {
            let rule = |&value: &u32| {
                let operator = SeccompCmpOp::MaskedEq(mask.into());
                let length = SeccompCmpArgLen::Dword;
                let condition = SeccompCondition::new(argument, length, operator, value.into())?;
                SeccompRule::new(vec![condition])
            };
            rules.insert(call, values.iter().map(rule).collect::<Result<_, _>>()?);
        }
        if !self.folders.is_empty() {
            rules.extend(NAMING.iter().map(|&call| (call, Vec::new())));
        }
        if let Stage::Opening(_) = stage {
            rules.extend(OPENING.iter().map(|&call| (call, Vec::new())));
        }
        let (other, listed) = (SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow);
        let arch = std::env::consts::ARCH.try_into()?;
        Ok(SeccompFilter::new(rules, other, listed, arch)?.try_into()?)
    }
}

/// Runs `work` on a new thread, and returns its result or its panic.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(work);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The calls of an analysis: to read and write open files, to allocate memory, to start threads, and to end.
const COMPUTING: [i64; 44] = [
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
];

/// The calls that give a complete file its name.
const NAMING: [i64; 4] =
    [libc::SYS_linkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_unlinkat];

/// The calls that open files, and those that begin the next stage.
const OPENING: [i64; 11] = [
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_prctl,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    libc::SYS_seccomp,
];

/// A system call, the index of one of its arguments, a mask, and the values of the masked argument that are allowed.
type Conditional = (i64, u8, u32, Vec<u32>);

/// The calls that are allowed only with certain arguments.
fn conditions() -> [Conditional; 7] {
    const ALL: u32 = u32::MAX;
    let (executable, thread) = (libc::PROT_EXEC as u32, libc::CLONE_THREAD as u32);
    let terminal = [libc::TCGETS, libc::TCGETS2, libc::TIOCGWINSZ].map(|it| it as u32);
    [
        // Memory that is not executable.
        (libc::SYS_mmap, 2, executable, vec![0]),
        (libc::SYS_mprotect, 2, executable, vec![0]),
        // Threads, but no processes. A C library that gets ENOSYS for clone3 uses clone.
        (libc::SYS_clone, 0, thread, vec![thread]),
        (libc::SYS_prctl, 0, ALL, vec![libc::PR_SET_NAME as u32]),
        // The width of the terminal, and whether it is one.
        (libc::SYS_ioctl, 1, ALL, terminal.to_vec()),
        // In debug builds, the standard library checks each descriptor before it closes it.
        (libc::SYS_fcntl, 1, ALL, vec![libc::F_GETFD as u32]),
        // abort(3), and the end by a signal.
        (libc::SYS_tgkill, 0, ALL, vec![std::process::id()]),
    ]
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{self, Read};
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    use std::thread;

    use nix::errno::Errno;
    use nix::sys::uio::{RemoteIoVec, process_vm_readv};
    use nix::sys::{ptrace, signal};
    use nix::unistd::Pid;
    // For the calling thread only: the others run other tests.
    use seccompiler::apply_filter;

    use super::*;

    const ENABLED: SandboxOptions =
        SandboxOptions { is_enabled: true, complain: |sentence| panic!("{sentence}") };

    fn sandbox(outputs: &[&Output]) -> Sandbox {
        Sandbox::new(ENABLED, outputs.iter().copied())
    }

    fn restrict(stage: Stage<'_>) {
        assert_eq!(sandbox(&[]).restrict(stage, apply_filter), Vec::<String>::new());
    }

    #[track_caller]
    fn assert_forbidden<T>(result: io::Result<T>) {
        assert_eq!(result.err().and_then(|error| error.raw_os_error()), Some(libc::ENOSYS));
    }

    #[test]
    fn no_file_program_socket_or_process_can_be_reached() {
        on_a_thread(|| {
            restrict(Stage::Computing);
            assert_forbidden(File::open("/etc/passwd"));
            assert_forbidden(File::create("/tmp/rbloat-sandbox"));
            assert_forbidden(std::fs::remove_file("/tmp/rbloat-sandbox"));
            assert_forbidden(std::fs::read_dir("/"));
            assert_forbidden(
                rustix::fs::openat2(
                    rustix::fs::CWD,
                    "/",
                    rustix::fs::OFlags::PATH,
                    rustix::fs::Mode::empty(),
                    rustix::fs::ResolveFlags::empty(),
                )
                .map_err(io::Error::from),
            );
            assert_forbidden(Command::new("/bin/true").spawn());
            assert_forbidden(TcpListener::bind("127.0.0.1:0"));
            assert_forbidden(UdpSocket::bind("127.0.0.1:0"));
            assert_forbidden(UnixStream::pair());
            let (own, mut byte) = (Pid::this(), [0]);
            assert_eq!(signal::kill(own, None), Err(Errno::ENOSYS));
            assert_eq!(ptrace::seize(own, ptrace::Options::empty()), Err(Errno::ENOSYS));
            let remote = [RemoteIoVec { base: byte.as_ptr() as usize, len: 1 }];
            let local = &mut [io::IoSliceMut::new(&mut byte)];
            assert_eq!(process_vm_readv(own, local, &remote), Err(Errno::ENOSYS));
            let sets = CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            };
            assert!(rustix::thread::set_capabilities(None, sets).is_err());
        });
    }

    #[test]
    fn an_analysis_can_compute_read_open_files_and_write_its_output() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        on_a_thread(|| {
            let output = Output::open(&path).unwrap();
            let mut open = File::open("/proc/self/exe").unwrap();
            assert_eq!(
                sandbox(&[&output]).restrict(Stage::Computing, apply_filter),
                Vec::<String>::new()
            );
            let mut head = [0; 4];
            open.read_exact(&mut head).unwrap();
            let sums = thread::scope(|scope| {
                let sum = |from: u64| (from..from + 100_000).collect::<Vec<_>>().iter().sum();
                let threads: Vec<_> = (0..4).map(|at| scope.spawn(move || sum(at))).collect();
                threads.into_iter().map(|it| it.join().unwrap()).collect::<Vec<u64>>()
            });
            let set: std::collections::HashSet<_> = sums.into_iter().collect();
            assert_eq!(set.len(), 4);
            assert!(std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(1))).is_err());
            output.write(&head).unwrap();
            assert_forbidden(File::open(&path));
        });
        assert_eq!(std::fs::read(&path).unwrap(), b"\x7fELF");
    }

    #[test]
    fn only_the_thread_of_an_analysis_loses_its_rights() {
        let sandbox = Sandbox::of_analyses(ENABLED);
        let had = rustix::thread::capabilities(None).unwrap();
        for _ in 0..2 {
            let sum = sandbox.run(|| {
                assert_forbidden(File::open("/proc/self/exe"));
                assert_forbidden(Command::new("/bin/true").spawn());
                let left = rustix::thread::capabilities(None);
                assert!(left.is_err() || left.unwrap().permitted.is_empty());
                let sums = thread::scope(|scope| {
                    let forbidden = || assert_forbidden(File::open("/proc/self/exe"));
                    scope.spawn(forbidden).join().map(|()| 3)
                });
                sums.unwrap()
            });
            assert_eq!(sum, 3);
            // It begins neither of these for the process.
            sandbox.begin();
            sandbox.begin_with_files(&[]);
            assert!(File::open("/proc/self/exe").is_ok());
            assert_eq!(rustix::thread::capabilities(None).unwrap(), had);
        }
        let without = Sandbox::of_analyses(SandboxOptions { is_enabled: false, ..ENABLED });
        assert!(without.run(|| File::open("/proc/self/exe")).is_ok());
    }

    #[test]
    fn files_beneath_a_folder_can_be_opened_at_first() {
        let folder = tempfile::tempdir().unwrap();
        let (within, outside) = (folder.path().join("within"), tempfile::tempdir().unwrap());
        std::fs::create_dir(&within).unwrap();
        let (file, other) = (within.join("a"), outside.path().join("b"));
        std::fs::write(&file, "a").unwrap();
        std::fs::write(&other, "b").unwrap();
        let opened = File::open(&within).unwrap();
        on_a_thread(|| {
            let sandbox = sandbox(&[]);
            let folders = [std::os::fd::AsFd::as_fd(&opened)];
            let status = File::open("/proc/thread-self/status").unwrap();
            assert_eq!(
                sandbox.restrict(Stage::Opening(&folders), apply_filter),
                Vec::<String>::new()
            );
            assert_eq!(io::read_to_string(File::open(&file).unwrap()).unwrap(), "a");
            assert!(Command::new("/bin/true").spawn().is_err());
            // Without Landlock, the kernel's permissions apply.
            if has_landlock() {
                assert!(File::open(&other).is_err());
                assert!(File::options().write(true).open(&file).is_err());
            }
            assert_eq!(sandbox.restrict(Stage::Computing, apply_filter), Vec::<String>::new());
            assert_forbidden(File::open(&file));
            let status = io::read_to_string(status).unwrap();
            assert!(status.contains("\nCapPrm:\t0000000000000000\n"), "{status}");
        });
    }

    fn has_landlock() -> bool {
        let status = on_a_thread(|| sandbox(&[]).restrict_files(Stage::Computing).unwrap());
        status != RulesetStatus::NotEnforced
    }

    #[test]
    fn landlock_alone_forbids_files_and_the_network() {
        if !has_landlock() {
            return testkit::skip("this kernel has no Landlock");
        }
        on_a_thread(|| {
            sandbox(&[]).restrict_files(Stage::Computing).unwrap();
            let denied = Some(libc::EACCES);
            let error = |result: io::Result<()>| result.err().and_then(|it| it.raw_os_error());
            assert_eq!(error(File::open("/etc/passwd").map(drop)), denied);
            assert_eq!(error(File::create("/tmp/rbloat-sandbox").map(drop)), denied);
            assert_eq!(error(TcpListener::bind("127.0.0.1:0").map(drop)), denied);
        });
    }

    #[test]
    fn no_capability_is_left() {
        on_a_thread(|| {
            sandbox(&[]).drop_capabilities(Stage::Computing).unwrap();
            let left = rustix::thread::capabilities(None).unwrap();
            assert!(left.permitted.is_empty() && left.effective.is_empty());
            assert!(rustix::thread::no_new_privs().unwrap());
        });
    }

    /// Such as a kernel before 5.13, or a container whose filter denies these calls.
    #[test]
    fn a_kernel_without_a_sandbox_is_no_error() {
        on_a_thread(|| {
            let denied = [libc::SYS_landlock_create_ruleset, libc::SYS_seccomp, libc::SYS_capset];
            let rules = denied.iter().map(|&call| (call, Vec::new())).collect();
            let (allow, deny) = (SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32));
            let arch = std::env::consts::ARCH.try_into().unwrap();
            let filter = SeccompFilter::new(rules, allow, deny, arch).unwrap();
            seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
            let failures = sandbox(&[]).restrict(Stage::Computing, apply_filter);
            let [rights, calls] = &failures[..] else { panic!("{failures:?}") };
            assert!(rights.starts_with("capabilities: "), "{rights}");
            assert!(calls.starts_with("seccomp: "), "{calls}");
            assert!(File::open("/etc/passwd").is_ok());
        });
    }
}
