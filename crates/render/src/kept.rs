//! The lines of code that allocate what stays, as text.

use std::fmt::Write;

use diagnosis::{is_in_free_memory, is_native_in_free_memory, native_besides};
use formats::{
    Diff, DiffKind, DiffSampling, Kept, KeptGrowth, KeptJudgement, KeptRow, KeptUnknown, Subject,
};
use ledger::{Count, Size};

use crate::text::{BOLD, DIM, RED, write_paragraph, write_wrapped};
use crate::words::counted;
use crate::words::lines::{is_used_in, place};

/// Rows and lines that are shown, at most.
const MAX_ROWS: usize = 12;
const MAX_LINES: usize = 3;
/// The growth of memory that is worth a line.
const MIN_BYTES: u64 = 1 << 20;
const MIN_SAMPLES: u64 = KeptJudgement::MIN_SAMPLES;
/// A time in which so many samples are expected has fewer than ten in 1 of 23 cases. With ten expected it would be nearly every other one.
const EXPECTED_SAMPLES: f64 = 16.0;

/// One sentence on the result.
#[must_use]
pub fn kept_summary(kept: &Kept) -> String {
    let (pid, time) = (kept.pid, seconds(kept.elapsed_ms));
    if let Some(reason) = kept.unknown {
        let (what, why) = match reason {
            KeptUnknown::Ended => ("what", format!("it ended after {time}")),
            KeptUnknown::NoReferences => ("what", why_no_lines_are_known(reason).into()),
            reason => ("which lines allocate what", why_no_lines_are_known(reason).into()),
        };
        let mut text = format!("It is not known {what} process {pid} keeps: {why}.");
        if let Some(growth) = growing(kept).next() {
            text += &format!(" {} retains {} than {time} ago.", growth.root, more(growth));
        }
        return text;
    }
    let Some(row) = named(kept).next() else {
        let nothing =
            format!("No line of process {pid} was seen to allocate what stays, in {time}");
        // Samples show that what the root retains stays.
        let root = growing(kept).rev().max_by_key(|it| it.samples);
        return match (root, kept.samples) {
            (Some(growth), _) if growth.samples == 0 => {
                format!("{nothing}; {} retains {}.", growth.root, more(growth))
            }
            (Some(growth), _) => format!(
                "{} in process {pid} retains {} than {time} ago; too few of what stays were seen to name a line: {}.",
                growth.root,
                more(growth),
                growth.samples
            ),
            (None, samples) if samples > 0 && is_few(kept) => format!(
                "Too few of the objects that stay in process {pid} were seen to name their lines: {samples} in {time}."
            ),
            (None, _) => format!("{nothing}."),
        };
    };
    // Of other roots it is not known how many each has.
    let root = row.root.as_deref().filter(|root| !root.starts_with(['(', '[']));
    let who = match root {
        Some(root) => format!("{root} in process {pid}"),
        None => format!("Process {pid}"),
    };
    let objects = format!("{} more {}", Count(row.growth()), objects(&row.class));
    let line = row.lines.first().map_or("unknown code".into(), place);
    let samples = row.lines.first().map_or(row.samples, |it| it.samples);
    let of = row.samples;
    let mut text = format!(
        "{who} keeps {objects} than {time} ago; about {samples} of {of} samples of them were made in {line}."
    );
    if let Some(growth) = growing(kept).find(|it| grown_of(it) > row.growth()) {
        text += &format!(" {} retains {}; no line of these is named.", growth.root, more(growth));
    }
    text
}

/// The reason as the end of a sentence on a process.
fn why_no_lines_are_known(reason: KeptUnknown) -> &'static str {
    match reason {
        KeptUnknown::NoCollections => {
            "it has collected too little garbage meanwhile: rbloat has to see both a minor and a major collection"
        }
        KeptUnknown::NoFreeLists => {
            "its lists of free slots were not found: either it allocated nothing meanwhile, or rbloat does not know their layout"
        }
        KeptUnknown::NotAllowed => {
            "the kernel does not let rbloat run a program at ticks of its clocks; run rbloat as root, or with CAP_BPF and CAP_PERFMON \
             (in Docker: --cap-add BPF --cap-add PERFMON)"
        }
        KeptUnknown::NoClocks => {
            "the kernel cannot run a program at ticks of its clocks, which needs Linux 5.13"
        }
        KeptUnknown::NoTicks => {
            "the kernel shows none of its own ticks, which needs Linux 5.15 with BTF; --kept uses clocks of threads"
        }
        KeptUnknown::NoReferences => "the references between its objects could not be read",
        KeptUnknown::Ended => "it has ended",
    }
}

