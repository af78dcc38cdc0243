//! The output for users and programs, word for word. `burst.json` is a shortened report on scenarios/burst.rb.

use formats::{
    Action, Advice, CaptureMethod, FamilyMemory, LargeGem, ListedProcess, NoCopy, Processes,
    Report, to_json,
};
use render::{TextOptions, words};

fn burst() -> Report {
    serde_json::from_str(include_str!("burst.json")).unwrap()
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[test]
fn the_json_is_stable() {
    let summary = words::verdict(&burst()).summary;
    assert_eq!(to_json(&burst(), &summary), include_str!("burst.json"));
}

/// A trim of one of four workers was to save 135.9 MiB, and changed nothing for all four.
#[test]
fn a_step_in_one_of_several_forked_processes_says_that_they_share_most() {
    let mut report = burst();
    let trim = |report: &Report| {
        let is_trim = |it: &&Advice| it.action == Action::Trim;
        let words = words::advice(report.advice.iter().find(is_trim).unwrap(), report);
        (words.action, words.command)
    };
    assert!(!trim(&report).0.contains("share"));
    let mut family = FamilyMemory { processes: 4, rss_bytes: 600 << 20, pss_bytes: 155 << 20 };
    report.family = Some(family);
    let (action, command) = trim(&report);
    let shared = " The 4 forked processes share most of their memory. A page that they share is free when all of them have returned it.";
    assert!(action.ends_with(shared) && command == "rbloat trim --tree 4242", "{action} {command}");
    family = FamilyMemory { processes: 2, rss_bytes: 300 << 20, pss_bytes: 160 << 20 };
    report.family = Some(family);
    assert_eq!(trim(&report).1, "rbloat trim --tree 4242");
    family.pss_bytes = 250 << 20;
    report.family = Some(family);
    assert_eq!(trim(&report).1, "rbloat trim 4242");
}

#[test]
fn the_text_of_a_report() {
    let text = render::report(
        &burst(),
        TextOptions { width: 120, arenas: true, code: false, waste: false },
    );
    insta::assert_snapshot!(plain(&text));
}

/// Each Ractor of Ruby 4.1 takes heap pages of its own.
#[test]
fn the_table_of_ractors() {
    let mut report = burst();
    let of = |number, name: Option<&str>, place: Option<&str>, pages: u64| formats::Ractor {
        ended: number == 0,
        number: Some(number).filter(|it| *it != 0),
        name: name.map(Into::into),
        place: place.map(Into::into),
        heap_pages: pages,
        resident_bytes: pages << 16,
        slots_live: pages * 900,
        slot_bytes_live: pages * 36_000,
        slots_free: pages * 500,
        slot_bytes_free: pages * 20_000,
        garbage_objects: Some(pages * 100),
        garbage_slot_bytes: Some(pages * 4000),
    };
    let place = Some("/app/workers.rb:12");
    let mut ractors = vec![of(1, None, None, 400), of(0, None, None, 7), of(0, None, None, 5)];
    ractors.extend((2..12).map(|number| of(number, None, place, u64::from(number) * 10)));
    ractors[3].name = Some("mailer".into());
    report.ruby.as_mut().unwrap().ractors = ractors;
    let options = TextOptions { width: 100, arenas: false, code: false, waste: false };
    let text = plain(&render::report(&report, options));
    let table = text.lines().skip_while(|line| !line.starts_with(" RACTOR"));
    let table: Vec<&str> = table.take_while(|line| !line.is_empty()).collect();
    insta::assert_snapshot!(table.join("\n"));
}

/// The remedy was a part of the reason, which a crate writes that knows no containers.
#[test]
fn the_foot_names_what_a_copy_needs() {
    let mut report = burst();
    report.capture.method = CaptureMethod::Freeze;
    report.capture.reason =
        "no forked copy was made: rbloat may not send a signal (needs CAP_KILL)".into();
    report.capture.no_copy = Some(NoCopy::NotSignalled);
    let text = plain(&render::report(
        &report,
        TextOptions { width: 200, arenas: false, code: false, waste: false },
    ));
    assert!(text.contains("(needs CAP_KILL); in Docker: --cap-add KILL), "), "{text}");
}

#[test]
fn the_text_of_a_report_on_a_narrow_terminal() {
    let text = plain(&render::report(
        &burst(),
        TextOptions { width: 60, arenas: false, code: false, waste: false },
    ));
    insta::assert_snapshot!(text);
    let prose = text.lines().take_while(|line| !line.contains(" CAUSE "));
    assert!(prose.skip(2).all(|line| line.chars().count() < 60));
}

/// On a terminal of 80 columns the explanations of causes were left out, and lines ended with blanks.
#[test]
fn a_report_fits_80_columns_and_loses_nothing() {
    let text = plain(&render::report(
        &burst(),
        TextOptions { width: 80, arenas: true, code: true, waste: false },
    ));
    for line in text.lines() {
        assert!(line.chars().count() <= 80 && line.trim_end() == line, "{line}");
    }
    let words: Vec<_> = text.split_whitespace().collect();
    let text = words.join(" ");
    for row in burst().causes.iter().filter(|row| row.bytes > 0) {
        assert!(text.contains(words::meaning(row.cause)), "{}", row.cause.name());
    }
    // Columns of owners were left out, and their names cut.
    for owner in burst().owners.unwrap() {
        let cause = owner.cause.map_or("", |cause| cause.name());
        assert!(text.contains(&owner.owner) && text.contains(cause), "{}", owner.owner);
    }
    assert!(text.contains("SHARED") && text.contains("SLOTS"), "{text}");
}

#[test]
fn the_text_of_the_interpreters_memory() {
    let text = |width, code| {
        plain(&render::report(&burst(), TextOptions { width, arenas: false, code, waste: false }))
    };
    let tables = [120, 60].map(|width| {
        let text = text(width, true);
        let (_, tables) = text.split_once(" INTERPRETER, MiB").unwrap();
        let (tables, _) = tables.split_once("WHAT TO DO").unwrap();
        let tables = format!(" INTERPRETER, MiB{tables}");
        assert!(tables.lines().all(|line| line.chars().count() <= width), "{width}\n{tables}");
        format!("{width} columns:\n{tables}")
    });
    insta::assert_snapshot!(tables.concat());
    assert!(!text(120, false).contains("INTERPRETER"), "it is a small part");
}

#[test]
fn gems_are_listed_as_people_write_lists() {
    let report = burst();
    let words = |gems: &[(&str, u64)]| {
        let gems = gems.iter().map(|&(gem, mib)| LargeGem { gem: gem.into(), bytes: mib << 20 });
        let action = Action::LoadLessCode { gems: gems.collect() };
        words::advice(&Advice { action, saves_bytes: None }, &report).action
    };
    for (gems, expected) in [
        (&[("rouge", 9)][..], "The bytecode of rouge takes 9.0 MiB. A process"),
        (
            &[("rouge", 9), ("mail", 4)],
            "The bytecode of rouge takes 9.0 MiB, and that of mail 4.0 MiB. A process",
        ),
        (
            &[("rouge", 9), ("faker", 8), ("mail", 4)],
            "The bytecode of rouge takes 9.0 MiB, that of faker 8.0 MiB, and that of mail 4.0 MiB. A",
        ),
    ] {
        assert!(words(gems).contains(expected), "{}", words(gems));
    }
}

#[test]
fn a_command_stands_alone_and_its_remark_beside_it() {
    let mut report = burst();
    report.advice = vec![Advice { action: Action::FindNativeLeak, saves_bytes: None }];
    let words = words::advice(&report.advice[0], &report);
    assert_eq!(words.command, "rbloat who 4242");
    let text = plain(&render::report(
        &report,
        TextOptions { width: 120, arenas: false, code: false, waste: false },
    ));
    let line =
        "    rbloat who 4242   (the C function: memleak-bpfcc -p PID, of Debian's bpfcc-tools)\n";
    assert!(text.contains(line), "{text}");
    assert!(plain(&render::fix(&report, None, 120)).contains("    memleak-bpfcc -p 4242\n"));
}

/// Lines longer than the terminal used to be broken, and the table could not be read.
#[test]
fn the_table_of_owners_fits_a_narrow_terminal() {
    let mut report = burst();
    let long = "ActiveRecord::ConnectionAdapters::PostgreSQLAdapter::StatementPool";
    let mut tables = String::new();
    for (name, widths) in [("String", [80, 60]), (long, [80, 60])] {
        report.owners.as_mut().unwrap()[0].owner = name.into();
        for width in widths {
            let text = plain(&render::report(
                &report,
                TextOptions { width, arenas: false, code: false, waste: false },
            ));
            let (_, table) = text.split_once(" OWNER, MiB").unwrap();
            let (table, _) = table.split_once("\n\n").unwrap();
            let table = format!(" OWNER, MiB{table}\n");
            assert!(table.lines().all(|line| line.chars().count() <= width), "{width}\n{table}");
            tables += &format!("{width} columns:\n{table}\n");
        }
    }
    insta::assert_snapshot!(tables);
}

#[test]
fn the_culprit_is_red_and_what_is_healthy_is_green() {
    let mut report = burst();
    let options = TextOptions { width: 100, arenas: false, code: false, waste: false };
    let red = "\u{1b}[1m\u{1b}[31m";
    assert!(render::report(&report, options).contains(&format!("{red}malloc.unreturned")));
    report.verdict.cause = None;
    assert!(!render::report(&report, options).contains(red));
}

#[test]
fn the_list_of_processes() {
    let process = |pid, rss_bytes, command: &str| ListedProcess {
        pid,
        namespace_pid: (pid == 77).then_some(1),
        container: None,
        parent: None,
        rss_bytes,
        pss_bytes: Some(rss_bytes / 2),
        ruby_version: "3.1.2".into(),
        libc: "glibc 2.36".into(),
        allocator: "glibc".into(),
        threads: 25,
        command: command.into(),
    };
    let of_width = |processes: &[ListedProcess], refused, width| {
        plain(&render::processes(&Processes { processes: processes.into(), refused }, width))
    };
    let shown = |processes: &[ListedProcess], refused| of_width(processes, refused, 100);
    let processes = [
        process(4242, 1_372_585_984, "puma 5.6.5 (tcp://0.0.0.0:3000) [shop]"),
        process(77, 37_000_000, "ruby -e sleep"),
    ];
    insta::assert_snapshot!(shown(&processes, 0));
    // The family with most memory comes first, and its members below their parents.
    let families = [
        ListedProcess { parent: Some(5), ..process(9, 300 << 20, "puma: cluster worker 1") },
        process(7, 500 << 20, "sidekiq"),
        ListedProcess { parent: Some(5), ..process(8, 400 << 20, "puma: cluster worker 0") },
        ListedProcess { parent: Some(8), ..process(10, 10 << 20, "ruby child") },
        ListedProcess { pss_bytes: None, ..process(5, 200 << 20, "puma 5.6.5") },
    ];
    insta::assert_snapshot!(shown(&families, 1));
    // The list did not name pods, which alerts do.
    let pod = Some("shop/web-1/rails".to_owned());
    let of_pod = families.clone().map(|it| ListedProcess { container: pod.clone(), ..it });
    let text = shown(&of_pod, 0);
    assert_eq!(text.matches("[shop/web-1/rails] ").count(), 2, "{text}");
    assert!(text.contains("[shop/web-1/rails] puma 5.6.5\n"), "{text}");
    // On 80 columns, a command line had 12.
    let narrow = of_width(&families, 1, 80);
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    assert!(narrow.contains("├ puma: cluster worker 0\n"), "{narrow}");
}
