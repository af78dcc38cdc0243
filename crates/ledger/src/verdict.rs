use capture::Origin;

use crate::{Cause, Count, Ledger, OwnerAccount, OwnerKind, Size, percent};

/// A part of RSS smaller than this is no bloat, whatever its share: a fresh Ruby has its parts too.
const LEAST_BYTES: u64 = 48 << 20;
/// A part of RSS with a smaller share than this does not explain the whole, in percent.
const LEAST_SHARE: f64 = 25.0;

/// How sure a verdict is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confidence {
    /// The cause is most of RSS, and every part was read.
    High,
    /// The cause is the largest part of RSS, but not most of it; its name is not its culprit; or
    /// the rows are estimates.
    Medium,
    /// A part of the process could not be read.
    Low,
}

impl Confidence {
    /// Its name, part of the stable interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
        }
    }
}

/// Where the memory went, in one sentence, with what speaks for it and what would prove it wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The cause; `None` where the process is healthy.
    pub cause: Option<Cause>,
    /// The bytes behind it: of all causes that mean the same, of which `cause` is the largest; RSS
    /// where the process is healthy.
    pub bytes: u64,
    /// How sure it is.
    pub confidence: Confidence,
    /// The sentence.
    pub summary: String,
    /// What speaks for it.
    pub evidence: Vec<String>,
    /// What would prove it wrong.
    pub falsified_by: String,
}

/// What a verdict may name: causes that mean the same to the user.
const SUSPECTS: [&[Cause]; 14] = [
    &[Cause::MallocUnreturned],
    &[Cause::MallocFragmented],
    &[Cause::MallocTop, Cause::MallocCached],
    &[Cause::RubyLiveSlots, Cause::RubyMalloc],
    &[Cause::RubyFreeSlots],
    &[Cause::StackThreads, Cause::StackFibers],
    &[Cause::FilePrivate, Cause::FileShared],
    &[Cause::NativeHeld],
    &[Cause::NativeUnreachable],
    &[Cause::NativeGlobal],
    &[Cause::RubyVm],
    &[Cause::MallocInUse],
    &[Cause::RubyJit],
    &[Cause::Unknown],
];

impl Verdict {
    /// The verdict on a ledger: the suspect with the most bytes, if that explains the process.
    #[must_use]
    pub fn of(ledger: &Ledger) -> Self {
        // Of two alike the one that is named first.
        let suspect = SUSPECTS.iter().rev().max_by_key(|causes| ledger.sum(causes));
        let causes = suspect.expect("there are suspects");
        let bytes = ledger.sum(causes);
        let share = percent(bytes, ledger.rss_bytes);
        if bytes < LEAST_BYTES || share < LEAST_SHARE {
            return healthy(ledger);
        }
        let largest = causes.iter().rev().max_by_key(|&&cause| ledger.causes[cause]);
        let cause = *largest.expect("a suspect has causes");
        let (summary, mut evidence, mut falsified_by) = describe(ledger, cause, bytes);
        if ledger.origin == Origin::Core {
            // Nothing can be tried with what may be gone.
            falsified_by = format!("In a process that does the same: {falsified_by}");
        }
        let rows = causes.iter().filter(|&&cause| ledger.causes[cause] > 0);
        let rows = rows.map(|cause| cause.name()).collect::<Vec<_>>().join(" and ");
        let resident = Size(ledger.rss_bytes);
        evidence
            .insert(0, format!("{} of {resident} resident are {rows} ({share:.0} %)", Size(bytes)));
        Self {
            cause: Some(cause),
            bytes,
            confidence: confidence(ledger, cause, share),
            summary,
            evidence,
            falsified_by,
        }
    }
}

/// How sure any verdict on this ledger can be.
fn best_confidence(ledger: &Ledger) -> Confidence {
    let unread = ledger.malloc.is_none() || ledger.ruby.is_none();
    let unknown = percent(ledger.causes[Cause::Unknown], ledger.rss_bytes);
    match ledger.is_estimated {
        _ if unread || unknown > LEAST_SHARE => Confidence::Low,
        true => Confidence::Medium,
        false => Confidence::High,
    }
}