/// The sentence before an observation that the kernel refuses.
#[must_use]
pub fn no_lines(refused: KeptUnknown) -> String {
    format!("no lines will be named: {}", why_no_lines_are_known(refused))
}

/// The report as text.
///
/// # Panics
/// Never: a string takes all text.
#[must_use]
pub fn kept(kept: &Kept, width: usize) -> String {
    let mut text = String::new();
    write(kept, &mut text, width).expect("a string takes all text");
    text
}

fn write(kept: &Kept, out: &mut String, width: usize) -> std::fmt::Result {
    writeln!(out, "{DIM}{}{DIM:#}", kept.command)?;
    write_result(kept, out, width)
}

/// Writes the report without the command.
pub(crate) fn write_result(kept: &Kept, out: &mut String, width: usize) -> std::fmt::Result {
    write_paragraph(out, RED, &kept_summary(kept), "", width)?;
    match kept.unknown {
        Some(_) => write_facts(native(kept).into_iter().chain(object_memory(kept)), out, width)?,
        None => write_rows(kept, out, width)?,
    }
    if !kept.growing.is_empty() {
        writeln!(out, "\n{BOLD}ROOTS THAT RETAIN MORE, WITHOUT A NAMED LINE{BOLD:#}")?;
        for growth in &kept.growing {
            let watch = match kept.unknown {
                Some(_) => String::new(),
                None if comes_and_goes(kept, growth) => {
                    " (most of its objects that were seen did not stay)".into()
                }
                None => format!(" ({})", few_samples(kept, growth.samples)),
            };
            let used = is_used_in(&growth.path, &kept.root_uses);
            let used = used.map_or_else(String::new, |used| format!("; {used}"));
            let text = format!("{}: {}{used}{watch}", more(growth), growth.path);
            write_wrapped(out, " · ", &text, width)?;
        }
        let text = "A cache that fills or a queue that is full for now retains more objects, too. `rbloat diff PID` shows whether the growth goes on.";
        write_wrapped(out, "   ", text, width)?;
    }
    writeln!(out)
}

fn write_facts(
    mut facts: impl Iterator<Item = String>,
    out: &mut String,
    width: usize,
) -> std::fmt::Result {
    facts.try_for_each(|fact| write_wrapped(out, " · ", &fact, width))
}

/// Writes what samples tell.
fn write_rows(kept: &Kept, out: &mut String, width: usize) -> std::fmt::Result {
    write_facts(facts(kept).into_iter(), out, width)?;
    for row in named(kept).take(MAX_ROWS) {
        write_row(row, out, width)?;
    }
    let grows = |it: &KeptRow| kept.growing.iter().any(|root| it.root.as_ref() == Some(&root.root));
    let is_few = |it: &KeptRow| it.judgement == KeptJudgement::FewSamples;
    let others: Vec<&KeptRow> = kept
        .rows
        .iter()
        .filter(|it| it.judgement != KeptJudgement::Named && !(is_few(it) && grows(it)))
        .collect();
    if !others.is_empty() {
        writeln!(out, "\n{BOLD}NOT NAMED{BOLD:#}")?;
        for row in others.into_iter().take(MAX_ROWS) {
            write_wrapped(out, " · ", &not_named(kept, row), width)?;
        }
    }
    Ok(())
}

/// "712 more objects of Proc and 2,848 of other classes".
fn more(growth: &KeptGrowth) -> String {
    let count = Count(growth.growth());
    let others = match growth.other_objects {
        0 => String::new(),
        others => format!(" and {} of other classes", Count(others)),
    };
    format!("{count} more {}{others}", objects(&growth.class))
}

/// The roots that retain more, without a named line, and without those whose objects come and go.
fn growing(kept: &Kept) -> impl DoubleEndedIterator<Item = &KeptGrowth> {
    kept.growing.iter().filter(|growth| !comes_and_goes(kept, growth))
}

/// Returns true if most objects of a root that were seen did not stay, as those of a cache that belongs to a request.
fn comes_and_goes(kept: &Kept, growth: &KeptGrowth) -> bool {
    let is_gone = |it: &&KeptRow| {
        it.root.as_ref() == Some(&growth.root)
            && matches!(it.judgement, KeptJudgement::Replaced | KeptJudgement::Passing)
    };
    let gone: u64 = kept.rows.iter().filter(is_gone).map(|it| it.samples).sum();
    gone >= MIN_SAMPLES && gone > growth.samples
}

/// The number of all objects that a root retains more.
fn grown_of(growth: &KeptGrowth) -> u64 {
    growth.growth().saturating_add(growth.other_objects)
}

