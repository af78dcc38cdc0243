use examine::Watch;
use ledger::Cause;
use linux::proc::{GroupMemory, Rollup};
use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;

use super::*;

const MIB: u64 = 1 << 20;

fn listed(pid: i32, parent: Option<i32>, mib: u64, command: &str) -> Listed {
    let group = GroupMemory {
        usage_bytes: 1229 * MIB,
        limit_bytes: Some(2048 * MIB),
        cache_bytes: 0,
        shmem_bytes: 0,
        oom_kills: Some(0),
        limit_hits: Some(0),
        stalled: None,
    };
    Listed {
        id: (pid, 1),
        parent,
        command: command.into(),
        rss_bytes: mib * MIB,
        exact: Some(Rollup { pss_bytes: mib * MIB / 2, ..Rollup::default() }),
        group_path: None,
        group: parent.map(|_| group),
        is_limit_unknown: false,
        growth_per_minute: Some(mib as f64 * 1e4),
    }
}

/// A master with two workers and a grandchild, a job, and names with escape sequences.
fn family() -> View {
    let mut view = View::new(TopOrder::Rss, "");
    let worker = "puma: cluster worker";
    view.receive(News::Processes(
        vec![
            listed(4242, None, 140, "puma 6.4.0 (tcp://0.0.0.0:3000) [shop]"),
            listed(4250, Some(4242), 610, &format!("{worker} 0: 4242 [shop]")),
            listed(4251, Some(4242), 894, &format!("{worker} 1: 4242 [shop]")),
            listed(4300, Some(4250), 60, "ruby bin/thumbnail"),
            listed(99, None, 700, "sidekiq 7.2.4 evil\u{1b}]0;title\u{7}\u{202e} [0 of 5 busy]"),
        ],
        2,
    ));
    let rows = |rows: &[(Cause, u64)]| {
        Ok(rows.iter().map(|&(cause, mib)| CauseRow { cause, bytes: mib * MIB }).collect())
    };
    let burst = [
        (Cause::MallocUnreturned, 700),
        (Cause::RubyMalloc, 120),
        (Cause::MallocFragmented, 54),
        (Cause::FileShared, 20),
    ];
    view.receive(News::Causes((4251, 1), rows(&burst)));
    view.receive(News::Causes((4250, 1), rows(&[(Cause::RubyMalloc, 500), (Cause::RubyVm, 110)])));
    let refusal = "cannot read process 99: permission denied (needs CAP_SYS_PTRACE)";
    view.receive(News::Causes((99, 1), Err(refusal.into())));
    view
}

fn drawn(view: &mut View, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let lines =
        |size: ratatui_core::layout::Size| view.lines(size.width.into(), size.height.into());
    crate::screen::draw_lines(&mut terminal, lines).unwrap();
    terminal.backend().to_string()
}

#[test]
fn the_list_at_three_sizes() {
    let sizes = [(80, 24), (120, 40), (40, 10)];
    let screens = sizes.map(|size| format!("{size:?}\n{}", drawn(&mut family(), size)));
    insta::assert_snapshot!(screens.join("\n"));
}

#[test]
fn a_refusal_and_the_help_at_two_sizes() {
    let screens = [(80, 24), (40, 10)].map(|size| {
        let mut view = family();
        drawn(&mut view, size);
        view.press(Key::End);
        let refused = drawn(&mut view, size);
        view.press(Key::Char('?'));
        format!("{size:?}\n{refused}\n{}", drawn(&mut view, size))
    });
    insta::assert_snapshot!(screens.join("\n"));
}

fn pids(view: &View) -> Vec<i32> {
    view.ids().into_iter().map(|id| id.0).collect()
}

