//! Sentences on the memory of Ruby objects, and on garbage.

use formats::{Action, Advice, KeptBy, Owner, Report, Why, WhyKind, WhySubject};
use ledger::Cause;
use render::words;

/// A report on live Ruby objects of 100 MiB. Each owner has a name, a cause, MiB of slots and of resident memory, and the path
/// that retains all of it.
fn objects(owners: &[(&str, Cause, u64, u64, Option<&str>)]) -> String {
    words::verdict(&report_on(owners)).summary
}

/// A report on 100 MiB of objects.
fn report_on(owners: &[(&str, Cause, u64, u64, Option<&str>)]) -> Report {
    let mut report: Report = serde_json::from_str(include_str!("../burst.json")).unwrap();
    report.verdict.cause = Some(Cause::RubyMalloc);
    report.verdict.rows = vec![Cause::RubyLiveSlots, Cause::RubyMalloc];
    report.verdict.bytes = 100 << 20;
    report.advice = vec![];
    let first = report.owners.as_ref().unwrap()[0].clone();
    let owner = |&(name, cause, slots, resident, path): &(&str, Cause, u64, u64, Option<&str>)| {
        let kept = KeptBy {
            path: path.map(Into::into),
            objects: 500,
            bytes: (slots + resident) << 20,
            other_path: None,
            shared: None,
        };
        Owner {
            owner: name.into(),
            cause: Some(cause),
            objects: 500,
            slot_bytes: slots << 20,
            exclusive_bytes: resident << 20,
            shared_bytes: 0,
            resident_bytes: Some(resident << 20),
            kept_by: vec![kept],
            ..first.clone()
        }
    };
    report.owners = Some(owners.iter().map(owner).collect());
    report
}

/// The setting was below the verdict, and not its reason.
#[test]
fn garbage_of_a_gc_that_collects_young_objects_only_has_that_reason() {
    let mut report = report_on(&[("String", Cause::RubyMalloc, 10, 70, None)]);
    let reason = "it never collects old objects (GC.config(rgengc_allow_full_mark: false)).";
    for (allowed, is_reason) in [(None, false), (Some(true), false), (Some(false), true)] {
        report.ruby.as_mut().unwrap().gc.allow_full_mark = allowed;
        let text = words::verdict(&report).summary;
        assert!(text.contains("most of which are garbage that the GC has not"), "{text}");
        assert_eq!(text.ends_with(reason), is_reason, "{text}");
    }
    report.ruby.as_mut().unwrap().slots_unmarked = 500;
    let action = Action::AllowFullMark { garbage_bytes: 80 << 20 };
    let step = words::advice(&Advice { action, saves_bytes: None }, &report);
    let end = "A collection frees about 80.0 MiB for reuse, but RSS need not fall.";
    assert!(step.action.ends_with(end), "{step:?}");
}

/// "124.0 MiB are held by live Ruby objects": just under half was garbage.
#[test]
fn objects_are_not_called_live_if_much_of_them_is_garbage() {
    let text = |garbage: u64| {
        let live = ("String", Cause::RubyMalloc, 10, 90 - garbage, Some("A → String"));
        words::verdict(&report_on(&[live, ("Hash", Cause::RubyMalloc, 0, garbage, None)])).summary
    };
    let much = text(49);
    let sentence = "49.0 MiB of this memory are garbage that the GC has not collected yet.";
    let is_right =
        much.starts_with("100.0 MiB are held by Ruby objects") && much.contains(sentence);
    assert!(is_right && much.contains("The program itself uses the rest: "), "{much}");
    let little = text(10);
    assert!(little.starts_with("100.0 MiB are held by live Ruby objects"), "{little}");
    assert!(!little.contains("garbage") && little.contains("uses this memory: "), "{little}");
}