fn write_row(row: &KeptRow, out: &mut String, width: usize) -> std::fmt::Result {
    let mut head = format!("+{} {}", Count(row.growth()), objects(&row.class));
    if row.bytes > 0 {
        head += &format!(", about {}", Size(row.bytes));
    }
    if let Some(path) = row.path.as_ref().or(row.root.as_ref()) {
        head += &format!(", kept by {path}");
    }
    writeln!(out)?;
    write_paragraph(out, BOLD, &head, "", width)?;
    for line in row.lines.iter().take(MAX_LINES) {
        let text = format!("about {} of {} samples: {}", line.samples, row.samples, place(line));
        write_wrapped(out, " · ", &text, width)?;
    }
    Ok(())
}

fn facts(kept: &Kept) -> Vec<String> {
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
        let text = format!("are younger than {time}, or no collection has decided about them yet");
        facts.push(format!("{} {text}", Count(kept.younger)));
    }
    if kept.unreachable > 0 {
        facts.push(format!(
            "{} are garbage that waits for a major collection, or only in use by a thread",
            Count(kept.unreachable)
        ));
    }
    facts.extend(lost(kept.ambiguous));
    facts.extend(native(kept));
    if named(kept).next().is_some() {
        facts.push(
            "a line is the first at which its method had such an object: it was made there, or shortly before. Samples follow the time \
             for which code has an object in its hands, so a line that makes a quarter of the objects may have none"
                .into(),
        );
    } else {
        facts.extend(object_memory(kept));
        facts.push(format!(
            "a slow leak may have had no sample: {MIN_SAMPLES} samples take ten thousand to some hundred thousand leaked objects, and more \
             if C code makes them, such as copies of Strings as keys of a Hash; watch longer (--for), or with more ticks (`rbloat who --rate`)"
        ));
    }
    facts
}

/// The sentence on objects that could not be followed; `None` if all could.
fn lost(ambiguous: u64) -> Option<String> {
    (ambiguous > 0).then(|| {
        format!(
            "{} were lost: too many collections at once, or objects were moved",
            Count(ambiguous)
        )
    })
}

/// The sentences on the sampling between the snapshots of a diff.
pub(crate) fn sampling_facts(diff: &Diff) -> Vec<String> {
    let Some(sampling) = &diff.kept_sampling else { return Vec::new() };
    let DiffSampling { unknown, seen, ambiguous, collections: all, major_collections, .. } =
        *sampling;
    let mut facts = match unknown {
        Some(reason) => vec![format!("no line is known: {}", why_no_lines_are_known(reason))],
        None => vec![format!(
            "{} new objects were seen in the hands of running code; {} ({major_collections} major) happened meanwhile",
            Count(seen),
            collections(all),
        )],
    };
    facts.extend(lost(ambiguous));
    facts
}

/// The sentence on the line of native memory that a diff reports as grown; `None` if there is nothing to say of it.
pub(crate) fn native_line_fact(diff: &Diff) -> Option<String> {
    let verdict = &diff.verdict;
    let is_native = matches!(verdict.subject, Subject::Native | Subject::Unreachable)
        && matches!(verdict.kind, DiffKind::NativeLeak | DiffKind::Growth);
    (is_native || native_besides(diff).is_some()).then_some(())?;
    let is_reused = is_native_in_free_memory(diff);
    let is_sampled = diff.kept_sampling.is_some();
    let line = native_line(diff.points.last()?.pid, is_reused);
    match is_sampled {
        true => Some(format!(
            "native memory does not consist of Ruby objects, so it has no line here. {line}"
        )),
        false => is_reused.then_some(line),
    }
}

/// The sentence on the line of native memory that grows.
fn native_line(pid: i32, is_reused: bool) -> String {
    match is_reused {
        false => format!("`rbloat who {pid}` shows which code touches it first"),
        true => format!(
            "RSS did not grow as much: this memory is in pages that malloc had free, which are not touched anew, so `rbloat who` cannot name its \
             line. `rbloat trim {pid}` returns such pages; right after it, `rbloat who {pid}` names the lines of blocks of some pages. For \
             smaller blocks no line can be named; in a copy of the program, heaptrack(1) names the C function"
        ),
    }
}

/// The sentence on native memory that grew; `None` if it did not.
fn native(kept: &Kept) -> Option<String> {
    let pid = kept.pid;
    let native = kept.native_bytes_after.saturating_sub(kept.native_bytes_before);
    let rss = kept.rss_bytes_after.saturating_sub(kept.rss_bytes_before);
    let grown = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    // Older documents have no RSS.
    let is_reused = kept.rss_bytes_before > 0 && is_in_free_memory(grown(native), grown(rss));
    (native >= MIN_BYTES).then(|| {
        format!(
            "native memory grew by {}. It does not consist of Ruby objects, so no line is named. `rbloat diff {pid}` shows whether it stays. {}",
            Size(native),
            native_line(pid, is_reused)
        )
    })
}

