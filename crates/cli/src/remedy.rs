//! The rest of the sentence on an error: what the user can do about it. No crate below names an option or another program.

use std::borrow::Cow;
use std::path::Path;

use examine::{NoStacks, Purpose, Refusal, TraceFailure};
use formats::{NoCopy, RecordingError, SnapshotError, SnapshotKind};
use image::CoreError;
use ledger::Finding;
use linux::proc::Obstacle;
use nix::errno::Errno;
use render::words;

/// The ways to give rbloat the right to examine other processes.
const GRANT: &str = "; in Docker: --cap-add SYS_PTRACE; in Kubernetes: securityContext.capabilities.add: [\"SYS_PTRACE\"], or kubectl \
                     debug --profile=sysadmin";
const MORE_FILES: &str = "; raise the limit (ulimit -n 64)";

/// Returns the sentence on an error, with what the user can do about it.
pub(crate) fn explained(error: &examine::Error) -> String {
    format!("{error}{}", remedy(error))
}

pub(crate) fn remedy_of_recording(error: &RecordingError) -> &'static str {
    match error {
        RecordingError::OtherVersion(_) => ": read it with the rbloat that wrote it",
        _ => "",
    }
}

pub(crate) fn remedy_of_agent(error: &agent::Error) -> &'static str {
    match error {
        agent::Error::CannotListen { .. } => "; give another address with --listen",
        agent::Error::NoSnapshots => ": add --snapshots DIR",
        agent::Error::NoAuthorities => ": name a file with --push-ca",
        _ => "",
    }
}

pub(crate) fn remedy_of_screen(error: &top::Error) -> &'static str {
    match error {
        top::Error::NoScreen(_) => {
            ". `rbloat` lists the Ruby processes once, and `rbloat record PID` records the memory of a process over time"
        }
        _ => "",
    }
}

/// Returns what the user can do about a file that is no snapshot.
pub(crate) fn remedy_of_added(error: &examine::Error) -> Cow<'static, str> {
    match error {
        examine::Error::Unreadable { .. } => "; give a file that `rbloat snapshot` wrote".into(),
        examine::Error::NoSource { .. } => "".into(),
        error => remedy(error),
    }
}

