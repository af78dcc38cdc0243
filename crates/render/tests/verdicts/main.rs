//! Sentences of verdicts claim no more than the figures of the report.

mod objects;

use formats::{
    Action, Advice, FindingKind, FindingRow, FindingSeverity, Memsize, OtherThreads, Owner, Report,
    Why, WhyKind, WhySubject,
};
use ledger::{Cause, Size};
use render::words;

/// A report on a process of which a cause has 100 MiB.
fn report_of(cause: Cause) -> Report {
    let mut report: Report = serde_json::from_str(include_str!("../burst.json")).unwrap();
    report.verdict.cause = Some(cause);
    report.verdict.rows = vec![cause];
    report.verdict.bytes = 100 << 20;
    report
}

/// Renders the verdict of a report on native memory of which the first of two owners has `percent`.
fn native(percent: u64) -> words::VerdictWords {
    let mut report = report_of(Cause::NativeHeld);
    let owner = |name: &str, bytes| Owner {
        owner: name.into(),
        cause: Some(Cause::NativeHeld),
        objects: 500,
        exclusive_bytes: bytes,
        shared_bytes: 0,
        resident_bytes: Some(bytes),
        memsize: Some(Memsize::None),
        ..report.owners.as_ref().unwrap()[0].clone()
    };
    report.owners =
        Some(vec![owner("PG::Result", percent << 20), owner("Oj::Parser", (100 - percent) << 20)]);
    words::verdict(&report)
}

#[test]
fn most_native_memory_is_held_by_a_class_only_if_it_has_more_than_half() {
    let held = "100.0 MiB of native memory are held by Ruby objects of C extensions";
    let rest =
        "by 500 PG::Result. The type reports no size, so Ruby's GC may count only their slots.";
    assert_eq!(native(51).summary, format!("{held}, most of them {rest}"));
    assert_eq!(native(50).summary, format!("{held}, the largest part of them {rest}"));
}

/// Native memory, some of it exclusive and some shared, that variables hold.
fn of_variables(report: &Report, name: &str, [exclusive_bytes, shared_bytes]: [u64; 2]) -> Owner {
    Owner {
        owner: name.into(),
        cause: Some(Cause::NativeGlobal),
        resident_bytes: Some(exclusive_bytes + shared_bytes),
        exclusive_bytes,
        shared_bytes,
        slot_bytes: 0,
        ..report.owners.as_ref().unwrap()[0].clone()
    }
}

/// The step was to empty the library's caches: memory of `__thread` buffers is freed when threads end.
#[test]
fn memory_of_thread_local_variables_ends_with_threads() {
    let mut report = report_of(Cause::NativeGlobal);
    let owner = |name, bytes| of_variables(&report, name, [bytes, 0]);
    let locals = owner(ledger::THREAD_LOCALS, 60 << 20);
    report.owners = Some(vec![locals, owner("libpq.so.5", 40 << 20)]);
    let words = words::verdict(&report);
    assert!(
        words.summary.ends_with("most of it by thread-local variables: each thread has its own.")
    );
    assert!(
        words.check.ends_with("native.global should fall when threads end."),
        "{}",
        words.check
    );
    let step = formats::Advice { action: formats::Action::FindNativeUse, saves_bytes: None };
    let step = words::advice(&step, &report).action;
    assert!(step.ends_with("run fewer threads, or let them end."), "{step}");
}

/// "Each thread has its own": images in the cache of libvips, to which variables of threads lead as well as those of GLib. Only
/// `Vips.cache_set_max(0)` freed them.
#[test]
fn memory_to_which_libraries_lead_too_does_not_end_with_threads() {
    let mut report = report_of(Cause::NativeGlobal);
    let owner = |name, exclusive, shared| of_variables(&report, name, [exclusive, shared]);
    let locals = owner(ledger::THREAD_LOCALS, 35 << 20, 21 << 20);
    let glib = owner("libglib-2.0.so.0.7400.6", 28 << 20, 14 << 20);
    let vips = owner("libvips.so.42.16.1", 0, 1 << 18);
    report.owners = Some(vec![locals, glib, vips]);
    assert!(words::verdict(&report).summary.ends_with("not by Ruby objects."));
    let step = formats::Advice { action: formats::Action::FindNativeUse, saves_bytes: None };
    assert!(words::advice(&step, &report).action.contains("`Vips.cache_set_max(0)`"));
    report.owners.as_mut().unwrap().pop();
    assert!(!words::advice(&step, &report).action.contains("Vips"));
}

