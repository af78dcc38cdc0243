use formats::KeptLine;
use sampler::Frame;

use super::*;

fn frame(label: &str, line: u32) -> Frame {
    let path = if line == 0 { None } else { Some("/srv/app/audit.rb".into()) };
    Frame { label: label.into(), path, line: Some(line).filter(|&line| line > 0) }
}

/// Samples of the ages 10 to 60 s, in `Audit#note` at two lines, and in Array.new.
fn profile(count: u64) -> KeptProfile {
    let object = |number: u64| KeptObject {
        slot: Address(number * 40),
        stack: (number % 3) as u32,
        age: Duration::from_secs(10 + number * 50 / count),
    };
    KeptProfile {
        frames: vec![frame("Audit#note", 9), frame("Audit#note", 8), frame("Array.new", 0)],
        stacks: vec![vec![0], vec![1], vec![2, 1]],
        objects: (0..count).map(object).collect(),
        ..KeptProfile::default()
    }
}

fn row_of(profile: &KeptProfile, before: u64, after: u64) -> KeptRow {
    let samples: Vec<&KeptObject> = profile.objects.iter().collect();
    row("Audit", (before, after), &samples, Duration::from_secs(35), profile)
}

/// "About 16 of 20 samples were made in Object#ya → Psych.load", and "kept by C::E": slow code, which made 1 of 17 objects.
#[test]
fn the_growth_of_each_root_is_its_own() {
    let retained = |fast: u64, slow: u64| {
        let mut it = RetainedObjects::default();
        it.classes.insert("Array".into(), fast + slow);
        for (root, count) in [("FAST", fast), ("SLOW", slow)].into_iter().filter(|it| it.1 > 0) {
            it.of_roots.entry(root.into()).or_default().insert("Array".into(), count);
        }
        it
    };
    let [before, mut after] = [retained(100, 0), retained(16_100, 1_000)];
    let of = |root, after: &_| counts(&before, after, "Array", root);
    let roots = [Some("FAST"), Some("SLOW"), Some("(threads)"), None];
    assert_eq!(roots.map(|root| of(root, &after)), [(100, 16_100), (0, 1_000), (0, 0), (0, 0)]);
    // "Keeps 455,501 more objects by (threads)": those were another root's. Threads have what no root of the program has.
    *after.classes.get_mut("Array").unwrap() += 7;
    assert_eq!([of(Some("(threads)"), &after), of(None, &after)], [(0, 7); 2]);
    // A root that had none may have become the one with the shortest path to objects that are not new.
    assert_eq!(of(Some("SLOW"), &retained(0, 100)), (100, 100));
    // "The number went from 573,720 to 573,720: they replace others": another root had let go of as many.
    let [before, after] = [retained(900_000, 27_000), retained(0, 573_000)];
    assert_eq!(counts(&before, &after, "Array", Some("SLOW")), (27_000, 573_000));
}

#[test]
fn a_row_with_enough_samples_and_more_objects_than_before_is_named() {
    let row = row_of(&profile(30), 1000, 5000);
    assert_eq!((row.judgement, row.samples), (KeptJudgement::Named, 30));
    let line = KeptLine {
        samples: 30,
        method: "Audit#note".into(),
        calls: None,
        path: Some("/srv/app/audit.rb".into()),
        line: Some(8),
    };
    assert_eq!(row.lines, [line]);
    assert_eq!((row.objects_before, row.objects_after), (1000, 5000));
}

/// "Event of Tracker::SEEN: 21 samples, most of them of the last half of the time: these objects do not stay for long", of a leak: the
/// process had little processor time at first.
#[test]
fn the_halves_of_the_time_have_as_many_new_objects() {
    let middle = |seen: &[(usize, u32)]| {
        let seen = seen.iter().flat_map(|&(seconds, count)| vec![count; seconds]).collect();
        let elapsed = Duration::from_secs(110);
        let profile = KeptProfile { seen_by_second: seen, elapsed, ..KeptProfile::default() };
        super::middle(&profile, Duration::from_secs(10)).as_secs()
    };
    assert_eq!(middle(&[(110, 8)]), 60);
    // 100 objects until 50 s, and 300 until 100 s, which are old enough.
    assert_eq!(middle(&[(50, 2), (50, 6), (10, 900)]), 43);
    // All of them are of the first half.
    assert_eq!(middle(&[(1, 9), (109, 0)]), 109);
}