/// Returns what the user can do about an error, as the rest of its sentence.
pub(crate) fn remedy(error: &examine::Error) -> Cow<'static, str> {
    use examine::Error as E;
    match error {
        E::Capture(error) => return of_capture(error),
        E::Core(CoreError::Damaged { .. }) => {
            "; it may have been cut short (a full disk, or a limit: ulimit -c) or altered"
        }
        E::CallRefused { purpose: Purpose::Fork, refusal, .. } => return of_refused_copy(refusal),
        E::CallRefused { purpose: Purpose::Trim, refusal, .. } if refusal.is_transient() => {
            "; try again, or when it has less to do"
        }
        E::CallRefused { refusal, .. } => of_refusal(refusal),
        E::CopyLost(_) => error.refusal().map_or("", of_refusal),
        E::Unread { unread, .. } => return format!(": {}", words::unread(unread)).into(),
        E::NoStacks { reason: NoStacks::NoHeap(error), .. } => of_heap(&error.clone().into()),
        E::NoStacks { reason: NoStacks::NotCollected, .. } => ". Try again later",
        E::NotASnapshot { error: SnapshotError::OtherVersion(_), .. } => {
            ": read it with that version"
        }
        E::NotASnapshot { error: SnapshotError::OtherKind(kind), .. } => match kind {
            SnapshotKind::Family => ", which report and diff read with --tree",
            SnapshotKind::Process => ": leave out --tree",
        },
        E::NotRuby { ruby: Some(pid), .. } => {
            return format!("; give the Ruby process below it: {pid}").into();
        }
        E::NotRuby { .. } | E::NoSuchCommand { .. } => "; `rbloat` lists the Ruby processes",
        E::NotInContainer { .. } => "; `rbloat` lists the Ruby processes with both ids",
        E::Ambiguous { .. } => "; give one of these ids without --namespace-pid",
        E::NoName => ": give its id, or a word of its command line",
        E::ManyCommands { .. } => "; give one of these ids, or report on all with --tree",
        E::NoRoom { .. } => {
            ". Run rbloat outside of the control group of the process (in Kubernetes: in an ephemeral container with a limit of \
             its own), or raise the limit"
        }
        E::Unreadable { .. } => {
            "; give a process id, a file that `rbloat snapshot` wrote, or a core file"
        }
        E::NoSource { path, .. } if has_extension(path, &["json"]) => {
            ". JSON is for other programs: give the process, the snapshot or the core that it is about. Samples of `rbloat who` are for --who"
        }
        E::NoSource { path, .. } if has_extension(path, &["ndjson", "gz"]) => {
            ". `rbloat diff` reads dumps: here give the process or the core, or a file that `rbloat snapshot` wrote"
        }
        E::NoSource { .. } => {
            "; if you mean the process of this program, give its id (`rbloat` lists them). `rbloat report` reads recordings, whose \
             names end in .jsonl"
        }
        E::NotSamples { kind: "kept", .. } => "; for dumps, give a file that `rbloat who PID --kept -o kept.json` wrote",
        E::NotSamples { .. } => "; give a file with the output of `rbloat who PID --json`, or of -o who.json",
        E::NoFamily { .. } => "; leave out --tree",
        E::NoGroup { .. } => ": give its folder, or its path as in /proc/PID/cgroup",
        E::NoObjects(_) => "; `rbloat report` lists the largest classes",
        E::NoReferences => "; `rbloat report` shows the reason",
        E::SnapshotWithoutReferences | E::SnapshotWithoutObjects => ": use the process or a core",
        E::DumpOfTables { .. } => {
            ": DuckDB compares them (diff.sql and leak.sql in the folder); give files such as heap.ndjson.gz"
        }
        E::NoRetainedSizes => ": take it with `rbloat snapshot --retained`",
        _ => "",
    }
    .into()
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|it| extensions.iter().any(|extension| it == *extension))
}

fn of_capture(error: &linux::Error) -> Cow<'static, str> {
    use linux::Error as E;
    match error {
        E::NotPermitted { obstacle, .. } => return right_for(*obstacle),
        E::Thread { process, .. } => return format!("; give the process id {process}").into(),
        E::NoSuchProcess { .. } => "; `rbloat` lists the Ruby processes that run",
        E::Itself { .. } => "; give the id of a Ruby process",
        E::ForeignProc => ": enter both (nsenter --pid --mount), or mount a /proc there",
        E::Traced { .. } => ": wait for it to end, or detach it",
        E::DoesNotStop { .. } => "; try again, or allow more with --max-pause",
        E::NewThreads { .. } => "; try again",
        E::TooManyFiles { .. } => MORE_FILES,
        E::UnknownGroup { .. } => words::no_copy(NoCopy::UnknownLimit),
        E::Faults { source, .. } if source.raw_os_error() == Some(Errno::EMFILE as i32) => {
            "; it takes a descriptor for each thread and processor: raise the limit of open files (ulimit -Hn)"
        }
        E::Clocks { .. } => "; it needs Linux 5.13",
        _ => "",
    }
    .into()
}

fn of_refused_copy(refusal: &Refusal) -> Cow<'static, str> {
    match refusal {
        Refusal::Slow { expected, .. } => {
            let enough = examine::max_pause_for(*expected).as_millis();
            format!("; allow more: --max-pause {enough}ms").into()
        }
        // A freeze needs files, too.
        Refusal::TraceFailed { why: TraceFailure::Kernel(Errno::EMFILE), .. } => MORE_FILES.into(),
        refusal => format!("{}; --capture freeze needs none", of_refusal(refusal)).into(),
    }
}

fn of_refusal(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::TraceFailed { why: TraceFailure::Kernel(Errno::EMFILE), .. } => MORE_FILES,
        refusal => examine::no_copy(refusal).map_or("", words::no_copy),
    }
}