#[test]
fn trees_stay_together_in_every_order() {
    let mut view = family();
    for (key, expected) in [
        ('r', [4242, 4251, 4250, 4300, 99]),
        ('l', [4242, 4250, 4300, 4251, 99]),
        ('g', [4242, 4251, 4250, 4300, 99]),
        ('n', [99, 4242, 4250, 4300, 4251]),
    ] {
        view.press(Key::Char(key));
        assert_eq!(pids(&view), expected, "{key}");
    }
}

#[test]
fn a_filter_shows_the_processes_with_a_word() {
    let mut view = family();
    for key in [Key::Char('/'), Key::Char('W'), Key::Char('o'), Key::Char('x'), Key::Backspace] {
        view.press(key);
    }
    assert_eq!(pids(&view), [4251, 4250]);
    view.press(Key::Enter);
    // Not a part of the word any more.
    view.press(Key::Char('n'));
    assert_eq!(pids(&view), [4250, 4251]);
    view.press(Key::Escape);
    assert_eq!(pids(&view).len(), 5);
}

#[test]
fn the_selected_process_stays_selected_when_the_order_changes() {
    let mut view = family();
    drawn(&mut view, (80, 24));
    view.press(Key::Down);
    assert_eq!(view.selected(), Some((4251, 1)));
    view.press(Key::Char('n'));
    drawn(&mut view, (80, 24));
    assert_eq!(view.selected(), Some((4251, 1)));
    // It has ended.
    view.receive(News::Processes(vec![listed(99, None, 700, "sidekiq")], 0));
    drawn(&mut view, (80, 24));
    assert_eq!(view.selected(), Some((99, 1)));
}

#[test]
fn a_trim_starts_only_by_yes_to_its_prediction() {
    let mut view = family();
    drawn(&mut view, (80, 24));
    let Action::Start(Job { number, .. }) = view.press(Key::Char('t')) else { panic!() };
    // Typed too early.
    assert!(matches!(view.press(Key::Char('y')), Action::None));
    view.finish(number, Err("there is no process 4242".into()));
    assert!(drawn(&mut view, (80, 24)).contains("there is no process 4242"));
    assert!(matches!(view.press(Key::Char('y')), Action::None));
    view.press(Key::Escape);
    // The result of a page that was left is not shown.
    let Action::Start(Job { number, .. }) = view.press(Key::Enter) else { panic!() };
    view.press(Key::Escape);
    let trimmed = Answer::Saved("a.rbloat".into());
    view.finish(number, Ok(trimmed));
    assert!(view.page.is_none());
}

#[test]
fn ids_that_form_a_ring_do_no_harm() {
    let mut view = View::new(TopOrder::Rss, "");
    let ring = vec![listed(1, Some(2), 1, "a"), listed(2, Some(1), 1, "b")];
    view.receive(News::Processes(ring, 0));
    assert_eq!(pids(&view).len(), 2);
}

/// The observation went on for a minute, and its notes were lost.
#[test]
fn escape_ends_an_observation_and_its_notes_are_shown() {
    let mut view = family();
    view.filter = "w".into();
    drawn(&mut view, (80, 24));
    let Action::Start(Job { number, kind: JobKind::Who(is_ended), .. }) =
        view.press(Key::Char('w'))
    else {
        panic!("no observation begins")
    };
    assert!(drawn(&mut view, (80, 24)).contains("s more, Esc ends it"));
    assert!(matches!(view.press(Key::Escape), Action::None));
    assert!(is_ended.load(Ordering::Relaxed));
    // The next one is for the filter again.
    assert_eq!(view.filter, "w");
    view.press(Key::Escape);
    assert_eq!(view.filter, "");
    let who = Watch::nothing(4251, &["puma".into()]);
    let notes = vec!["the process ended after 7 s".into()];
    let watched = (who, notes);
    view.finish(number, Ok(Answer::Who(Box::new(watched))));
    assert!(drawn(&mut view, (80, 24)).contains("is known: press w"));
    view.press(Key::Char('w'));
    let page = drawn(&mut view, (80, 24));
    assert!(page.contains("the process ended after 7 s"), "{page}");
}
