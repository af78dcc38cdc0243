use formats::{Fit, FitBasis, FitDoubt, FitModel, FitNow, FitRemedy, FitRow, FitThreads};

use super::{fit, fit_html, fit_png, fit_summary, fit_svg};
use crate::text::without_styles;

const MIB: u64 = 1 << 20;

fn example() -> Fit {
    let row = |workers: u64, probability: f64| FitRow {
        workers,
        expected_bytes: (60 + 100 * workers) * MIB,
        safe_limit_bytes: (80 + 110 * workers) * MIB,
        probability: Some(probability),
    };
    Fit {
        role: "puma worker".into(),
        workers: 2,
        threads: 8,
        thread_stack_bytes: Some(300 << 10),
        steady_seconds: 600.0,
        limit_bytes: Some(500 * MIB),
        for_seconds: 86_400.0,
        probability: 0.99,
        doubt: None,
        record_seconds: None,
        now: None,
        model: Some(FitModel {
            fixed_bytes: 60 * MIB,
            worker_bytes: 100 * MIB,
            basis: FitBasis::Mean,
            spread_bytes: 5 * MIB,
            peak_bytes: 30 * MIB,
            kernel_share: 0.02,
            other_bytes: 0,
        }),
        rows: vec![row(1, 1.0), row(2, 0.999), row(3, 0.992), row(4, 0.41), row(5, 0.001)],
        max_workers: Some(3),
        safe_limit_bytes: Some(300 * MIB),
        remedies: vec![
            FitRemedy::KeepSharing { max_bytes_per_worker: 20 * MIB },
            FitRemedy::FewerArenas { max_bytes_per_worker: 30 * MIB },
            FitRemedy::Preload { code_bytes_per_worker: 80 * MIB },
        ],
        with_fewer_threads: vec![FitThreads {
            threads: 4,
            workers: 3,
            doubt: None,
            worker_bytes: Some(80 * MIB),
            max_workers: Some(5),
            safe_limit_bytes: Some(240 * MIB),
        }],
    }
}