/// "By variables of libraries and by threads": the buffers of EventMachine's slow clients were all in one library, which only the evidence
/// named.
#[test]
fn the_library_with_most_of_the_memory_is_named() {
    let mut report = report_of(Cause::NativeGlobal);
    let owner = |name, bytes| of_variables(&report, name, [bytes, 0]);
    let owners = |bytes| vec![owner("rubyeventmachine.so", bytes), owner("libpq.so.5", 1 << 20)];
    let (most, half) = (owners(51 << 20), owners(50 << 20));
    let step = formats::Advice { action: formats::Action::FindNativeUse, saves_bytes: None };
    report.owners = Some(most);
    assert!(
        words::verdict(&report).summary.ends_with("most of it by those of rubyeventmachine.so.")
    );
    assert!(
        words::advice(&step, &report).action.contains(": variables of rubyeventmachine.so hold it")
    );
    report.owners = Some(half);
    assert!(words::verdict(&report).summary.ends_with("not by Ruby objects."));
    assert!(
        words::advice(&step, &report)
            .action
            .contains(": variables of libraries or threads hold it")
    );
}

/// "Call: the close, clear, free or destroy method of each": 240 nodes kept 220 MiB of documents.
#[test]
fn what_keeps_a_document_is_its_nodes() {
    let report = report_of(Cause::NativeHeld);
    let command_for = |class: &str, path: Option<&str>| {
        let action = formats::Action::FreeNative {
            class: class.into(),
            objects: 240,
            path: path.map(Into::into),
            garbage_objects: 0,
        };
        words::advice(&formats::Advice { action, saves_bytes: None }, &report).command
    };
    let command = |class: &str| command_for(class, None);
    assert!(command("Nokogiri::XML::Element").starts_with("node.text or the like"));
    // The same was the step for documents that a Hash keeps.
    let document = "Nokogiri::XML::Document";
    let kept = |path: &str| command_for(document, Some(path));
    assert!(kept(&format!("FEEDS → Hash → {document}")).starts_with("document.at(...).text "));
    let by_node = kept(&format!("LINKS → Array → Nokogiri::XML::Element → {document}"));
    assert!(by_node.starts_with("node.text or the like"));
    assert_eq!(command("PG::Result"), "result.clear");
    // Nobody knows which methods other classes have.
    assert!(command("Other").starts_with("rbloat why "));
}

/// Owners have the headers of their chunks, which are no part of the cause: one seemed to have more than there was.
#[test]
fn memory_of_owners_is_with_headers() {
    let evidence = native(51).evidence;
    let is_with_headers =
        |line: &String| line.contains("51.0 MiB in ") && line.contains(" with headers;");
    assert!(evidence.iter().any(is_with_headers), "{evidence:?}");
}

/// It was said to belong "neither to malloc nor to Ruby".
#[test]
fn memory_that_was_not_read_is_not_said_to_belong_to_nobody() {
    let mut report: Report = serde_json::from_str(include_str!("../burst.json")).unwrap();
    report.verdict.cause = Some(Cause::Unknown);
    report.ruby = None;
    let kind = FindingKind::RubyUnread { version: "4.1.0".into(), error: "the layout".into() };
    report.findings.push(FindingRow { severity: FindingSeverity::Error, kind, address: None });
    let summary = words::verdict(&report).summary;
    assert!(summary.contains("Ruby's heap could not be read (see the findings)"), "{summary}");
}

