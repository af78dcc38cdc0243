//! What /proc says of a process, and why it might refuse to.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use procfs_core::FromRead;
use procfs_core::process::{Stat, Status};

use crate::{Error, Mappings, PAGE_SIZE, Process};

/// Bits of capabilities in a capability set.
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_SYS_PTRACE: u32 = 19;

/// How to give rbloat the right to examine other processes.
const GRANT: &str = "in Docker: --cap-add SYS_PTRACE; in Kubernetes: securityContext.capabilities.add: \
                     [\"SYS_PTRACE\"], or kubectl debug --profile=sysadmin";

/// Clock ticks as /proc counts them (USER_HZ, the same on every x86-64).
const TICKS_PER_SECOND: f64 = 100.0;

/// Prefixes of the environment variables that decide how memory is allocated.
const ALLOCATION_VARIABLES: [&str; 5] =
    ["MALLOC_", "LD_PRELOAD", "GLIBC_TUNABLES", "RUBY_GC_", "RUBY_THREAD_"];

/// Reads `/proc/PID/name` whole.
pub(crate) fn read(pid: i32, name: &str) -> Result<Vec<u8>, Error> {
    let path = format!("/proc/{pid}/{name}");
    fs::read(&path).map_err(|source| refusal(pid, path, source))
}

/// Opens `/proc/PID/name` for reading.
pub(crate) fn open(pid: i32, name: &str) -> Result<File, Error> {
    let path = format!("/proc/{pid}/{name}");
    File::open(&path).map_err(|source| refusal(pid, path, source))
}

/// The error for a file of /proc that could not be opened or read.
fn refusal(pid: i32, path: String, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) if !exists(pid) => Error::NoSuchProcess { pid },
        Some(libc::EACCES | libc::EPERM) => not_permitted(pid, "read"),
        _ => Error::Proc { path, source },
    }
}

fn exists(pid: i32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

pub(crate) fn parse<T: FromRead>(pid: i32, name: &str) -> Result<T, Error> {
    // Names are bytes, not always text.
    let text = String::from_utf8_lossy(&read(pid, name)?).into_owned();
    T::from_read(text.as_bytes()).map_err(|error| Error::Proc {
        path: format!("/proc/{pid}/{name}"),
        source: io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
    })
}

/// The sums over all mappings of a process, /proc/PID/smaps_rollup.
pub(crate) struct Rollup(String);

impl Rollup {
    pub(crate) fn read(pid: i32) -> Result<Self, Error> {
        let text = read(pid, "smaps_rollup")?;
        Ok(Self(String::from_utf8_lossy(&text).into_owned()))
    }

    /// The bytes of the row that begins with `key`, such as "Rss:". `None` where there is none: the
    /// process has no memory any more.
    pub(crate) fn bytes(&self, key: &str) -> Option<u64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(key))?;
        let kb: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        Some(kb * 1024)
    }
}

/// /proc/PID/status.
pub(crate) fn status(pid: i32) -> Result<Status, Error> {
    parse(pid, "status")
}

/// The resident bytes of the process by the kernel's fast count, as in its status.
pub(crate) fn resident_bytes(pid: i32) -> Result<u64, Error> {
    let text = read(pid, "statm")?;
    let pages = std::str::from_utf8(&text).ok().and_then(|it| it.split(' ').nth(1)?.parse().ok());
    Ok(pages.unwrap_or(0_u64) * PAGE_SIZE)
}

/// When the process was started, in clock ticks since boot: with its id, who it is.
pub(crate) fn start_time(pid: i32) -> Result<u64, Error> {
    parse::<Stat>(pid, "stat").map(|stat| stat.starttime)
}

/// How many threads the process has at one instant, the first one included where it has ended.
pub(crate) fn thread_count(pid: i32) -> Result<usize, Error> {
    parse::<Stat>(pid, "stat").map(|stat| usize::try_from(stat.num_threads).unwrap_or(0))
}

/// A time that the kernel counted in clock ticks.
pub(crate) fn time(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000 / TICKS_PER_SECOND as u64))
}

/// The CPU time that the threads of a process have had which it has now; those that ended in between are
/// missing.
pub(crate) fn cpu_time(pid: i32) -> Duration {
    let of = |tid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    };
    thread_ids(pid).unwrap_or_default().into_iter().filter_map(of).sum()
}

