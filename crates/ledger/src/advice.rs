use capture::Origin;

use crate::{Cause, Count, Ledger, Size, Verdict, percent};

/// A step worth saving less than this is not worth telling.
const LEAST_BYTES: u64 = 8 << 20;
/// A step that touches a smaller share of RSS is not worth telling either, in percent.
const LEAST_SHARE: f64 = 5.0;

/// Something that the user can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// What to do, in one sentence.
    pub action: String,
    /// The command or setting.
    pub command: String,
    /// What it is expected to save, in bytes, and at most; `None` where that cannot be said.
    pub saves_bytes: Option<u64>,
    /// Whether the process has it already.
    pub already_set: bool,
    /// What it costs.
    pub costs: String,
}

/// What can be done about the process: what goes against the verdict's cause first, then the step
/// that saves most. None where the process is healthy.
#[must_use]
pub fn advise(ledger: &Ledger) -> Vec<Advice> {
    use Cause::{MallocFragmented, MallocUnreturned};
    let Some(cause) = Verdict::of(ledger).cause else { return Vec::new() };
    let free: &[Cause] = &[MallocUnreturned, MallocFragmented];
    let steps = [
        (free, trim(ledger)),
        (free, allocator(ledger)),
        (free, arena_max(ledger)),
        (&[Cause::RubyFreeSlots], compact(ledger)),
        (&[Cause::RubyLiveSlots, Cause::RubyMalloc], objects(ledger)),
        (&[Cause::NativeHeld], held(ledger)),
        (&[Cause::NativeUnreachable], unreachable(ledger)),
        (&[Cause::MallocInUse], native(ledger)),
        (&[Cause::StackThreads, Cause::StackFibers], stacks(ledger)),
        (&[Cause::FileShared, Cause::FilePrivate], files(ledger)),
    ];
    let told =
        |(against, step): (&[Cause], Option<Advice>)| Some((against.contains(&cause), step?));
    let mut steps: Vec<_> = steps.into_iter().filter_map(told).collect();
    steps.sort_by_key(|(is_against, step)| std::cmp::Reverse((*is_against, step.saves_bytes)));
    steps.into_iter().map(|(_, step)| step).collect()
}

fn is_worth(ledger: &Ledger, bytes: u64) -> bool {
    bytes >= LEAST_BYTES && percent(bytes, ledger.rss_bytes) >= LEAST_SHARE
}

fn trim(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.malloc.as_ref()?.trim_yield_bytes;
    // What a core was made of need not live any more.
    (ledger.origin == Origin::Process && is_worth(ledger, bytes)).then(|| Advice {
        action: "Give the free pages back now: let the process call malloc_trim(0).".into(),
        command: format!("rbloat trim {}", ledger.process.pid),
        saves_bytes: Some(bytes),
        already_set: false,
        costs: "some milliseconds, then page faults as far as the memory is needed again; a load \
                that comes again brings it back"
            .into(),
    })
}

fn allocator(ledger: &Ledger) -> Option<Advice> {
    let kept = ledger.sum(&[Cause::MallocUnreturned, Cause::MallocFragmented]);
    let is_preloaded = ledger
        .process
        .variable("LD_PRELOAD")
        .is_some_and(|libraries| libraries.contains("jemalloc"));
    // It is set, but malloc is glibc's all the same.
    let action = if is_preloaded {
        "Mend LD_PRELOAD: it names jemalloc, but that was not loaded."
    } else {
        "Start the process with jemalloc, which gives free pages back some seconds after they were \
         freed."
    };
    (is_worth(ledger, kept) && ledger.allocator.is_glibc()).then(|| Advice {
        action: action.into(),
        command: "LD_PRELOAD=libjemalloc.so.2".into(),
        // How much of what is pinned it would save cannot be said.
        saves_bytes: Some(ledger.causes[Cause::MallocUnreturned])
            .filter(|bytes| is_worth(ledger, *bytes)),
        already_set: false,
        costs: "a restart; the peak during a burst does not fall".into(),
    })
}

fn arena_max(ledger: &Ledger) -> Option<Advice> {
    let malloc = ledger.malloc.as_ref()?;
    let kept = |arena: &crate::ArenaAccount| {
        arena.causes[Cause::MallocUnreturned]
            + arena.causes[Cause::MallocFragmented]
            + arena.causes[Cause::MallocTop]
            + arena.causes[Cause::MallocCached]
    };
    let mut by_arena: Vec<u64> = malloc.arenas.iter().map(kept).collect();
    by_arena.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    // What the arenas beyond two keep; those two would keep what they do now.
    let bytes = by_arena.iter().skip(2).sum();
    let already_set = matches!(malloc.arena_max, Some(1..=2));
    let is_worth_telling =
        if already_set { is_worth(ledger, by_arena.iter().sum()) } else { is_worth(ledger, bytes) };
    is_worth_telling.then(|| Advice {
        action: format!(
            "Limit malloc to two arenas: those beyond keep {} free. It helps against steady churn in \
             threads, not against bursts, whose peak two arenas keep as well; which of them it was \
             cannot be seen from one look.",
            Size(bytes)
        ),
        command: "MALLOC_ARENA_MAX=2".into(),
        saves_bytes: None,
        already_set,
        costs: "a restart, and some waiting of threads for each other in malloc".into(),
    })
}

fn compact(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.causes[Cause::RubyFreeSlots];
    is_worth(ledger, bytes).then(|| Advice {
        action: "Move the live objects together, so that empty heap pages can be freed.".into(),
        command: "GC.compact, then GC.start".into(),
        saves_bytes: Some(bytes),
        already_set: false,
        costs:
            "a pause of the whole process; objects that C extensions pin stay where they are; the \
                pages come back if the load needs the slots again"
                .into(),
    })
}