fn confidence(ledger: &Ledger, cause: Cause, share: f64) -> Confidence {
    match best_confidence(ledger) {
        // That these bytes are in use is sure; who uses them is not said.
        Confidence::High if cause == Cause::MallocInUse || share < 50.0 => Confidence::Medium,
        best => best,
    }
}

fn healthy(ledger: &Ledger) -> Verdict {
    let (cause, bytes) =
        ledger.causes.iter().max_by_key(|(_, bytes)| *bytes).unwrap_or((Cause::Unknown, 0));
    Verdict {
        cause: None,
        bytes: ledger.rss_bytes,
        confidence: best_confidence(ledger),
        summary: format!(
            "{}: {} resident, and no part of it is both over {} and over {LEAST_SHARE:.0} %.",
            if ledger.malloc.is_some() && ledger.ruby.is_some() {
                "Healthy"
            } else {
                "Healthy as far as it could be read"
            },
            Size(ledger.rss_bytes),
            Size(LEAST_BYTES)
        ),
        evidence: vec![format!(
            "the largest part is {cause}: {} ({:.0} %)",
            Size(bytes),
            percent(bytes, ledger.rss_bytes)
        )],
        falsified_by: "A later report in which one part has grown beyond these bounds.".into(),
    }
}

/// The sentence, the evidence and what would falsify it, for a cause that explains the process.
fn describe(ledger: &Ledger, cause: Cause, bytes: u64) -> (String, Vec<String>, String) {
    let size = Size(bytes);
    match cause {
        Cause::MallocUnreturned => (
            format!(
                "{size} were freed by Ruby but never returned to the kernel: glibc keeps whole free \
                 pages; this is no leak."
            ),
            arena_evidence(ledger),
            format!(
                "malloc_trim(0) in the process lowers RSS by clearly less than {}.",
                Size(trim_yield(ledger))
            ),
        ),
        Cause::MallocFragmented => (
            format!(
                "{size} are free but pinned: they share pages with memory in use, so neither glibc \
                 nor malloc_trim can return them."
            ),
            arena_evidence(ledger),
            "malloc_trim(0) in the process returns most of it, or it goes away under an allocator \
             that separates sizes (jemalloc)."
                .into(),
        ),
        Cause::MallocTop | Cause::MallocCached => (
            format!(
                "{size} are free at the top of arenas or in caches of glibc, where malloc_trim does \
                 not reach them."
            ),
            arena_evidence(ledger),
            "The next report shows them in use: they were the room for work that came.".into(),
        ),
        Cause::RubyLiveSlots | Cause::RubyMalloc => (
            format!(
                "{size} are held by live Ruby objects{}: the memory is in use by the program itself, a \
                 managed leak or simply its data.",
                most_of_it(ledger, bytes)
            ),
            class_evidence(ledger),
            "After GC.start in the process a report shows the objects gone: then they were garbage \
             that was not collected yet."
                .into(),
        ),
        Cause::RubyFreeSlots => (
            format!(
                "{size} are free slots on Ruby's own heap pages: few live objects pin many pages."
            ),
            slot_evidence(ledger),
            "The free slots are used up again by the ordinary load, or GC.compact frees most of the \
             pages."
                .into(),
        ),
        Cause::StackThreads | Cause::StackFibers => (
            format!("{size} are the stacks of {} threads.", Count(ledger.process.threads)),
            vec![format!(
                "on average {} of stack for each thread are resident",
                Size(bytes / ledger.process.threads.max(1))
            )],
            "RSS stays when the threads have ended.".into(),
        ),
        Cause::FilePrivate | Cause::FileShared => (
            format!(
                "{size} are pages of mapped files: shared with the kernel's cache, they are given \
                 back when memory is short."
            ),
            vec![format!(
                "{} are the kernel's cached pages, {} this process's own copies",
                Size(ledger.causes[Cause::FileShared]),
                Size(ledger.causes[Cause::FilePrivate])
            )],
            "The process's PSS is about as large as its RSS, and its anonymous memory is the greater \
             part of it."
                .into(),
        ),
        Cause::MallocInUse => (
            format!(
                "{size} of native memory are in use that no Ruby object names: C extensions, \
                 libraries or the VM itself; who holds it is not attributed."
            ),
            vec![format!(
                "objects name {} of malloc'ed memory themselves",
                Size(ledger.causes[Cause::RubyMalloc])
            )],
            "The memory is free after GC.start, or a Ruby object is found that holds it.".into(),
        ),
        Cause::RubyVm => (
            format!("{size} are the interpreter's own: classes, methods, bytecode and its tables."),
            owner_evidence(ledger, &[Cause::RubyVm]),
            "RSS is as large in a process that loads the same code and does no work.".into(),
        ),
        Cause::NativeHeld => held(ledger, size),
        Cause::NativeGlobal => (
            format!(
                "{size} of native memory are held by variables of libraries and by threads, not by \
                 any Ruby object."
            ),
            owner_evidence(ledger, &[Cause::NativeGlobal]),
            "The library has a way to empty its caches, and RSS stays after that and malloc_trim."
                .into(),
        ),
        Cause::NativeUnreachable => (
            format!(
                "{size} of native memory are in use and nothing points to them: a leak in a C \
                 extension or library."
            ),
            owner_evidence(ledger, &[Cause::NativeUnreachable]),
            "The memory is freed later: then a pointer to it was hidden from rbloat (tagged, or kept \
             as a difference)."
                .into(),
        ),
        Cause::RubyJit => (
            format!("{size} are machine code made by Ruby's JIT compiler, and its tables of that."),
            vec![],
            "RSS is the same with the JIT compiler switched off.".into(),
        ),
        Cause::RubyOverhead | Cause::MallocOverhead | Cause::Unknown => (
            format!("{size} are anonymous memory that rbloat cannot look into: {}.", opaque(ledger)),
            vec![],
            "A report in which malloc's and Ruby's side are both read.".into(),
        ),
    }
}