/// Code that ZJIT had compiled has made most of these objects.
#[test]
fn a_row_has_no_line_if_the_code_of_most_samples_is_not_known() {
    let samples_of_lines = |stacks: [Vec<u32>; 3]| {
        let row = row_of(&KeptProfile { stacks: stacks.into(), ..profile(30) }, 1000, 5000);
        assert_eq!((row.judgement, row.samples), (KeptJudgement::Named, 30));
        row.lines.iter().map(|it| it.samples).collect::<Vec<_>>()
    };
    assert_eq!(samples_of_lines([vec![], vec![1], vec![]]), [0; 0]);
    assert_eq!(samples_of_lines([vec![], vec![1], vec![2, 1]]), [20]);
}

#[test]
fn nine_samples_name_nothing() {
    assert_eq!(row_of(&profile(9), 0, 5000).judgement, KeptJudgement::FewSamples);
    assert_eq!(row_of(&profile(10), 0, 5000).judgement, KeptJudgement::Named);
}

/// A leak whose ten samples were of three classes had no name.
#[test]
fn the_samples_of_a_root_name_all_its_classes() {
    let of_root = |count: u64, root: &str| {
        let mut row = row_of(&profile(count), 0, 5000);
        row.root = Some(root.into());
        row
    };
    let judgements = |mut rows: Vec<KeptRow>| {
        name_by_root(rows.iter_mut().map(|it| (it.samples / 2, it)).collect());
        rows.into_iter().map(|it| it.judgement).collect::<Vec<_>>()
    };
    let (few, named) = (KeptJudgement::FewSamples, KeptJudgement::Named);
    let [log, list] = ["Audit::LOG", "List"];
    assert_eq!(judgements(vec![of_root(4, log), of_root(3, log), of_root(3, log)]), [named; 3]);
    assert_eq!(judgements(vec![of_root(4, log), of_root(5, log)]), [few; 2]);
    assert_eq!(judgements(vec![of_root(6, log), of_root(6, list)]), [few; 2]);
    let mut replaced = of_root(8, log);
    replaced.judgement = KeptJudgement::Replaced;
    assert_eq!(judgements(vec![of_root(4, log), replaced]), [few, KeptJudgement::Replaced]);
}

#[test]
fn objects_that_replace_others_name_nothing() {
    assert_eq!(row_of(&profile(30), 5000, 5029).judgement, KeptJudgement::Replaced);
    assert_eq!(row_of(&profile(30), 5000, 4000).judgement, KeptJudgement::Replaced);
    // A number varies by its square root.
    assert_eq!(row_of(&profile(30), 10_000, 10_299).judgement, KeptJudgement::Replaced);
    assert_eq!(row_of(&profile(30), 10_000, 10_300).judgement, KeptJudgement::Named);
}