#[test]
fn a_process_that_was_read_in_part_is_not_called_free_or_in_use() {
    let mut report: Report = serde_json::from_str(include_str!("../burst.json")).unwrap();
    report.verdict.cause = None;
    report.malloc = None;
    report.process.rss_bytes = 30 << 20;
    for row in &mut report.causes {
        row.bytes = match row.cause {
            Cause::RubyLiveSlots => 8 << 20,
            Cause::RubyFreeSlots => 2 << 20,
            Cause::Unknown => 20 << 20,
            _ => 0,
        };
    }
    let words = words::verdict(&report);
    assert!(words.summary.starts_with("Healthy as far as it could be read"), "{}", words.summary);
    let evidence = [
        "8.0 MiB are in use: 8.0 MiB Ruby objects",
        "2.0 MiB (7 % of RSS) are free: malloc and Ruby keep them for reuse",
        "20.0 MiB are unknown: in use or free",
    ];
    assert_eq!(words.evidence, evidence);
}

/// The report advised `rbloat trim`, which refuses a process with musl.
#[test]
fn an_allocator_that_cannot_be_trimmed_is_not_checked_by_a_trim() {
    let mut report: Report = serde_json::from_str(include_str!("../burst.json")).unwrap();
    report.verdict.cause = Some(Cause::MallocFragmented);
    let words = words::verdict(&report);
    assert!(words.check.contains("`rbloat trim"), "{}", words.check);
    assert!(words.evidence.iter().any(|line| line.starts_with("malloc_trim(0) would return")));
    report.process.allocator = "musl".into();
    let malloc = report.malloc.as_mut().unwrap();
    malloc.walker = "musl's mallocng".into();
    malloc.trim_call = None;
    let words = words::verdict(&report);
    let text = format!("{} {:?} {}", words.summary, words.evidence, words.check);
    assert!(text.contains("rbloat knows no function of musl that returns memory, and "), "{text}");
    assert!(!text.contains(" trim") && !text.contains("malloc_trim"), "{text}");
}

/// tcmalloc's free memory in caches was said to be at the top of arenas.
#[test]
fn memory_in_caches_is_not_at_the_top_of_arenas() {
    let mut report: Report = serde_json::from_str(include_str!("../burst.json")).unwrap();
    report.verdict.cause = Some(Cause::MallocCached);
    report.verdict.bytes = 100 << 20;
    let mut summary = |allocator: &str, top: u64| {
        report.process.allocator = allocator.into();
        report.malloc.as_mut().unwrap().walker = allocator.into();
        for row in &mut report.causes {
            row.bytes = match row.cause {
                Cause::MallocCached => 100 << 20,
                Cause::MallocTop => top,
                _ => 0,
            };
        }
        words::verdict(&report).summary
    };
    let expected = "100.0 MiB are free in tcmalloc's caches, where a trim does not reach them.";
    assert_eq!(summary("tcmalloc", 0), expected);
    let expected = "100.0 MiB are free at the top of arenas or in glibc's caches, where a trim does not reach them.";
    assert_eq!(summary("glibc", 1 << 20), expected);
}

/// A process of 34 MiB was called healthy although nothing referred to 59 % of it.
#[test]
fn a_small_process_of_useless_memory_is_not_called_healthy() {
    let summary = |useless: Cause, mebibytes: u64| {
        let mut report: Report = serde_json::from_str(include_str!("../burst.json")).unwrap();
        report.verdict.cause = None;
        report.owners = None;
        report.process.rss_bytes = 34 << 20;
        for row in &mut report.causes {
            row.bytes = match row.cause {
                cause if cause == useless => mebibytes << 20,
                Cause::RubyVm => (34 - mebibytes) << 20,
                _ => 0,
            };
        }
        words::verdict(&report).summary
    };
    let text = summary(Cause::NativeUnreachable, 20);
    assert!(
        text.starts_with(
            "Too small for a verdict: 34.0 MiB resident. But 59 % of it are native.unreachable ("
        ),
        "{text}"
    );
    for cause in [Cause::MallocUnreturned, Cause::MallocFragmented, Cause::RubyFreeSlots] {
        let text = summary(cause, 9);
        assert!(text.contains(&format!("But 26 % of it are {} (", cause.name())), "{text}");
    }
    for (cause, mebibytes) in [
        (Cause::NativeUnreachable, 8),
        (Cause::RubyFreeSlots, 8),
        (Cause::RubyMalloc, 20),
        (Cause::FileShared, 20),
    ] {
        let text = summary(cause, mebibytes);
        assert!(text.starts_with("Healthy: 34.0 MiB resident."), "{text}");
    }
}