/// Why memory could not be looked into.
fn opaque(ledger: &Ledger) -> String {
    if ledger.malloc.is_none() && ledger.ruby.is_none() {
        "neither malloc's nor Ruby's side was read, and the findings say why".into()
    } else if ledger.allocator.is_glibc() {
        "neither malloc nor Ruby claims it".into()
    } else {
        format!("malloc is served by {}", ledger.allocator)
    }
}

fn trim_yield(ledger: &Ledger) -> u64 {
    ledger.malloc.as_ref().map_or(0, |malloc| malloc.trim_yield_bytes)
}

fn arena_evidence(ledger: &Ledger) -> Vec<String> {
    let Some(malloc) = &ledger.malloc else { return vec![] };
    let free = |arena: &&crate::ArenaAccount| {
        arena.causes[Cause::MallocUnreturned] + arena.causes[Cause::MallocFragmented]
    };
    let mut evidence = vec![format!(
        "malloc has {} in {} chunks in use, and keeps {} free in {} arenas",
        Size(malloc.totals.in_use_bytes + malloc.totals.mmapped_bytes),
        Count(malloc.totals.in_use_chunks + malloc.totals.mmapped_chunks),
        Size(malloc.totals.free_bytes + malloc.totals.fastbin_bytes),
        malloc.arenas.len()
    )];
    evidence.push(format!(
        "malloc_trim(0) would return {}; {} more share pages with bytes in use",
        Size(malloc.trim_yield_bytes),
        Size(ledger.causes[Cause::MallocFragmented])
    ));
    if malloc.trim_deferred_bytes > 0 {
        evidence.push(format!(
            "{} of that lie in huge pages with bytes in use: RSS falls at once, but the kernel has them \
             back only when memory gets short",
            Size(malloc.trim_deferred_bytes)
        ));
    }
    if let Some(largest) = malloc.arenas.iter().max_by_key(free)
        && malloc.arenas.len() > 1
    {
        let name = if largest.is_main { "the main arena" } else { "a thread's arena" };
        evidence
            .push(format!("the largest share of one arena is {} ({name})", Size(free(&largest))));
    }
    evidence
}