/// "Healthy … Nothing stands out" above a step for 68.7 of 86.3 MiB: singleton classes belong to two causes.
#[test]
fn a_process_with_a_step_against_much_of_its_memory_is_not_healthy() {
    let summary = |mebibytes: u64, are_garbage: bool| {
        let mut report: Report = serde_json::from_str(include_str!("../burst.json")).unwrap();
        report.verdict.cause = None;
        report.process.rss_bytes = 86 << 20;
        report.causes.iter_mut().for_each(|row| row.bytes = 0);
        let action = Action::ReleaseObjects {
            class: "Widget".into(),
            bytes: mebibytes << 20,
            path: Some("SCREEN → Widget".into()),
            are_garbage,
            garbage_bytes: 0,
        };
        report.advice = vec![Advice { action, saves_bytes: None }];
        words::verdict(&report).summary
    };
    let sentence = "86.0 MiB resident. No cause exceeds 48 MiB and 25 % of RSS, but the objects of class Widget do in several \
                    causes: 68.0 MiB.";
    let live = summary(68, false);
    assert!(live.starts_with(sentence) && live.contains("a managed leak, or simply"), "{live}");
    assert_eq!(summary(68, true), format!("{sentence} Most of them are garbage."));
    assert!(summary(30, false).starts_with("Healthy: "));
}

/// The step to release 80 MiB of Strings that live.
fn release_of_strings(path: &str) -> Advice {
    let action = Action::ReleaseObjects {
        class: "String".into(),
        bytes: 80 << 20,
        path: Some(path.into()),
        are_garbage: false,
        garbage_bytes: 0,
    };
    Advice { action, saves_bytes: None }
}

/// "As root, under load: GC.start", and "release the largest of 271 objects": the GC may free them all.
#[test]
fn objects_behind_extensions_are_collected_in_the_program() {
    let path = "(memory of C extensions) → String";
    let mut report = report_on(&[("String", Cause::RubyMalloc, 10, 70, Some(path))]);
    let owner = &mut report.owners.as_mut().unwrap()[0];
    (owner.objects, owner.kept_by[0].objects) = (500_000, 500);
    report.advice = vec![release_of_strings(path)];
    // A GC found most of them alive.
    report.ruby.as_mut().unwrap().slots_unmarked = 249;
    let step = words::advice(&report.advice[0], &report);
    assert!(step.action.starts_with("Find the objects of C extensions "), "{step:?}");
    assert!(render::fix(&report, None, 100).contains("As root, under load:"));
    report.ruby.as_mut().unwrap().slots_unmarked = 250;
    let step = words::advice(&report.advice[0], &report);
    assert!(step.action.starts_with("Run the GC: ") && step.command == "GC.start", "{step:?}");
    let fix = render::fix(&report, None, 100);
    assert!(fix.contains("In the program:") && !fix.contains("As root"), "{fix}");
    report.causes.iter_mut().for_each(|row| row.bytes = 0);
    report.verdict.cause = None;
    report.process.rss_bytes = 120 << 20;
    let summary = words::verdict(&report).summary;
    assert!(
        summary.ends_with("if the extension does not mark the objects, they are garbage."),
        "{summary}"
    );
}

/// "Release the largest of 1,504 objects … Their sizes need a limit": one for each request, all of the same size.
#[test]
fn many_objects_are_too_many_rather_than_too_large() {
    let path = "User.@callbacks → Array → String";
    let step = |objects: u64| {
        let mut report = report_on(&[("String", Cause::RubyMalloc, 10, 70, Some(path))]);
        let owner = &mut report.owners.as_mut().unwrap()[0];
        (owner.objects, owner.kept_by[0].objects) = (30_576, objects);
        words::advice(&release_of_strings(path), &report).action
    };
    let many = step(1_504);
    let said =
        "retained by User.@callbacks → Array → String: 1,504 of 30,576 have most of the memory.";
    assert!(many.contains(said) && !many.contains("sizes"), "{many}");
    let few = step(3);
    assert!(few.contains("the largest of 3 objects") && few.contains("Their sizes"), "{few}");
}

/// "88.1 MiB are held by live Ruby objects, most of them by 51,629 (imemo_iseq)", whose memory is in ruby.vm.
#[test]
fn most_objects_are_those_of_a_class_only_if_it_has_more_than_half_of_their_memory() {
    let end = "The program itself uses this memory: it is a managed leak, or simply its data.";
    let bytecode = ("(imemo_iseq)", Cause::RubyVm, 2, 53, None);
    let text = objects(&[bytecode, ("String", Cause::RubyMalloc, 10, 30, Some("A → String"))]);
    assert_eq!(text, format!("100.0 MiB are held by live Ruby objects. {end}"));
    let text = objects(&[bytecode, ("String", Cause::RubyMalloc, 10, 41, Some("A → String"))]);
    let most = "100.0 MiB are held by live Ruby objects, most of them by 500 String.";
    assert_eq!(
        text,
        format!("{most} The shortest paths to most of this memory begin with A. {end}")
    );
}