/// Replaces every number that is a size by the largest one.
fn inflate(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Number(number) if number.is_u64() => *number = u64::MAX.into(),
        serde_json::Value::Array(values) => values.iter_mut().for_each(inflate),
        serde_json::Value::Object(fields) => {
            let is_size = |name: &str| !matches!(name, "pid" | "schema" | "heaps");
            fields
                .iter_mut()
                .filter(|(name, _)| is_size(name))
                .for_each(|(_, field)| inflate(field));
        }
        _ => {}
    }
}

/// A snapshot may come from anywhere.
#[test]
fn impossible_sizes_are_shown_and_never_added_up_to_a_panic() {
    let mut document: serde_json::Value =
        serde_json::from_str(include_str!("../burst.json")).unwrap();
    inflate(&mut document);
    let report: Report = serde_json::from_value(document).unwrap();
    let mut report = report.brief(1);
    let largest = Size(u64::MAX).to_string();
    for cause in Cause::ALL.map(Some).into_iter().chain([None]) {
        report.verdict.cause = cause;
        let options = render::TextOptions { width: 100, arenas: true, code: false, waste: false };
        assert!(render::report(&report, options).contains(&largest));
        assert!(render::fix(&report, None, 100).contains(&largest));
    }
}

/// A live table of the VM "may be leaked", although the report named its owner.
#[test]
fn a_chunk_with_an_owner_is_not_called_leaked() {
    let text = |name: &str| {
        let report: Report = serde_json::from_str(include_str!("../burst.json")).unwrap();
        let subject = WhySubject {
            kind: WhyKind::Chunk,
            name: name.into(),
            address: Some("0x7f0000000010".into()),
            objects: 0,
            bytes: 4096,
            retained_objects: None,
            retained_bytes: 0,
        };
        let (paths, referrers, dominators) = (vec![], vec![], vec![]);
        let (process, capture) = (report.process, report.capture);
        let findings = vec![FindingKind::GroupLimitUnknown.into()];
        let root_uses = Vec::new();
        let why =
            Why { process, capture, subject, paths, referrers, dominators, root_uses, findings };
        render::why(&why, 120)
    };
    let owned = text("RubyVM");
    assert!(owned.contains("no root by a path, but memory of RubyVM points to it"), "{owned}");
    assert!(!owned.contains("leaked"), "{owned}");
    // `why` gave false paths without the finding that the report had.
    assert!(owned.contains("FINDINGS") && owned.contains("memory limit is unknown"), "{owned}");
    assert!(text("(nobody)").contains("so it may be leaked"));
}

/// "60.5 MiB of 61 threads … RSS should fall when threads end": sixty had ended, and Ruby 3.1 kept their native threads.
#[test]
fn native_threads_of_ended_ones_are_not_rubys() {
    let mut report = report_of(Cause::StackThreads);
    let row = report.causes.iter_mut().find(|row| row.cause == Cause::StackThreads).unwrap();
    row.bytes = 100 << 20;
    report.process.threads = 61;
    let mut words = |version: &str, others| {
        report.process.ruby_version = Some(version.into());
        report.kept_stacks =
            Some(ledger::KeptStacks { other_threads: others, ..Default::default() }.into());
        words::verdict(&report)
    };
    let of_most = words("3.1.2", Some(60));
    assert!(
        of_most.summary.contains("100.0 MiB of 61 threads (Ruby runs 1 of them)"),
        "{of_most:?}"
    );
    assert!(of_most.evidence.iter().any(|it| it.contains("have ended")), "{of_most:?}");
    assert!(of_most.check.contains("To check: the number of threads"), "{of_most:?}");
    // Ruby 3.2 keeps none.
    let of_c = words("3.2.0", Some(60));
    assert!(of_c.summary.contains("(Ruby runs 1 of them)"), "{of_c:?}");
    assert!(!of_c.evidence.iter().any(|it| it.contains("have ended")), "{of_c:?}");
    for others in [None, Some(30)] {
        let words = words("3.1.2", others);
        assert!(
            words.summary.contains("of 61 threads") && !words.summary.contains("Ruby runs"),
            "{words:?}"
        );
        assert!(words.check.contains("RSS should fall when threads end."), "{words:?}");
    }
}