fn of_heap(finding: &Finding) -> &'static str {
    match finding {
        Finding::RubyStarting { .. } => words::NOT_STARTED,
        Finding::CollectorUnsupported { .. } => words::OTHER_COLLECTOR,
        Finding::RubyUnread { .. } => words::LAYOUT_UNKNOWN,
        _ => "",
    }
}

/// Returns the right that rbloat needs against an obstacle, and the ways to give it.
fn right_for(obstacle: Obstacle) -> Cow<'static, str> {
    match obstacle {
        Obstacle::Locked { .. } => "".into(),
        Obstacle::OthersFiles | Obstacle::NotDumpable => "; run rbloat as root".into(),
        Obstacle::Forbidden => "; run rbloat as root on the host".into(),
        Obstacle::OtherUser { .. } => format!("; run rbloat as root or as that user{GRANT}").into(),
        Obstacle::Restricted { .. } => {
            format!("; run rbloat as root, or set /proc/sys/kernel/yama/ptrace_scope to 0{GRANT}")
                .into()
        }
        Obstacle::NoCapability => format!("; run rbloat as root{GRANT}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use examine::Error as E;
    use formats::{CaptureMethod, Unread};
    use linux::Error as K;

    /// Each sentence was made where the error is found, by a crate that knows neither options nor containers.
    #[test]
    fn the_sentence_on_an_error_ends_with_its_remedy() {
        let copy = |refusal| E::CallRefused { pid: 7, purpose: Purpose::Fork, refusal };
        let trim = |refusal| E::CallRefused { pid: 7, purpose: Purpose::Trim, refusal };
        let step = "open the memory of the process";
        let files = || Refusal::TraceFailed { step, why: TraceFailure::Kernel(Errno::EMFILE) };
        let file = || "a.rbloat".into();
        let other = |kind| E::NotASnapshot { path: file(), error: SnapshotError::OtherKind(kind) };
        let unread = Unread {
            method: CaptureMethod::Freeze,
            expected_ms: 81.0,
            max_pause_ms: 50.0,
            enough_ms: 200,
        };
        for (error, expected) in [
            (K::Thread { pid: 8, process: 7 }.into(), "of process 7; give the process id 7"),
            (
                K::ForeignProc.into(),
                "than rbloat: enter both (nsenter --pid --mount), or mount a /proc there",
            ),
            (
                K::Traced { pid: 7, tracer: 9, name: "gdb".into() }.into(),
                "(gdb), and only one process can: wait for it to end, or detach it",
            ),
            (
                K::TooManyFiles { path: "/proc/7/maps".into() }.into(),
                "may not open more files; raise the limit (ulimit -n 64)",
            ),
            (copy(files()), "it may not open more files; raise the limit (ulimit -n 64)"),
            (copy(Refusal::NoSafePoint), "it computes; --capture freeze needs none"),
            (
                copy(Refusal::NotSignalled),
                "(needs CAP_KILL); in Docker: --cap-add KILL; --capture freeze needs none",
            ),
            (trim(Refusal::NotSignalled), "(needs CAP_KILL); in Docker: --cap-add KILL"),
            (trim(Refusal::NoSafePoint), "it computes; try again, or when it has less to do"),
            (
                trim(Refusal::UnknownLimit),
                "could not be found; in a container: mount /sys/fs/cgroup of the host",
            ),
            (
                E::Unread { pid: 7, unread, no_copy: None },
                "process 7 was not read: the process would be paused for about 81 ms, and the limit is 50 ms. Allow more \
                 with --max-pause 200ms",
            ),
            (
                E::NoStacks { pid: 7, reason: NoStacks::NotCollected },
                "Ruby has not collected garbage yet. Try again later",
            ),
            (
                E::NotASnapshot { path: file(), error: SnapshotError::OtherVersion(2) },
                "this version reads formats 3-3): read it with that version",
            ),
            (other(SnapshotKind::Family), "of a family, which report and diff read with --tree"),
            (other(SnapshotKind::Process), "of one process: leave out --tree"),
        ] {
            let sentence = explained(&error);
            assert!(sentence.ends_with(expected), "{sentence}");
        }
    }
}