fn class_evidence(ledger: &Ledger) -> Vec<String> {
    let Some(ruby) = &ledger.ruby else { return vec![] };
    let mut evidence = vec![format!(
        "{} live slots ({}), and {} of malloc'ed memory that they name",
        Count(ruby.slots_live),
        Size(ruby.slot_bytes_live),
        Size(ledger.causes[Cause::RubyMalloc])
    )];
    evidence.extend(ledger.managed().take(3).map(|class| {
        format!(
            "{} {}: {} of slots, {} of malloc'ed memory",
            Count(class.objects),
            class.name,
            Size(class.slot_bytes),
            Size(class.held_bytes())
        )
    }));
    evidence
}

/// The class that holds most of `bytes`, if one does.
fn most_of_it(ledger: &Ledger, bytes: u64) -> String {
    let held = OwnerAccount::weight_bytes;
    match ledger.managed().find(|owner| owner.kind == OwnerKind::Class) {
        Some(owner) if held(owner) * 2 > bytes => {
            format!(", the most of it by {} {}", Count(owner.objects), owner.name)
        }
        _ => String::new(),
    }
}

/// The sentence, the evidence and what would falsify it, for memory that objects of C extensions
/// hold.
fn held(ledger: &Ledger, size: Size) -> (String, Vec<String>, String) {
    let mut owners = ledger.owners.iter().filter(|owner| owner.cause == Cause::NativeHeld);
    let summary = match owners.next() {
        Some(first) => format!(
            "{size} of native memory are held by Ruby objects of C extensions, the most of it by {} \
             {}; {}.",
            Count(first.objects),
            first.name,
            match first.has_memsize {
                Some(false) => "Ruby's GC counts only their slots",
                _ => "Ruby's GC may see less of it than there is",
            }
        ),
        None => format!("{size} of native memory are held by Ruby objects of C extensions."),
    };
    let falsified_by =
        "Clearing, freeing or closing these objects does not lower the memory in use.";
    (summary, owner_evidence(ledger, &[Cause::NativeHeld]), falsified_by.into())
}

/// The owners of these causes that hold most.
fn owner_evidence(ledger: &Ledger, causes: &[Cause]) -> Vec<String> {
    let owners: Vec<_> =
        ledger.owners.iter().filter(|owner| causes.contains(&owner.cause)).take(3).collect();
    // Beside what holds most the others may be nothing.
    let least = owners.first().map_or(0, |first| first.weight_bytes() / 50);
    let describe = |owner: &OwnerAccount| {
        let memsize = match owner.has_memsize {
            Some(false) => "; their type tells Ruby no size",
            Some(true) => "; their type tells Ruby a size",
            None => "",
        };
        let many =
            if owner.objects > 0 { format!("{} ", Count(owner.objects)) } else { String::new() };
        format!(
            "{many}{}: {} in {} chunks, {} of it shared with others{memsize}",
            owner.name,
            Size(owner.held_bytes()),
            Count(owner.chunks),
            Size(owner.shared_bytes),
        )
    };
    owners.into_iter().filter(|owner| owner.weight_bytes() >= least).map(describe).collect()
}

fn slot_evidence(ledger: &Ledger) -> Vec<String> {
    let Some(ruby) = &ledger.ruby else { return vec![] };
    vec![format!(
        "{} of {} slots are free, on {} heap pages",
        Count(ruby.slots_free),
        Count(ruby.slots_free + ruby.slots_live),
        Count(ruby.heap_pages)
    )]
}
