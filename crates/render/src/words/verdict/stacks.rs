//! Verdicts on stacks.

use diagnosis::keeps_native_threads;
use formats::{KeptStacks, Report};
use ledger::{Cause, Count, Size};

use super::figures::bytes;
use crate::words::counted;

/// The sentence, the evidence and the check for stacks of threads or of fibers.
pub(super) fn of_stacks(report: &Report, cause: Cause) -> (String, Vec<String>, String) {
    let size = Size(report.verdict.bytes);
    let threads = bytes(report, Cause::StackThreads);
    let stacks = report.kept_stacks;
    let of_mn = stacks.map_or(0, |it| it.mn_threads);
    let count = report.process.threads.saturating_add(of_mn);
    let kept_by_ruby = stacks.map_or(0, |it| it.resident_mn_bytes).min(threads);
    let kept = stacks.map_or(0, |it| it.resident_thread_bytes).min(threads - kept_by_ruby);
    let kept = kept + kept_by_ruby;
    let part = |bytes: u64, whose: &str| match bytes {
        0 => String::new(),
        bytes => format!(", {} of {whose}", Size(bytes)),
    };
    let main = stacks.map_or(0, |it| it.main_bytes).min(threads - kept);
    let others = part(kept, "threads that do not run");
    let returned = part(main, "the main thread's stack, which no call uses any more");
    let fibers = part(bytes(report, Cause::StackFibers), "fibers");
    let without_ruby = stacks.and_then(|it| it.other_threads).filter(|it| it * 2 > count);
    let may_have_ended =
        without_ruby.is_some() && keeps_native_threads(report.process.ruby_version.as_deref());
    let of_ruby = without_ruby.map_or_else(String::new, |without| {
        format!(" (Ruby runs {} of them)", Count(count.saturating_sub(without)))
    });
    (
        format!(
            "{size} are stacks: {} of {}{of_ruby}{returned}{others}{fibers}.",
            Size(threads - kept - main),
            counted(count, "thread")
        ),
        match cause {
            Cause::StackFibers => fiber_evidence(report),
            _ if kept > threads / 2 && kept_by_ruby > kept / 2 => vec![
                "Ruby keeps the stacks of threads that have ended, such as those of Ractors, for new ones: up to Ruby 4.0 once \
                 their Thread objects are collected"
                    .into(),
            ],
            _ if kept > threads / 2 => vec![
                "the C library keeps the stacks of threads that have ended for new ones; a forked process also has those of \
                 its parent's threads"
                    .into(),
            ],
            _ if main > threads / 2 => vec![
                "a recursion of the main thread was once deep: the kernel keeps the pages that it used".into(),
            ],
            _ if may_have_ended => vec![
                "threads of C code, or of Ruby threads that have ended: up to Ruby 3.1, their native threads wait 3 seconds for new ones"
                    .into(),
            ],
            _ => vec![format!(
                "{} of stack are resident for each thread on average",
                Size((threads - kept - main) / count.max(1))
            )],
        },
        match cause {
            Cause::StackFibers => {
                "stack.fibers should not grow while the number of Fiber objects stays the same."
            }
            _ if kept > threads / 2 => "new threads should use these stacks, so that stack.threads does not grow.",
            _ if main > threads / 2 => {
                "a process that has not run this code yet should have less in stack.threads."
            }
            _ if may_have_ended => {
                "the number of threads should fall 3 seconds after the program has started its last one."
            }
            _ => "RSS should fall when threads end.",
        }
        .into(),
    )
}

/// The fibers that have stacks, and the stacks that Ruby keeps of others, which have ended or were collected.
fn fiber_evidence(report: &Report) -> Vec<String> {
    let words = |stacks: KeptStacks| {
        let (fibers, kept) = (stacks.fibers?, stacks.resident_fiber_bytes?);
        let kept = format!(
            "{} are stacks that no fiber has any more, which Ruby keeps for new ones",
            Size(kept)
        );
        Some(match fibers {
            0 => kept,
            fibers => format!("{} a stack; {kept}", have(fibers, "fiber")),
        })
    };
    report.kept_stacks.and_then(words).into_iter().collect()
}

/// "1 fiber has", "2 fibers have".
fn have(number: u64, name: &str) -> String {
    format!("{} {}", counted(number, name), if number == 1 { "has" } else { "have" })
}
