//! The lines of code that allocate what stays, as text.

use std::fmt::Write;

use formats::{Kept, KeptClass, KeptGrowth, KeptJudgement, KeptLine, KeptRoot, KeptUnknown};
use ledger::{Count, Size};

use crate::made_by::in_file;
use crate::text::{BOLD, DIM, RED, write_paragraph, write_wrapped};
use crate::words::counted;

/// Classes and lines that are shown, at most.
const MAX_CLASSES: usize = 12;
const MAX_LINES: usize = 3;
/// The growth of native memory that is worth a line.
const MIN_NATIVE_BYTES: u64 = 1 << 20;
const MIN_SAMPLES: u64 = KeptJudgement::MIN_SAMPLES;

/// One sentence on the result.
#[must_use]
pub fn kept_summary(kept: &Kept) -> String {
    let (pid, time) = (kept.pid, seconds(kept.elapsed_ms));
    if let Some(reason) = kept.unknown {
        let why = match reason {
            KeptUnknown::Ended => format!("it ended after {time}"),
            reason => why_nothing_is_known(reason).into(),
        };
        return format!("It is not known what process {pid} keeps: {why}.");
    }
    match named(kept).next() {
        Some(class) => {
            let line = class.lines.first().map_or("unknown code".into(), place);
            let samples = class.lines.first().map_or(0, |it| it.samples);
            format!(
                "Process {pid} keeps {} more {} than {time} ago; about {samples} of {} samples of them were made in {line}.",
                Count(class.objects_after.saturating_sub(class.objects_before)),
                objects(&class.class),
                class.samples,
            )
        }
        None if kept.samples > 0 && is_few(kept) => format!(
            "Too few of the objects that stay in process {pid} were seen to name their lines: {} in {time}.",
            kept.samples
        ),
        None => match kept.growing.first() {
            Some(growth) => format!(
                "No line of process {pid} was seen to allocate what stays, in {time}; {} retains {}.",
                growth.root,
                more(growth)
            ),
            None => format!("No line of process {pid} was seen to allocate what stays, in {time}."),
        },
    }
}

/// The reason as the end of a sentence on a process.
#[must_use]
pub fn why_nothing_is_known(reason: KeptUnknown) -> &'static str {
    match reason {
        KeptUnknown::NoCollections => {
            "it has collected no garbage meanwhile, or has not made both a minor and a major collection yet"
        }
        KeptUnknown::NoFreeLists => {
            "its lists of free slots were not found: either it allocated nothing meanwhile, or rbloat does not know their layout"
        }
        KeptUnknown::NoReferences => "the references between its objects could not be read",
        KeptUnknown::Ended => "it has ended",
    }
}

/// The command that watched what stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptCommand {
    /// `rbloat who --kept`.
    Who,
    /// `rbloat record --kept`.
    Record,
}

impl KeptCommand {
    /// Its option for the time.
    fn time(self) -> &'static str {
        match self {
            Self::Who => "--for",
            Self::Record => "--duration",
        }
    }
}

/// The report as text.
///
/// # Panics
/// Never: a string takes all text.
#[must_use]
pub fn kept(kept: &Kept, command: KeptCommand, width: usize) -> String {
    let mut text = String::new();
    write(kept, command, &mut text, width).expect("a string takes all text");
    text
}

fn write(kept: &Kept, command: KeptCommand, out: &mut String, width: usize) -> std::fmt::Result {
    writeln!(out, "{DIM}{}{DIM:#}", kept.command)?;
    write_paragraph(out, RED, &kept_summary(kept), "", width)?;
    if kept.unknown.is_some() {
        return native(kept).map_or(Ok(()), |fact| write_wrapped(out, " · ", &fact, width));
    }
    for fact in facts(kept, command) {
        write_wrapped(out, " · ", &fact, width)?;
    }
    for class in kept.classes.iter().take(MAX_CLASSES) {
        if class.judgement == KeptJudgement::Named {
            write_class(class, out, width)?;
        }
    }
    let others: Vec<&KeptClass> =
        kept.classes.iter().filter(|it| it.judgement != KeptJudgement::Named).collect();
    if !others.is_empty() {
        writeln!(out, "\n{BOLD}NOT NAMED{BOLD:#}")?;
        for class in others.into_iter().take(MAX_CLASSES) {
            write_wrapped(out, " · ", &not_named(kept, class, command), width)?;
        }
    }
    if !kept.growing.is_empty() {
        writeln!(out, "\n{BOLD}ROOTS THAT RETAIN MORE, WITHOUT A NAMED LINE{BOLD:#}")?;
        for growth in &kept.growing {
            write_wrapped(out, " · ", &format!("{}: {}", more(growth), growth.path), width)?;
        }
        let text = "A cache that fills retains more objects, too. `rbloat diff PID` shows whether the growth goes on.";
        write_wrapped(out, "   ", text, width)?;
    }
    writeln!(out)
}

/// "712 more objects of Proc".
fn more(growth: &KeptGrowth) -> String {
    let count = Count(growth.objects_after.saturating_sub(growth.objects_before));
    format!("{count} more {}", objects(&growth.class))
}

fn write_class(class: &KeptClass, out: &mut String, width: usize) -> std::fmt::Result {
    let grown = class.objects_after.saturating_sub(class.objects_before);
    let mut head = format!("+{} {}", Count(grown), objects(&class.class));
    let is_most = |root: &&KeptRoot| match root.objects {
        Some(objects) => objects.saturating_mul(2) > grown,
        None => root.samples.saturating_mul(2) > class.samples,
    };
    if let Some(root) = class.roots.iter().find(is_most) {
        head += &format!(", kept by {}", root.name);
    }
    writeln!(out)?;
    write_paragraph(out, BOLD, &head, "", width)?;
    for line in class.lines.iter().take(MAX_LINES) {
        let text = format!("about {} of {} samples: {}", line.samples, class.samples, place(line));
        write_wrapped(out, " · ", &text, width)?;
    }
    Ok(())
}