#[test]
fn a_root_retains_most_with_the_objects_of_several_classes() {
    let rows = |one, other| {
        objects(&[
            ("OpenStruct", Cause::RubyMalloc, 10, 20, Some(one)),
            ("Hash", Cause::RubyMalloc, 10, 20, Some(other)),
        ])
    };
    let text = rows("ROWS → Array → OpenStruct", "ROWS → Array → OpenStruct → Hash");
    assert!(
        text.contains("objects. The shortest paths to most of this memory begin with ROWS. The"),
        "{text}"
    );
    let text = rows("ROWS → Array → OpenStruct", "CACHE → Hash");
    assert!(text.contains("objects. The program"), "{text}");
    let text = rows(
        "(threads) → Thread in A#b (a.rb:1) → OpenStruct",
        "(threads) → Thread in A#b (a.rb:1) → Hash",
    );
    assert!(text.contains(" begin with (threads) → Thread in A#b (a.rb:1). The"), "{text}");
    let text = rows(
        "(threads) → Thread in A#b (a.rb:1) → OpenStruct",
        "(threads) → Thread in C#d (a.rb:9)",
    );
    assert!(text.contains("objects. The program"), "{text}");
}

/// "A collection frees about 80.0 MiB": a word on a stack led to the objects in three collections.
#[test]
fn garbage_that_a_gc_found_alive_may_stay() {
    let mut report = report_on(&[("String", Cause::RubyMalloc, 10, 70, None)]);
    let action = Action::EnableGc { garbage_bytes: 80 << 20 };
    let mut words = |unmarked| {
        report.ruby.as_mut().unwrap().slots_unmarked = unmarked;
        let step = words::advice(&Advice { action: action.clone(), saves_bytes: None }, &report);
        (words::verdict(&report).summary, step.action)
    };
    let (verdict, step) = words(249);
    assert!(verdict.ends_with("or an old word on a stack leads to them."), "{verdict}");
    assert!(step.contains(" A collection frees up to 80.0 MiB for reuse"), "{step}");
    let (verdict, step) = words(250);
    assert!(verdict.ends_with(" that the GC has not collected yet."), "{verdict}");
    assert!(step.contains(" A collection frees about 80.0 MiB for reuse"), "{step}");
}

/// "36.0 MiB of its own; retains 34.9 MiB": a part was garbage.
#[test]
fn garbage_of_a_class_is_told_beside_what_its_objects_retain() {
    let text = |garbage: u64, retained_bytes: u64| {
        let report: Report = serde_json::from_str(include_str!("../burst.json")).unwrap();
        let subject = WhySubject {
            kind: WhyKind::Class,
            name: "Row".into(),
            address: None,
            objects: 100,
            bytes: 36 << 20,
            retained_objects: None,
            retained_bytes,
        };
        let row = |path: Option<&str>, bytes| KeptBy {
            path: path.map(str::to_owned),
            objects: 50,
            bytes,
            other_path: None,
            shared: None,
        };
        let rows = [row(Some("ROWS → Array → Row"), (36 << 20) - garbage), row(None, garbage)];
        let paths = rows.into_iter().filter(|row| row.bytes > 0).collect();
        let (process, capture) = (report.process, report.capture);
        let (referrers, dominators, findings) = (vec![], vec![], vec![]);
        let root_uses = Vec::new();
        let why =
            Why { process, capture, subject, paths, referrers, dominators, root_uses, findings };
        render::why(&why, 120)
    };
    let line = text(2 << 20, 34 << 20);
    assert!(
        line.contains("36.0 MiB of its own, of which 2.0 MiB are garbage; retains 34.0"),
        "{line}"
    );
    let line = text(0, 30 << 20);
    assert!(
        line.contains("own, of which 6.0 MiB would not be freed with it; retains 30.0"),
        "{line}"
    );
    assert!(text(2 << 20, 40 << 20).contains("36.0 MiB of its own; retains 40.0 MiB"));
}