/// How many ms ago the machine's clock stood at so many ticks.
fn uptime_ms(started_ticks: u64) -> Option<u64> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    let started = started_ticks as f64 / TICKS_PER_SECOND;
    Some(((seconds - started).max(0.0) * 1e3) as u64)
}

/// The process's mappings: with the kernel's count of their residents (slower: the kernel walks
/// the page tables) or without.
pub(crate) fn mappings(pid: i32, counted: bool) -> Result<Mappings, Error> {
    let name = if counted { "smaps" } else { "maps" };
    Mappings::parse(&read(pid, name)?).map_err(|error| Error::Proc {
        path: format!("/proc/{pid}/{name}"),
        source: io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
    })
}

/// The ids of the process's threads, ascending. Where one ends meanwhile, others may be missing.
pub(crate) fn thread_ids(pid: i32) -> Result<Vec<i32>, Error> {
    let path = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::NoSuchProcess { pid },
        _ => Error::Proc { path, source },
    })?;
    let mut tids: Vec<i32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    Ok(tids)
}

/// Like [`thread_ids`], without the threads that have ended.
pub(crate) fn threads(pid: i32) -> Result<Vec<i32>, Error> {
    let mut tids = thread_ids(pid)?;
    tids.retain(|&tid| !matches!(thread_state(pid, tid), None | Some('Z' | 'X')));
    Ok(tids)
}

/// The state of one thread, a letter of proc(5); `None` where it is gone.
pub(crate) fn thread_state(pid: i32, tid: i32) -> Option<char> {
    let text = fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    // The name before it is whatever bytes the thread chose, parentheses among them.
    let name_end = text.windows(2).rposition(|pair| pair == b") ")?;
    text.get(name_end + 2).map(|&state| char::from(state))
}

/// The signals that a thread has handlers for and that it blocks, as sets of bits.
pub(crate) struct Signals {
    pub(crate) caught: u64,
    pub(crate) blocked: u64,
}

/// What becomes of signals to one thread; `None` where it is gone.
pub(crate) fn signals(pid: i32, tid: i32) -> Option<Signals> {
    let text = fs::read(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let set = |key: &str| {
        let line =
            text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(key.as_bytes()))?;
        u64::from_str_radix(std::str::from_utf8(line).ok()?.trim(), 16).ok()
    };
    Some(Signals { caught: set("SigCgt:")?, blocked: set("SigBlk:")? })
}

/// The words of a process's command line, joined by blanks; its name in brackets where it has none.
pub(crate) fn command_line(pid: i32) -> Result<String, Error> {
    let words = read(pid, "cmdline")?;
    let words = one_line(String::from_utf8_lossy(&words).trim_end_matches('\0'));
    if words.is_empty() {
        return Ok(format!("[{}]", one_line(&status(pid)?.name)));
    }
    Ok(words)
}

/// Who the process is. Of its environment only what decides about allocation is kept.
pub(crate) fn process(pid: i32) -> Result<Process, Error> {
    let status = status(pid)?;
    let environment = match read(pid, "environ") {
        Ok(variables) => Some(allocation_variables(&String::from_utf8_lossy(&variables))),
        // CAP_SYS_PTRACE alone opens no file that belongs to another user.
        Err(Error::NotPermitted { .. }) => None,
        Err(error) => return Err(error),
    };
    let started = start_time(pid)?;
    Ok(Process {
        pid,
        started_ticks: Some(started),
        uptime_ms: uptime_ms(started),
        command: command_line(pid)?,
        environment,
        namespace_pid: namespace_pid(&status),
        threads: status.threads,
        rss_bytes: status.vmrss.unwrap_or(0) * 1024,
    })
}

/// How far VmRSS may be off, in bytes.
///
/// The kernel counts the pages of files, anonymous ones and those of shared memory on each processor
/// by itself, and adds these counts up whenever one has reached a batch (lib/percpu_counter.c,
/// `compute_batch_value`). Some releases sum up exactly for /proc/PID/status.
pub(crate) fn rss_error_bytes() -> u64 {
    const COUNTERS: u64 = 3;
    const MIN_BATCH: u64 = 32;
    // SAFETY: sysconf takes a number alone.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let processors = u64::try_from(processors).unwrap_or(1).max(1);
    COUNTERS * processors * MIN_BATCH.max(2 * processors) * PAGE_SIZE
}