/// The sentence on memory of Ruby objects that grew while no root retains more objects; `None` if it did not.
fn object_memory(kept: &Kept) -> Option<String> {
    let bytes = kept.object_bytes_after.saturating_sub(kept.object_bytes_before);
    (bytes >= MIN_BYTES && kept.growing.is_empty()).then(|| {
        format!(
            "objects hold {} more outside of their slots, but no constant, and no variable outside of threads, retains clearly more objects: the memory \
             may be garbage, belong to threads, or be that of one String, Array or Hash that grows. `rbloat diff {}` shows which",
            Size(bytes),
            kept.pid
        )
    })
}

/// "4 of 10 samples; watch for about 5 min (--for 5m)", and how long to watch if there was none.
fn few_samples(kept: &Kept, samples: u64) -> String {
    let minutes = minutes_for_a_line(kept.elapsed_ms / 1e3, samples);
    if samples == 0 {
        return format!(
            "no sample: code has these objects in its hands too briefly, C code makes them, they have no write barrier, or others \
             replace them within {}; watch for {minutes} min or longer (--for {minutes}m)",
            seconds(kept.older_than_ms)
        );
    }
    format!("{samples} of {MIN_SAMPLES} samples; watch for about {minutes} min (--for {minutes}m)")
}

/// Objects whose lines are not named, and the reason.
fn not_named(kept: &Kept, row: &KeptRow) -> String {
    let samples = row.samples;
    let name = match &row.root {
        Some(root) => format!("{} of {root}", row.class),
        None => row.class.clone(),
    };
    match row.judgement {
        KeptJudgement::FewSamples => format!("{name}: {}", few_samples(kept, samples)),
        KeptJudgement::Replaced => format!(
            "{name}: {}, but the number of these objects went from {} to {}: they replace others",
            counted(samples, "sample"),
            Count(row.objects_before),
            Count(row.objects_after)
        ),
        KeptJudgement::Passing => format!(
            "{name}: {samples} samples, most of them of the last half of the time: these objects do not stay for long"
        ),
        KeptJudgement::Named => name,
    }
}

/// The minutes in which there are most probably enough samples, if there were so few in this time; a day at most.
pub(crate) fn minutes_for_a_line(seconds: f64, samples: u64) -> u64 {
    let needed = seconds * EXPECTED_SAMPLES / samples.max(1) as f64;
    (needed / 60.0).ceil().clamp(1.0, 24.0 * 60.0) as u64
}

fn named(kept: &Kept) -> impl Iterator<Item = &KeptRow> {
    kept.rows.iter().filter(|it| it.judgement == KeptJudgement::Named)
}

