//! The reason why an object, a chunk, or the objects of a class exist, as text.

use std::fmt::Write;

use formats::{Why, WhyKind, WhyReferrer};
use ledger::{Count, Size};

use crate::report::write_findings;
use crate::text::{BOLD, write_wrapped};
use crate::words;
use crate::words::lines::is_used_in;

/// The owner of memory to which nothing points.
const NOBODY: &str = "(nobody)";

/// Returns an explanation as text for a terminal of `width` columns. It contains ANSI colours, which the caller strips if the
/// reader does not want them.
#[must_use]
pub fn why(why: &Why, width: usize) -> String {
    let mut text = String::new();
    write(why, &mut text, width).expect("a string takes all text");
    text
}

/// Returns an explanation in one sentence.
#[must_use]
pub fn why_summary(why: &Why) -> String {
    let subject = subject(why);
    if why.paths.iter().all(|path| path.path.is_none()) {
        return format!("{subject}: {}.", unretained(why));
    }
    format!("{subject} retains {}.", Size(why.subject.retained_bytes))
}

/// The reason why a subject has no retaining path. A chunk may have an owner all the same: the owners of reports are found by
/// words that no path follows, because they may be out of use.
fn unretained(why: &Why) -> String {
    match why.subject.kind {
        WhyKind::Chunk if why.subject.name != NOBODY => {
            format!("no root by a path, but memory of {} points to it", why.subject.name)
        }
        WhyKind::Chunk => "nothing: no pointer to it was found, so it may be leaked".into(),
        WhyKind::Object | WhyKind::Class => {
            "nothing: garbage that the GC has not collected yet".into()
        }
    }
}

/// The reasons why a subject retains less than its own memory: what is garbage, and what would not be freed with it.
fn less(why: &Why) -> String {
    let rows = why.paths.iter().filter(|path| path.path.is_none());
    let garbage: u64 = rows.map(|path| path.bytes).sum();
    let rest = why.subject.bytes.saturating_sub(why.subject.retained_bytes);
    let shared = rest.saturating_sub(garbage);
    // A tenth of a unit does not show.
    let is_much = |bytes: u64| bytes * 100 >= why.subject.bytes.max(1);
    match [garbage.min(rest), shared].map(|bytes| (Size(bytes), is_much(bytes))) {
        [(garbage, true), (shared, true)] => {
            format!(", of which {garbage} are garbage and {shared} would not be freed with it")
        }
        [(garbage, true), _] => format!(", of which {garbage} are garbage"),
        [_, (shared, true)] => format!(", of which {shared} would not be freed with it"),
        _ => String::new(),
    }
}

fn subject(why: &Why) -> String {
    let subject = &why.subject;
    let address = subject.address.as_deref().unwrap_or_default();
    match subject.kind {
        WhyKind::Object => format!("{} {address}", subject.name),
        WhyKind::Chunk => format!("The chunk {address} of {}", subject.name),
        WhyKind::Class => {
            format!("{} ({})", subject.name, words::counted(subject.objects, "object"))
        }
    }
}

fn write(why: &Why, out: &mut String, width: usize) -> std::fmt::Result {
    let subject_words = subject(why);
    let subject = &why.subject;
    writeln!(out, "{BOLD}{subject_words}{BOLD:#}")?;
    let freed = match subject.retained_objects {
        Some(objects) if objects > 0 => format!(" in {}", words::counted(objects, "object")),
        _ => String::new(),
    };
    let own = format!("{} of its own", Size(subject.bytes));
    let is_retained = why.paths.iter().any(|path| path.path.is_some());
    let whole = match is_retained {
        true => {
            format!("{own}{}; retains {}{freed}", less(why), Size(subject.retained_bytes))
        }
        false => own,
    };
    write_wrapped(out, " · ", &whole, width)?;
    writeln!(out)?;
    writeln!(out, "{BOLD}RETAINED BY{BOLD:#}")?;
    for path in &why.paths {
        let path_words = path.path.clone().unwrap_or_else(|| unretained(why));
        let line = match subject.kind {
            WhyKind::Class => {
                format!("{path_words}  {}", words::retained_share(path, subject.objects))
            }
            WhyKind::Object | WhyKind::Chunk => path_words,
        };
        let uses = path.path.as_deref().and_then(|path| is_used_in(path, &why.root_uses));
        let line = line + &uses.map_or_else(String::new, |uses| format!("; {uses}"));
        write_wrapped(out, " · ", &line, width)?;
    }
    if why.paths.is_empty() {
        writeln!(out, " · {}", unretained(why))?;
    }
    let sections = [("REFERRED TO BY", &why.referrers), ("WOULD BE FREE WITHOUT", &why.dominators)];
    for (head, referrers) in sections.iter().filter(|(_, referrers)| !referrers.is_empty()) {
        writeln!(out, "\n{BOLD}{head}{BOLD:#}")?;
        for referrer in *referrers {
            write_wrapped(out, " · ", &referrer_words(referrer), width)?;
        }
    }
    if !why.findings.is_empty() {
        writeln!(out)?;
    }
    write_findings(&why.findings, out, width)
}

fn referrer_words(referrer: &WhyReferrer) -> String {
    let WhyReferrer { name, count, address, retained_bytes } = referrer;
    let retains =
        retained_bytes.map_or_else(String::new, |bytes| format!(", retains {}", Size(bytes)));
    match (count, address) {
        (1, Some(address)) => format!("{name} {address}{retains}"),
        (1, None) => format!("{name}{retains}"),
        (count, Some(address)) => format!("{name} × {}, one of them {address}", Count(*count)),
        (count, None) => format!("{name} × {}", Count(*count)),
    }
}