/// The id that a process has in its own pid namespace, where that is not the one that /proc shows.
pub(crate) fn namespace_pid(status: &Status) -> Option<i32> {
    match status.nspid.as_deref() {
        Some([_, .., own]) => Some(*own),
        _ => None,
    }
}

/// Fails where the ids in /proc are not those that ptrace(2) takes.
pub(crate) fn check_namespace() -> Result<(), Error> {
    // Where /proc is that of a namespace beside or below ours, we are not in it; in that of one
    // above we have an id for each namespace on the way.
    let own = fs::read("/proc/self/status").map_err(|_| Error::ForeignProc)?;
    match Status::from_read(&own[..]) {
        Ok(own) if namespace_pid(&own).is_some() => Err(Error::ForeignProc),
        _ => Ok(()),
    }
}

/// `text` with a blank for every control character, the words' separators among them: what a process
/// puts into its command line must not reach a terminal as more than text.
pub(crate) fn one_line(text: &str) -> String {
    text.replace(crate::is_control, " ")
}

pub(crate) fn allocation_variables(environment: &str) -> Vec<(String, String)> {
    environment
        .split('\0')
        .filter_map(|variable| variable.split_once('='))
        .filter(|(key, _)| ALLOCATION_VARIABLES.iter().any(|prefix| key.starts_with(prefix)))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Fails where `pid` is nothing that has memory, or something that must not be stopped.
pub(crate) fn check_has_memory(pid: i32) -> Result<(), Error> {
    if pid == std::process::id().cast_signed() {
        return Err(Error::Itself { pid });
    }
    if pid <= 0 {
        return Err(Error::NoSuchProcess { pid });
    }
    check_namespace()?;
    let status = status(pid)?;
    if status.tgid != pid {
        return Err(Error::Thread { pid, process: status.tgid });
    }
    // A process whose first thread has ended is shown as a zombie while others run on.
    if status.state.starts_with('Z') && threads(pid)?.is_empty() {
        return Err(Error::Zombie { pid, parent: status.ppid });
    }
    if status.vmsize.is_none() && !status.state.starts_with('Z') {
        return Err(Error::KernelThread { pid });
    }
    check_untraced(pid, pid)
}

/// Fails where another process traces the thread `tid` of `pid`; not where it is gone.
pub(crate) fn check_untraced(pid: i32, tid: i32) -> Result<(), Error> {
    let Ok(status_of_thread) = parse::<Status>(pid, &format!("task/{tid}/status")) else {
        return Ok(());
    };
    match status_of_thread.tracerpid {
        0 => Ok(()),
        // The kernel names the thread that traces.
        tracer => Err(match status(tracer) {
            Ok(status) => Error::Traced { pid, tracer: status.tgid, name: status.name },
            Err(_) => Error::Traced { pid, tracer, name: "unknown".into() },
        }),
    }
}

/// The error for a refusal by the kernel, with the reason as far as it can be seen from outside.
pub(crate) fn not_permitted(pid: i32, what: &'static str) -> Error {
    Error::NotPermitted { pid, what, remedy: remedy(pid) }
}

/// What decides whether a process may be looked at.
struct Rights {
    /// Whether rbloat has CAP_SYS_PTRACE.
    capable: bool,
    /// Whether it may open files that belong to other users.
    opens_all: bool,
    /// The setting of the security module Yama; 0 where the kernel has none.
    ptrace_scope: u32,
    own_uid: u32,
    their_uid: u32,
    /// The owner of the files of the process in /proc.
    owner: Option<u32>,
}

fn remedy(pid: i32) -> String {
    let own = status(std::process::id().cast_signed());
    let theirs = status(pid);
    let (Ok(own), Ok(theirs)) = (own, theirs) else {
        return format!("run rbloat as root; {GRANT}");
    };
    let has = |capability: u32| own.capeff >> capability & 1 == 1;
    Rights {
        capable: has(CAP_SYS_PTRACE),
        opens_all: has(CAP_DAC_OVERRIDE) || has(CAP_DAC_READ_SEARCH),
        ptrace_scope: fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0),
        own_uid: own.euid,
        their_uid: theirs.euid,
        owner: fs::metadata(format!("/proc/{pid}/environ")).map(|file| file.uid()).ok(),
    }
    .remedy()
}