#[test]
fn roots_that_retain_more_are_reported_without_a_line() {
    let retained = |roots: &[(&str, &str, u64)]| {
        let mut it = RetainedObjects::default();
        for &(root, class, count) in roots {
            it.of_roots.entry(root.into()).or_default().insert(class.into(), count);
        }
        it
    };
    let before = retained(&[
        ("REGISTRY", "String", 100),
        ("BUS", "Proc", 400),
        ("CACHE", "Entry", 5000),
        ("LOG", "Audit", 9),
        ("JOBS", "Job", 1),
        ("LIST", "Item", 7),
        ("POOL", "Thread", 3),
    ]);
    let after = [("BUS", "Proc", 700), ("BUS", "String", 650), ("CACHE", "Entry", 5200)];
    let later = [("LOG", "Audit", 900), ("NEW", "String", 9000)];
    let further = [
        ("REGISTRY", "String", 9000),
        ("JOBS", "Job", 900),
        ("JOBS", "Hash", 600),
        ("LIST", "Item", 107),
        ("POOL", "Thread", 303),
    ];
    let mut after = retained(&[&after[..], &later[..], &further[..]].concat());
    // It was empty, and its class has as many more objects.
    after.of_roots.insert("EMPTY".into(), [("Row".into(), 500)].into());
    after.classes.insert("Row".into(), 500);
    let of_root = |root: &str, samples: u64| KeptRow {
        root: Some(root.into()),
        ..row_of(&profile(samples), 0, 5000)
    };
    let paths: Paths<'_> = [
        (("REGISTRY", "String"), "REGISTRY → Hash → Thread \"worker\" → String"),
        (("BUS", "Proc"), "BUS → Array → Proc (/srv/app/bus.rb:3)"),
        (("BUS", "String"), "BUS → Array → String"),
        (("JOBS", "Job"), "JOBS → Thread::Queue → Job"),
        (("JOBS", "Hash"), "JOBS → Thread::Queue → Job → Hash"),
        (("POOL", "Thread"), "POOL → Array → Thread (/srv/app/pool.rb:9)"),
        (("CACHE", "Entry"), "CACHE → Hash → Entry"),
        (("LOG", "Audit"), "LOG → Array → Audit"),
        (("NEW", "String"), "NEW → String"),
        (("EMPTY", "Row"), "EMPTY → Array → Row"),
    ]
    .into();
    let rows = growing(&before, &after, &[of_root("LOG", 30), of_root("BUS", 4)], &paths);
    let row = |path: &str, class: &str, objects_before, objects_after| KeptGrowth {
        root: root_of(path).into(),
        class: class.into(),
        objects_before,
        objects_after,
        path: path.into(),
        other_objects: 0,
        samples: 0,
    };
    // CACHE varies by chance, LOG has a line, NEW is not known before and its class has no more objects, a thread may have in
    // use what REGISTRY retains, and the path of LIST is not known.
    let jobs =
        KeptGrowth { other_objects: 600, ..row("JOBS → Thread::Queue → Job", "Job", 1, 900) };
    let bus = row("BUS → Array → Proc (/srv/app/bus.rb:3)", "Proc", 400, 700);
    let bus = KeptGrowth { other_objects: 650, samples: 4, ..bus };
    let empty = row("EMPTY → Array → Row", "Row", 0, 500);
    // "4 samples", and no word of 300 threads.
    let pool = row("POOL → Array → Thread (/srv/app/pool.rb:9)", "Thread", 3, 303);
    assert_eq!(rows, [jobs, bus, empty, pool]);
    assert!(is_of_program("(at_exit)") && !is_of_program("(threads)"));
}

#[test]
fn objects_of_the_last_moments_name_nothing() {
    let mut profile = profile(30);
    profile.objects.iter_mut().take(26).for_each(|it| it.age = Duration::from_secs(12));
    assert_eq!(row_of(&profile, 0, 5000).judgement, KeptJudgement::Passing);
}

/// One sample of the second half was "these objects do not stay for long".
#[test]
fn a_few_samples_of_the_last_moments_show_nothing() {
    let of_samples = |count: u64| {
        let mut profile = profile(count);
        profile.objects.iter_mut().for_each(|it| it.age = Duration::from_secs(12));
        row_of(&profile, 0, 5000).judgement
    };
    assert_eq!([of_samples(1), of_samples(9)], [KeptJudgement::FewSamples; 2]);
    assert_eq!(of_samples(10), KeptJudgement::Passing);
}

/// A leak with 16 samples of three classes had no name: of one class five samples were late and one was early, which is chance in one of
/// nine cases, and the others were too few then. Together they show as much as samples of one class.
#[test]
fn objects_that_do_not_stay_are_told_by_all_samples_of_a_root() {
    let judgements = |early: [u64; 2]| {
        let mut rows = [6, 8].map(|count| row_of(&profile(count), 0, 5000));
        rows.iter_mut().for_each(|row| row.root = Some("Audit::LOG".into()));
        name_by_root(early.into_iter().zip(&mut rows).collect());
        rows.map(|it| it.judgement)
    };
    assert_eq!(judgements([1, 4]), [KeptJudgement::Named; 2]);
    assert_eq!(judgements([1, 0]), [KeptJudgement::FewSamples; 2]);
    assert_eq!(judgements([1, 1]), [KeptJudgement::Named; 2]);
}