fn objects(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.sum(&[Cause::RubyLiveSlots, Cause::RubyMalloc]);
    let class = ledger.managed().next()?;
    let objects = format!("objects of class {} ({})", class.name, Size(class.weight_bytes()));
    let (trace, restart) = (
        "ObjectSpace.trace_object_allocations_start at boot, then ObjectSpace.dump_all",
        "a restart to trace allocations; the dump holds the GVL for seconds",
    );
    let (action, command, costs) = match class.retainers.first().map(|retainer| &retainer.path) {
        Some(Some(path)) => (
            format!(
                "Let go of the {objects}, which are kept by {path}; or find where they are made."
            ),
            trace,
            restart,
        ),
        Some(None) => (
            format!("Let the GC run: most {objects} are garbage."),
            "GC.start",
            "a pause of the program while it collects",
        ),
        None => (format!("Find who keeps the {objects}, which hold the most."), trace, restart),
    };
    (is_worth(ledger, bytes) && percent(bytes, ledger.rss_bytes) >= 25.0).then(|| Advice {
        action,
        command: command.into(),
        saves_bytes: None,
        already_set: false,
        costs: costs.into(),
    })
}

/// What frees the memory of an extension's object before the GC does.
const REMEDIES: [(&str, &str); 14] = [
    ("PG::Result", "result.clear"),
    ("PG::Connection", "connection.close"),
    ("Mysql2::Result", "result.free"),
    ("Mysql2::Statement", "statement.close"),
    ("Mysql2::Client", "client.close"),
    ("SQLite3::Statement", "statement.close"),
    ("SQLite3::Database", "database.close"),
    ("Zlib::Deflate", "deflate.close"),
    ("Zlib::Inflate", "inflate.close"),
    ("Zlib::GzipReader", "reader.close"),
    ("Zlib::GzipWriter", "writer.close"),
    ("FFI::MemoryPointer", "pointer.free"),
    ("Fiddle::Pointer", "pointer.call_free"),
    ("Magick::Image", "image.destroy!"),
];

/// What to do about the extension's objects that hold most.
fn held(ledger: &Ledger) -> Option<Advice> {
    let mut owners = ledger.owners.iter().filter(|owner| owner.cause == Cause::NativeHeld);
    let owner = owners.next()?;
    let bytes = owner.weight_bytes();
    let retainer = owner.retainers.first();
    let many = format!("{} objects of class {}", Count(owner.objects), owner.name);
    let action = match retainer.map(|retainer| (&retainer.path, retainer.objects)) {
        Some((None, objects)) if objects * 2 > owner.objects => format!(
            "Free {many} as soon as they have been used: {} of them are garbage that the GC has not \
             collected yet, and it does not know how much memory they hold.",
            Count(objects)
        ),
        Some((Some(path), _)) => format!(
            "Let go of {many}, which are kept by {path}; or free what they hold as soon as it has been \
             used."
        ),
        _ => format!("Free what {many} hold as soon as it has been used."),
    };
    let remedy = REMEDIES.iter().find(|(name, _)| *name == owner.name);
    let remedy = remedy.map_or("their close, clear, free or destroy method", |(_, remedy)| remedy);
    is_worth(ledger, bytes).then(|| Advice {
        action,
        command: remedy.into(),
        saves_bytes: Some(owner.exclusive_bytes.min(owner.resident_bytes.unwrap_or(u64::MAX))),
        already_set: false,
        costs: "a change of the program; GC.start frees those that are garbage at once".into(),
    })
}

fn unreachable(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.causes[Cause::NativeUnreachable];
    let pid = match ledger.origin {
        Origin::Process => ledger.process.pid.to_string(),
        Origin::Core => "PID".into(),
    };
    is_worth(ledger, bytes).then(|| Advice {
        action:
            "Find who allocates without freeing: nothing points to this memory any more. Upgrade \
                 the extension that does."
                .into(),
        command: format!("memleak-bpfcc -p {pid}   (Debian's bpfcc-tools, as root)"),
        saves_bytes: Some(bytes),
        already_set: false,
        costs:
            "allocations are slower while they are watched; a restart gets the memory back, for a \
                time"
                .into(),
    })
}

fn native(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.causes[Cause::MallocInUse];
    (is_worth(ledger, bytes) && percent(bytes, ledger.rss_bytes) >= 25.0).then(|| Advice {
        action: "Look for native memory that Ruby's GC does not know of: results, documents and \
                 handles of C extensions that are neither freed nor closed."
            .into(),
        command: "call clear, close or free on them, or upgrade the extension".into(),
        saves_bytes: None,
        already_set: false,
        costs: "a change of the program".into(),
    })
}

fn stacks(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.sum(&[Cause::StackThreads, Cause::StackFibers]);
    is_worth(ledger, bytes).then(|| Advice {
        action: format!("Run fewer threads: there are {}.", ledger.process.threads),
        command: "RAILS_MAX_THREADS, Puma's threads, Sidekiq's concurrency".into(),
        saves_bytes: Some(bytes),
        already_set: false,
        costs: "less done at the same time".into(),
    })
}

fn files(ledger: &Ledger) -> Option<Advice> {
    let bytes = ledger.causes[Cause::FileShared];
    (ledger.origin == Origin::Process
        && is_worth(ledger, bytes)
        && percent(bytes, ledger.rss_bytes) >= 25.0)
        .then(|| {
            Advice {
        action:
            "Leave it, and watch PSS or anonymous memory instead of RSS: the kernel takes pages \
                 of files back when memory is short."
                .into(),
        command: format!("grep -E '^(Pss|Anonymous)' /proc/{}/smaps_rollup", ledger.process.pid),
        saves_bytes: None,
        already_set: false,
        costs: "nothing".into(),
    }
        })
}