impl Rights {
    /// Why the kernel refuses, as far as these tell, and what helps.
    fn remedy(&self) -> String {
        let Self { capable, opens_all, ptrace_scope, own_uid, their_uid, owner } = *self;
        if ptrace_scope >= 3 {
            return format!(
                "kernel.yama.ptrace_scope is {ptrace_scope}: nobody can stop a process, not even root, \
                 until the next reboot"
            );
        }
        if capable && !opens_all && owner.is_some_and(|owner| owner != own_uid) {
            return "needs CAP_DAC_READ_SEARCH beside CAP_SYS_PTRACE to open the files of another \
                    user's process; run rbloat as root"
                .into();
        }
        if capable {
            return "rbloat has CAP_SYS_PTRACE, so the process is probably in another user namespace, \
                    or a security module (SELinux, AppArmor, seccomp) forbids it; run rbloat as root \
                    on the host"
                .into();
        }
        if own_uid != their_uid {
            return format!(
                "needs CAP_SYS_PTRACE: it runs as uid {their_uid}, rbloat as uid {own_uid}; run rbloat \
                 as root or as that user; {GRANT}"
            );
        }
        if ptrace_scope > 0 {
            return format!(
                "needs CAP_SYS_PTRACE: kernel.yama.ptrace_scope is {ptrace_scope}; run rbloat as root, \
                 or set /proc/sys/kernel/yama/ptrace_scope to 0; {GRANT}"
            );
        }
        // The files of a process that may not be dumped belong to root, whoever runs it.
        if owner == Some(0) && own_uid != 0 {
            return "needs CAP_SYS_PTRACE: it may not be dumped (it changed its user or was started \
                    with privileges); run rbloat as root"
                .into();
        }
        format!("needs CAP_SYS_PTRACE; run rbloat as root; {GRANT}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_stays_one_line_of_text() {
        assert_eq!(one_line("ruby\0-e\0puts 1\nputs \u{1b}[31m2"), "ruby -e puts 1 puts  [31m2");
    }

    #[test]
    fn a_refusal_says_what_stands_in_the_way() {
        let root = Rights {
            capable: true,
            opens_all: true,
            ptrace_scope: 0,
            own_uid: 0,
            their_uid: 0,
            owner: Some(0),
        };
        let ids = Rights { own_uid: 7, their_uid: 7, owner: Some(7), ..root };
        let user = Rights { capable: false, opens_all: false, ..ids };
        let cases = [
            (Rights { ..root }, "another user namespace"),
            (Rights { ptrace_scope: 1, ..root }, "another user namespace"),
            (Rights { ptrace_scope: 3, ..root }, "next reboot"),
            (
                Rights { opens_all: false, their_uid: 8, owner: Some(8), ..ids },
                "CAP_DAC_READ_SEARCH",
            ),
            (Rights { ..user }, "--cap-add SYS_PTRACE"),
            (Rights { ..user }, "kubectl debug --profile=sysadmin"),
            (Rights { their_uid: 8, ptrace_scope: 1, ..user }, "runs as uid 8, rbloat as uid 7"),
            (Rights { ptrace_scope: 1, ..user }, "ptrace_scope is 1; run rbloat as root"),
            (Rights { ptrace_scope: 3, ..user }, "next reboot"),
            (Rights { owner: Some(0), ..user }, "may not be dumped"),
        ];
        for (rights, said) in cases {
            assert!(rights.remedy().contains(said), "{said}: {}", rights.remedy());
        }
    }

    #[test]
    fn of_the_environment_only_what_decides_about_allocation_is_kept() {
        let environment = "SECRET=x\0MALLOC_ARENA_MAX=2\0LD_PRELOAD=a=b\0PATH=/bin\0odd";
        let kept = [("MALLOC_ARENA_MAX", "2"), ("LD_PRELOAD", "a=b")];
        let kept = kept.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(allocation_variables(environment), kept);
    }
}