#[test]
fn the_step_against_native_threads_of_ended_ones_is_to_start_fewer() {
    let step = |may_have_ended, name: Option<&str>| {
        let others = OtherThreads { threads: 60, may_have_ended, name: name.map(Into::into) };
        let action = Action::RunFewerThreads {
            threads: 61,
            starter: None,
            others: Some(others),
            class: None,
        };
        words::advice(&Advice { action, saves_bytes: None }, &report_of(Cause::StackThreads))
    };
    let ended = step(true, Some("worker.rb:5"));
    assert!(
        ended.action.starts_with("Start fewer threads at a time: of 61 threads, Ruby runs 1."),
        "{ended:?}"
    );
    assert!(ended.action.contains("worker.rb:5"), "{ended:?}");
    let of_c = step(false, None);
    assert!(of_c.action.starts_with("Run fewer threads of C code"), "{of_c:?}");
}

/// "The largest is /dev/zero (deleted): 90.0 MiB, mapped 3 times": three mappings of the kernel's name, each of memory of its own.
#[test]
fn shared_memory_without_a_file_is_no_file() {
    let mut report = report_of(Cause::FileShmem);
    let mut words = |path: &str| {
        report.files[0].path = path.into();
        report.files[0].is_in_memory = true;
        (report.files[0].shared_bytes, report.files[0].mappings) = (90 << 20, 3);
        report.files.truncate(1);
        let action = Action::UseLessSharedMemory {
            bytes: 100 << 20,
            path: path.into(),
            path_bytes: 90 << 20,
        };
        let step = words::advice(&Advice { action, saves_bytes: None }, &report).action;
        (words::verdict(&report).evidence.join("\n"), step)
    };
    let (evidence, step) = words("/dev/zero (deleted)");
    let said = "90.0 MiB are anonymous shared memory, which /proc/PID/maps lists as /dev/zero (deleted), in 3 mappings";
    assert!(evidence.contains(said), "{evidence}");
    assert!(step.contains("anonymous: 90.0 MiB") && !step.contains("largest file"), "{step}");
    // A memfd has a descriptor, and the program's name.
    assert!(
        words("/memfd:metrics (deleted)").0.contains("the largest is /memfd:metrics (deleted)")
    );
    let (evidence, step) = words("/dev/shm/metrics (deleted)");
    assert!(evidence.contains("the largest is /dev/shm/metrics (deleted): 90.0 MiB"), "{evidence}");
    assert!(step.contains("The largest file is /dev/shm/metrics"), "{step}");
}

/// "Pages of mapped files, most of them changed": they were in no file.
#[test]
fn variables_that_begin_as_zeros_are_no_pages_of_the_library() {
    let mut report = report_of(Cause::FilePrivate);
    let text = |report: &Report| words::verdict(report);
    assert!(text(&report).summary.ends_with(" most of them changed by this process."));
    let file = &mut report.files[0];
    file.path = "/usr/lib/libopenblas.so.0".into();
    (file.private_bytes, file.zeroed_bytes) = (90 << 20, 80 << 20);
    let words = text(&report);
    let end = "most of them variables of /usr/lib/libopenblas.so.0 that begin as zeros (.bss).";
    assert!(words.summary.ends_with(end), "{words:?}");
    assert!(words.check.contains(" at the mapping without a name "), "{words:?}");
}