fn is_few(kept: &Kept) -> bool {
    kept.rows.iter().all(|it| it.judgement == KeptJudgement::FewSamples)
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

pub(crate) fn seconds(milliseconds: f64) -> String {
    match milliseconds / 1e3 {
        seconds if seconds < 300.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without samples, nothing was said of native memory, and of roots that retain more.
    #[test]
    fn what_captures_tell_is_reported_without_samples() {
        let growth = KeptGrowth {
            root: "LOG".into(),
            class: "Event".into(),
            objects_before: 5,
            objects_after: 2005,
            path: "LOG → Array → Event".into(),
            other_objects: 0,
            samples: 0,
        };
        for (native_bytes_after, growing) in [(0, vec![]), (10 << 20, vec![growth])] {
            let unknown = Some(KeptUnknown::NotAllowed);
            let is_shown = !growing.is_empty();
            let [rss_bytes_before, rss_bytes_after] = [100 << 20; 2];
            let result = Kept {
                pid: 7,
                unknown,
                native_bytes_after,
                rss_bytes_before,
                rss_bytes_after,
                growing,
                ..Kept::default()
            };
            let text = kept(&result, 400);
            let why = "It is not known which lines allocate what process 7 keeps: the kernel does not let rbloat run a program at ticks of its \
                       clocks; run rbloat as root, or with CAP_BPF and CAP_PERFMON (in Docker: --cap-add BPF --cap-add PERFMON).";
            assert!(text.contains(why), "{text}");
            for part in [
                "LOG retains 2,000 more objects of Event than 0 s ago.",
                " · 2,000 more objects of Event: LOG → Array → Event",
                "native memory grew by 10.0 MiB",
                "RSS did not grow as much: this memory is in pages that malloc had free",
            ] {
                assert_eq!(text.contains(part), is_shown, "{part} {text}");
            }
        }
    }

    /// "One String, Array or Hash may grow": variables of threads did, which are no roots of the program.
    #[test]
    fn memory_of_objects_without_a_root_may_be_of_several_kinds() {
        let result = Kept { pid: 7, object_bytes_after: 80 << 20, ..Kept::default() };
        let text = kept(&result, 400);
        let part = "the memory may be garbage, belong to threads, or be that of one String, Array or Hash that grows. `rbloat diff 7` shows which";
        assert!(text.contains(part), "{text}");
    }

    /// "1,884 of other classes,: Bus::SUBS → …".
    #[test]
    fn growth_of_several_classes_is_told_in_sentences() {
        let growth = KeptGrowth {
            root: "Bus::SUBS".into(),
            class: "Proc".into(),
            objects_before: 58,
            objects_after: 1_000,
            path: "Bus::SUBS → Array → Proc (bus.rb:3)".into(),
            other_objects: 1_884,
            samples: 4,
        };
        let row = |objects_after, root: Option<&str>| KeptRow {
            class: "Beta".into(),
            root: root.map(str::to_owned),
            path: None,
            samples: 12,
            objects_before: 0,
            objects_after,
            bytes: 3 << 20,
            judgement: KeptJudgement::Named,
            lines: Vec::new(),
        };
        let kept = |samples, rows| Kept {
            pid: 7,
            elapsed_ms: 60_000.0,
            samples,
            rows,
            growing: vec![growth.clone()],
            ..Kept::default()
        };
        let more = "942 more objects of Proc and 1,884 of other classes";
        let nothing = format!(
            "No line of process 7 was seen to allocate what stays, in 60 s; Bus::SUBS retains {more}."
        );
        let mut unseen = kept(0, Vec::new());
        unseen.growing[0].samples = 0;
        assert_eq!(kept_summary(&unseen), nothing);
        let few = format!(
            "Bus::SUBS in process 7 retains {more} than 60 s ago; too few of what stays were seen to name a line: 4."
        );
        assert_eq!(kept_summary(&kept(4, Vec::new())), few);
        let named = kept_summary(&kept(12, vec![row(500, Some("LOG"))]));
        let one = "LOG in process 7 keeps 500 more objects of Beta than 60 s ago; about ";
        let other = format!(" Bus::SUBS retains {more}; no line of these is named.");
        assert!(named.starts_with(one) && named.ends_with(&other), "{named}");
        let text = super::kept(&kept(12, vec![row(500, Some("LOG"))]), 400);
        assert!(text.contains("+500 objects of Beta, about 3.0 MiB, kept by LOG"), "{text}");
        let of_threads = kept_summary(&kept(12, vec![row(9_000, Some("(threads)"))]));
        let one = "Process 7 keeps 9,000 more objects of Beta than 60 s ago; about 12 of 12";
        assert!(of_threads.starts_with(one) && !of_threads.contains("Bus"), "{of_threads}");
        let text = super::kept(&kept(4, Vec::new()), 400);
        let line = format!(" · {more}: Bus::SUBS → Array → Proc (bus.rb:3) (4 of 10 samples; ");
        assert!(text.contains(&line), "{text}");
        // Redmine's first sentence was on a cache of queries that ends with each request, and that 184 samples were too few for a name.
        let mut cached = kept(100, Vec::new());
        let of_cache = KeptGrowth { root: "App".into(), samples: 9, ..growth.clone() };
        cached.growing.insert(0, of_cache);
        assert!(kept_summary(&cached).starts_with("App in process 7"));
        cached.rows = vec![KeptRow { judgement: KeptJudgement::Passing, ..row(500, Some("App")) }];
        assert_eq!(kept_summary(&cached), few);
        let text = super::kept(&cached, 400);
        assert!(text.contains(" (most of its objects that were seen did not stay)"), "{text}");
        cached.growing.truncate(1);
        let nothing = "No line of process 7 was seen to allocate what stays, in 60 s.";
        assert_eq!(kept_summary(&cached), nothing);
        // The growth was reported without a word on why it has no line.
        let mut without = kept(0, Vec::new());
        without.growing[0].samples = 0;
        let text = super::kept(&without, 400);
        let line = "(bus.rb:3) (no sample: code has these objects in its hands too briefly, C code makes them, they have no write \
                    barrier, or others replace them within 0 s; watch for 16 min or longer";
        assert!(text.contains(line), "{text}");
    }
}