#[test]
fn the_answer_is_a_sentence_a_table_and_lines_to_paste() {
    let text = without_styles(&fit(&example(), 80));
    for line in [
        "3 workers with 8 threads each fit into 500.0 MiB; 4 do with probability 0.41.",
        "The recorded 2 workers with 8 threads each need a limit of 300.0 MiB.",
        "       4    460.0   520.0       0.41",
        "       5    560.0   630.0         no",
        "    workers 3",
        "    heroku config:set WEB_CONCURRENCY=3",
        "        memory: \"360Mi\"",
        "        memory: \"500Mi\"",
        "    MemoryMax=500M",
        " · Each thread has 300.0 KiB of stacks. With more threads, arenas and requests",
        " · Each worker loaded 80.0 MiB of code by itself, and shares hardly anything",
        " · Fewer arenas (MALLOC_ARENA_MAX=2) save up to 30.0 MiB of each worker between",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn each_server_has_its_own_line() {
    for (role, line) in [
        ("unicorn worker", "    worker_processes 3"),
        ("pitchfork worker", "    worker_processes 3"),
        ("sidekiq", "    SIDEKIQ_COUNT=3"),
        ("passenger worker", "    passenger_max_pool_size 3;"),
    ] {
        let text = without_styles(&fit(&Fit { role: role.into(), ..example() }, 80));
        assert!(text.lines().any(|it| it == line) && !text.contains("puma"), "{text}");
    }
    let text = without_styles(&fit(&Fit { role: "jobs.rb".into(), ..example() }, 80));
    assert!(!text.contains("workers 3\n") && text.contains("MemoryMax=500M"), "{text}");
}

#[test]
fn the_sentence_is_true_for_each_result() {
    let of = |change: fn(&mut Fit)| {
        let mut fit = example();
        change(&mut fit);
        fit_summary(&fit)
    };
    assert_eq!(
        of(|it| it.max_workers = Some(4)),
        "4 workers with 8 threads each fit into 500.0 MiB; 5 do not."
    );
    assert_eq!(
        of(|it| it.max_workers = Some(5)),
        "5 workers with 8 threads each fit into 500.0 MiB. More were not tried."
    );
    assert_eq!(
        of(|it| it.max_workers = Some(0)),
        "Not even 1 worker fits into 500.0 MiB: it needs 190.0 MiB."
    );
    assert_eq!(
        of(|it| (it.max_workers, it.threads) = (Some(1), 1)),
        "1 worker with 1 thread each fits into 500.0 MiB; 2 do with probability 1.00."
    );
    let without = |it: &mut Fit| {
        (it.limit_bytes, it.max_workers) = (None, None);
        it.rows.iter_mut().for_each(|row| row.probability = None);
    };
    assert_eq!(of(without), "2 workers with 8 threads each need a limit of 300.0 MiB.");
    let mut unlimited = example();
    without(&mut unlimited);
    let text = without_styles(&fit(&unlimited, 80));
    assert!(text.contains("    workers 2\n") && text.contains("MemoryMax=300M"), "{text}");
}

/// A doubt has no number of workers and no line to paste.
#[test]
fn a_doubt_gives_a_reason_and_the_time_to_record() {
    let doubts = [
        FitDoubt::NoWorkers,
        FitDoubt::OneWorker,
        FitDoubt::UnlikeRecordings,
        FitDoubt::OneLook,
        FitDoubt::NoPrivateMemory,
        FitDoubt::Killed,
        FitDoubt::Swapped,
        FitDoubt::NoLoad,
        FitDoubt::Replaced,
        FitDoubt::Growing,
        FitDoubt::Unsettled,
    ];
    for doubt in doubts {
        let doubtful = Fit {
            doubt: Some(doubt),
            record_seconds: Some(601.0),
            model: None,
            rows: Vec::new(),
            max_workers: None,
            safe_limit_bytes: None,
            remedies: vec![FitRemedy::Replace { bytes_per_second: 1e5, after_seconds: 9000.0 }],
            ..example()
        };
        let text = without_styles(&fit(&doubtful, 200));
        assert!(text.starts_with("Cannot tell yet: ") && !text.contains("workers 3"), "{text}");
        assert!(text.contains("at an age of 2.5 h or before"), "{text}");
        let is_for_longer = !matches!(doubt, FitDoubt::NoWorkers | FitDoubt::UnlikeRecordings);
        assert_eq!(text.contains("11 minutes"), is_for_longer, "{text}");
        assert!(fit_svg(&doubtful).contains("Cannot tell yet"));
    }
}

#[test]
fn fewer_threads_have_a_line() {
    let line = |change: fn(&mut FitThreads)| {
        let mut example = example();
        change(&mut example.with_fewer_threads[0]);
        let text = without_styles(&fit(&example, 200));
        text.lines().find(|it| it.starts_with(" · With 4 threads each")).unwrap().to_owned()
    };
    assert_eq!(line(|_| ()), " · With 4 threads each, 5 workers fit: each has 80.0 MiB.");
    let without = line(|it| it.max_workers = None);
    assert_eq!(without, " · With 4 threads each, 3 workers need 240.0 MiB: each has 80.0 MiB.");
    let doubtful = line(|it| (it.doubt, it.worker_bytes) = (Some(FitDoubt::Growing), None));
    assert_eq!(doubtful, " · With 4 threads each, the answer is not known yet.");
}

#[test]
fn a_doubt_tells_what_there_is() {
    let text = |least: u64, workers: u64, above_limit: Option<u64>| {
        let now = FitNow {
            workers,
            fixed_bytes: 65 * MIB,
            least_bytes: least * MIB,
            most_bytes: 110 * MIB,
            above_limit,
        };
        let limit_bytes = above_limit.map(|_| 500 * MIB);
        let doubt = Some(FitDoubt::OneLook);
        let fit_ = Fit { doubt, now: Some(now), model: None, limit_bytes, ..example() };
        without_styles(&fit(&fit_, 300))
    };
    for (text, expected) in [
        (
            text(100, 2, Some(5)),
            "65.0 MiB for all, and 100.0 MiB to 110.0 MiB for each of 2 workers. 5 of the mean size have more than \
             500.0 MiB, pages of files included. Whether 4 fit is not known.",
        ),
        (text(110, 1, None), "65.0 MiB for all, and 110.0 MiB for each of 1 worker.\n"),
        (
            text(110, 1, Some(1)),
            "Even 1 worker of the mean size has more than 500.0 MiB, pages of files included.\n",
        ),
        (
            text(110, 1, Some(2)),
            "2 of the mean size have more than 500.0 MiB, pages of files included. Whether 1 fits is not known.\n",
        ),
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn the_chart_has_a_bar_for_each_number_and_the_limit() {
    let svg = fit_svg(&example());
    for text in ["limit 500.0 MiB", ">workers<", "200 MiB", "3 workers with 8 threads each fit"] {
        assert!(svg.contains(text), "{text}\n{svg}");
    }
    assert!(fit_png(&example()).starts_with(b"\x89PNG"));
    let mut hostile = example();
    hostile.role = "<script>".into();
    let page = fit_html(&hostile);
    assert!(page.starts_with("<!doctype html>") && !page.contains("<script>"));
}
