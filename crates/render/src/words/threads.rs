//! Steps against threads and fibers, in words.

use formats::{OtherThreads, ThreadStarter};
use ledger::Count;

use super::counted;

/// The step against threads: of a server's settings, or of the line that starts them.
pub(super) fn run_fewer_threads(
    threads: u64,
    starter: Option<&ThreadStarter>,
    others: Option<&OtherThreads>,
    class: Option<&(String, u64)>,
) -> (String, String) {
    if let Some(others) = others {
        return start_fewer_threads(threads, others);
    }
    let fewer = format!("Run fewer threads: there are {}.", Count(threads));
    let Some(starter) = starter else {
        return match class {
            Some((class, of_class)) => (
                format!("{fewer} {} of them are {class}, which C code runs.", Count(*of_class)),
                match &class[..] {
                    "Process::Waiter" => {
                        "let the child processes end, or detach fewer of them: each has a thread of Process.detach".into()
                    }
                    _ => "fewer of them where the program or a library starts them".into(),
                },
            ),
            None => (fewer, "fewer threads where the program or its server starts them".into()),
        };
    };
    let run =
        starter.run.as_ref().map_or_else(String::new, |run| format!(" Most of them run {run}."));
    let by = match &starter.gem {
        Some(gem) => format!("{gem} ({})", starter.place),
        None => starter.place.clone(),
    };
    let command = match starter.gem.as_deref() {
        Some("puma") => {
            "Puma's threads, which many Rails applications set by RAILS_MAX_THREADS".into()
        }
        Some("sidekiq") => "Sidekiq's concurrency".into(),
        Some(gem) => format!("a limit for the threads of {gem}"),
        None => {
            "threads that end when their work is done, or a pool with a fixed number of threads"
                .into()
        }
    };
    (format!("{fewer} {by} started {} of them.{run}", Count(starter.threads)), command)
}

/// The step against threads that Ruby does not run.
fn start_fewer_threads(threads: u64, others: &OtherThreads) -> (String, String) {
    let of_ruby = threads.saturating_sub(others.threads);
    let all = format!("of {}, Ruby runs {}", counted(threads, "thread"), Count(of_ruby));
    if !others.may_have_ended {
        let step =
            format!("Run fewer threads of C code: {all}. Libraries have started the others.");
        return (step, "a setting of the library that starts them".into());
    }
    let name = others.name.as_ref().map_or_else(String::new, |name| {
        format!(" Ruby has named a thread after the file and line that started it: {name}.")
    });
    let step = format!(
        "Start fewer threads at a time: {all}. The others are threads of C code, or have ended: up to Ruby 3.1, the native thread of \
         an ended one waits 3 seconds for a new one.{name}"
    );
    (step, "a pool with a fixed number of threads in place of many that end soon".into())
}

/// The step against stacks of fibers. Ruby keeps the stacks of ended fibers, so RSS does not fall.
pub(super) fn end_fibers(
    fibers: u64,
    path: Option<&str>,
    are_garbage: bool,
) -> (String, String, &'static str) {
    let many = format!("{} keep their stacks", counted(fibers, "fiber"));
    let effect = "Then later fibers use these stacks again, and RSS grows no further";
    let (step, command, costs) = match path {
        None if are_garbage => (
            format!("Run the GC: {many}, and most of this memory is garbage."),
            "GC.start",
            "a pause of the program during the collection.",
        ),
        None => (
            format!("End fibers that are no longer needed: {many}."),
            "let the block of the fiber end, or drop the last reference to it",
            "a change of the program.",
        ),
        Some(path) => (
            format!(
                "Release fibers that are no longer needed: {many}, and most of this memory is retained by {path}."
            ),
            match path.contains("Enumerator") {
                true => "Enumerator#rewind after the last next, or each instead of next",
                false => "let the block of the fiber end, or drop the last reference to it",
            },
            "a change of the program.",
        ),
    };
    (format!("{step} {effect}."), command.into(), costs)
}