fn facts(kept: &Kept, command: KeptCommand) -> Vec<String> {
    let time = seconds(kept.older_than_ms);
    let mut facts = vec![format!(
        "{} of {} new objects that were seen in the hands of running code were kept, for at least {time}; {} ({} major) happened meanwhile",
        kept.samples,
        Count(kept.seen),
        collections(kept.collections),
        kept.major_collections,
    )];
    if kept.elapsed_ms < kept.older_than_ms {
        let watched = seconds(kept.elapsed_ms);
        facts.push(format!("objects were watched for {watched} only, so none can be {time} old"));
    }
    if kept.younger > 0 {
        facts.push(format!("{} are still there, but younger than {time}", Count(kept.younger)));
    }
    if kept.unreachable > 0 {
        facts.push(format!(
            "{} are garbage that waits for a major collection, or only in use by a thread",
            Count(kept.unreachable)
        ));
    }
    if kept.ambiguous > 0 {
        let text = "were lost: too many collections at once, or objects were moved";
        facts.push(format!("{} {text}", Count(kept.ambiguous)));
    }
    facts.extend(native(kept));
    if named(kept).next().is_none() {
        let how = match command {
            KeptCommand::Who => "watch longer (--for), or with more ticks (--rate)",
            KeptCommand::Record => "record longer",
        };
        facts.push(format!(
            "a slow leak may have had no sample: {MIN_SAMPLES} samples take ten thousand leaked objects or more; {how}"
        ));
    }
    facts
}

/// The sentence on native memory that grew; `None` if it did not.
fn native(kept: &Kept) -> Option<String> {
    let native = kept.native_bytes_after.saturating_sub(kept.native_bytes_before);
    (native >= MIN_NATIVE_BYTES).then(|| {
        format!(
            "native memory grew by {}. It does not consist of Ruby objects, so no line is named. `rbloat diff {}` shows whether it stays, \
             and `rbloat who {}` which code touches it first",
            Size(native),
            kept.pid,
            kept.pid
        )
    })
}

/// A class whose lines are not named, and the reason.
fn not_named(kept: &Kept, class: &KeptClass, command: KeptCommand) -> String {
    let (name, samples) = (&class.class, class.samples);
    match class.judgement {
        KeptJudgement::FewSamples => {
            let minutes = minutes_for_a_line(kept.elapsed_ms / 1e3, samples);
            format!(
                "{name}: {samples} of {MIN_SAMPLES} samples; watch for about {minutes} min ({} {minutes}m)",
                command.time()
            )
        }
        KeptJudgement::Replaced => format!(
            "{name}: {}, but the number of these objects went from {} to {}: they replace others",
            counted(samples, "sample"),
            Count(class.objects_before),
            Count(class.objects_after)
        ),
        KeptJudgement::Passing => format!(
            "{name}: {samples} samples, most of them of the last half of the time: these objects do not stay for long"
        ),
        KeptJudgement::Named => name.clone(),
    }
}

/// The minutes after which enough samples are expected, if there were so few in this time; a day at most.
pub(crate) fn minutes_for_a_line(seconds: f64, samples: u64) -> u64 {
    let needed = seconds * MIN_SAMPLES as f64 / samples.max(1) as f64;
    (needed / 60.0).ceil().clamp(1.0, 24.0 * 60.0) as u64
}

fn named(kept: &Kept) -> impl Iterator<Item = &KeptClass> {
    kept.classes.iter().filter(|it| it.judgement == KeptJudgement::Named)
}

fn is_few(kept: &Kept) -> bool {
    kept.classes.iter().all(|it| it.judgement == KeptJudgement::FewSamples)
}

fn objects(class: &str) -> String {
    format!("objects of {class}")
}

fn collections(count: u64) -> String {
    match count {
        1 => "1 collection".into(),
        count => format!("{} collections", Count(count)),
    }
}

fn seconds(milliseconds: f64) -> String {
    match milliseconds / 1e3 {
        seconds if seconds < 300.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

/// "made by Audit#note (/srv/app/audit.rb:8), about 35 of 39 samples"; `None` if no objects were sampled between the snapshots.
pub(crate) fn made_by(samples: Option<u64>, lines: &[KeptLine]) -> Option<String> {
    let samples = samples?;
    Some(match lines.first() {
        Some(line) => {
            format!("made by {}, about {} of {samples} samples", place(line), line.samples)
        }
        None if samples == 0 => "no samples".into(),
        None => format!("{}, too few to name a line", counted(samples, "sample")),
    })
}

/// "Audit#note → Array.new (/srv/app/audit.rb:8)".
fn place(line: &KeptLine) -> String {
    let KeptLine { method, calls, path, line, .. } = line;
    let mut text = method.clone();
    if let Some(calls) = calls {
        text += &format!(" → {calls}");
    }
    in_file(text, path.as_deref(), *line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a collection, nothing was said of native memory either.
    #[test]
    fn growth_of_native_memory_is_reported_without_collections() {
        for (native_bytes_after, is_shown) in [(0, false), (10 << 20, true)] {
            let unknown = Some(KeptUnknown::NoCollections);
            let result = Kept { unknown, native_bytes_after, ..Kept::default() };
            let text = kept(&result, KeptCommand::Who, 100);
            assert_eq!(text.contains("native memory grew by 10.0 MiB"), is_shown, "{text}");
        }
    }
}
