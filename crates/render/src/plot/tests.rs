use std::collections::BTreeSet;

use formats::{CaptureMethod, CauseRow};
use ledger::Cause;

use super::*;
use crate::draw::Element;
use crate::text::without_styles;
use formats::{CauseSample, Group, Line, ProcessSample, RecordingStart, Sample};

const MIB: u64 = 1 << 20;

/// A recording with these lines.
pub(super) fn recording(lines: Vec<Line>) -> Recording {
    let start = RecordingStart {
        rbloat: "0.1.0".into(),
        unix_ms: 0,
        pid: 1,
        command: Some(vec!["ruby".into(), "<b>&\u{1b}]0;x".into()]),
        every_ms: 1000,
        causes_every_ms: Some(30_000),
        label: None,
    };
    Recording { start, lines, frames: Vec::new() }
}

/// A sample of one process in a group of 500 MiB.
pub(super) fn sample(second: u64, rss_bytes: u64, oom_kills: u64) -> Sample {
    let process = ProcessSample { pid: 1, started_ticks: 1, rss_bytes, ..ProcessSample::default() };
    let group = Group {
        usage_bytes: rss_bytes + MIB,
        limit_bytes: Some(500 * MIB),
        cache_bytes: 0,
        oom_kills: Some(oom_kills),
    };
    Sample {
        t_ms: second * 1000,
        exact: true,
        rss_bytes,
        pss_bytes: Some(rss_bytes / 2),
        uss_bytes: Some(rss_bytes / 4),
        swap_bytes: Some(0),
        processes: vec![process],
        group: Some(group),
        ..Sample::default()
    }
}

fn by_name(name: &str) -> Cause {
    Cause::ALL.into_iter().find(|cause| cause.name() == name).unwrap()
}

pub(super) fn causes(second: u64, pid: i32, causes: &[(&str, u64)]) -> Line {
    let row = |&(cause, bytes): &(&str, u64)| CauseRow { cause: by_name(cause), bytes };
    Line::Causes(CauseSample {
        owners: None,
        t_ms: second * 1000,
        pid,
        started_ticks: 1,
        command: "ruby".into(),
        ruby_version: None,
        allocator: "glibc".into(),
        rss_bytes: causes.iter().map(|it| it.1).sum(),
        causes: causes.iter().map(row).collect(),
        verdict: None,
        trim_yield_bytes: None,
        slots_live: None,
        slots_free: None,
        method: CaptureMethod::Freeze,
        pause_ms: 1.0,
        recorder_cpu_ms: 0.0,
    })
}

fn plot() -> Plot {
    let mut lines: Vec<Line> = (0..120)
        .map(|second| {
            let rss = if second % 40 == 39 { 150 } else { 200 + second };
            Line::Sample(sample(second, rss * MIB, second / 100))
        })
        .collect();
    lines.push(causes(10, 1, &[("ruby.malloc", 100 * MIB), ("malloc.unreturned", 40 * MIB)]));
    lines.push(causes(110, 1, &[("ruby.malloc", 200 * MIB), ("unknown", MIB)]));
    let other = (0..60).map(|second| Line::Sample(sample(second, 90 * MIB, 0))).collect();
    let mut plot = Plot::default();
    plot.add("</script>\".jsonl", &recording(lines));
    plot.add("b", &recording(other));
    plot
}

/// Three runs of each of seven settings, in turns.
fn compared() -> Plot {
    let settings = ["default", "arena2", "jemalloc", "tcmalloc", "mimalloc", "trim", "<gem>"];
    let mut plot = Plot::default();
    for number in 1..=3 {
        for (place, setting) in (0..).zip(settings) {
            let rss = |second| (100 + 20 * place + number + second % 2 * 50) * MIB;
            let samples = (0..30).map(|second| Line::Sample(sample(second, rss(second), 0)));
            let mut recording = recording(samples.collect());
            recording.start.label = Some(setting.into());
            plot.add(&format!("{setting}-{number}"), &recording);
        }
    }
    plot
}

#[test]
fn runs_that_have_the_same_label_share_a_colour_and_a_line_of_the_head() {
    let plot = compared();
    let colours: Vec<Colour> = plot.runs.iter().map(|run| run.colour).collect();
    assert_eq!(colours[..7], colours[7..14]);
    assert_eq!(colours[..7].iter().collect::<BTreeSet<_>>().len(), 7, "{colours:?}");
    let text = plot.render_text(400);
    assert_eq!(text.lines().count(), 8, "the command, and each setting once: {text}");
    let jemalloc = text.lines().find(|line| line.starts_with("jemalloc: ")).unwrap();
    let expected = "jemalloc: 3 runs, 0:00:29, peak RSS 191.0 MiB to 193.0 MiB, final RSS 191.0 MiB to 193.0 MiB";
    assert_eq!(jemalloc, expected);
    let (scene, panels) = plot.scene(WIDTH);
    assert_eq!(panels.len(), 1);
    // Each of the falls would be a mark.
    let areas = scene.elements.iter().filter(|it| matches!(it, Element::Area { .. }));
    assert_eq!(areas.count(), 0);
    let html = plot.render_html();
    assert!(html.contains("<title>Memory of ruby &#60;b&#62;&#38;]0;x: default, arena2, jemalloc"));
    assert!(!html.contains("<gem>"));
}

#[test]
fn all_that_is_drawn_lies_within_the_picture() {
    for width in [WIDTH, NARROW] {
        lies_within_the_picture(plot().scene(width));
        all_lies_within(&compared().scene(width).0);
    }
}

fn lies_within_the_picture((scene, panels): (Scene, Vec<Panel>)) {
    assert_eq!(panels.iter().map(|panel| panel.run).collect::<Vec<_>>(), [None, Some(0)]);
    all_lies_within(&scene);
    let texts = texts(&scene);
    assert!(texts.contains(&"limit 500.0 MiB") && texts.contains(&"OOM kill"), "{texts:?}");
    assert!(texts.contains(&"free, a trim returns it") && !texts.contains(&"JIT"), "{texts:?}");
}

fn all_lies_within(scene: &Scene) {
    let inside =
        |(x, y): (f64, f64)| (0.0..=scene.width).contains(&x) && (0.0..=scene.height).contains(&y);
    for element in &scene.elements {
        let is_inside = match element {
            Element::Rect { x, y, width, height, .. } => {
                inside((*x, *y)) && inside((x + width, y + height))
            }
            Element::Area { points, .. } | Element::Line { points, .. } => {
                points.iter().copied().all(inside)
            }
            Element::Text { x, y, text, .. } => {
                inside((*x, *y)) && line_width(text, TEXT_SIZE) <= scene.width
            }
        };
        assert!(is_inside, "{element:?}");
    }
}

fn texts(scene: &Scene) -> Vec<&str> {
    let texts = scene.elements.iter().filter_map(|element| match element {
        Element::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

#[test]
fn a_comparison_has_a_mark_for_each_run_and_the_median_of_each_setting() {
    let plot = compared();
    let scene = plot.scene(WIDTH).0;
    let jemalloc = plot.runs.iter().find(|run| run.label.as_deref() == Some("jemalloc")).unwrap();
    let is_mark = |it: &&Element| {
        matches!(it, Element::Rect { width, height, fill, .. }
            if *fill == jemalloc.colour && width == height)
    };
    // The highest and the last RSS of three runs.
    assert_eq!(scene.elements.iter().filter(is_mark).count(), 6);
    let texts = texts(&scene);
    // The second of three runs, and its name beside it, twice; the name again at the curve.
    assert_eq!(texts.iter().filter(|text| **text == "192.0 MiB").count(), 2, "{texts:?}");
    assert_eq!(texts.iter().filter(|text| **text == "jemalloc").count(), 3, "{texts:?}");
}

#[test]
fn a_setting_has_the_same_colour_in_every_picture() {
    let labelled = |label: &str| {
        let mut recording = recording(vec![Line::Sample(sample(1, MIB, 0))]);
        recording.start.label = Some(label.into());
        recording
    };
    let mut alone = Plot::default();
    alone.add("a", &labelled("jemalloc"));
    let compared = compared();
    let of_jemalloc = compared.runs.iter().find(|run| run.label.as_deref() == Some("jemalloc"));
    assert_eq!(alone.runs[0].colour, of_jemalloc.unwrap().colour);
}

#[test]
fn a_picture_without_causes_or_samples_gives_the_reason() {
    let mut plot = Plot::default();
    plot.add("empty", &recording(Vec::new()));
    let mut without = recording(vec![Line::Sample(sample(1, MIB, 0))]);
    without.start.causes_every_ms = None;
    plot.add("without", &without);
    let scene = plot.scene(WIDTH).0;
    let texts = texts(&scene);
    let reasons: Vec<_> = texts.iter().filter(|text| text.starts_with("No causes of ")).collect();
    assert!(reasons[0].contains("empty: none of its processes"), "{reasons:?}");
    assert!(reasons[1].contains("without: `rbloat record --causes-every 0`"), "{reasons:?}");
    let mut empty = Plot::default();
    empty.add("empty", &recording(Vec::new()));
    assert!(empty.render_svg().contains("No samples: "));
}

#[test]
fn whatever_a_program_is_called_is_text() {
    let html = plot().render_html();
    assert_eq!(html.matches("</script>").count(), 2);
    assert!(!html.contains("<b>") && !html.contains('\u{1b}'));
    let svg = plot().render_svg();
    assert!(svg.contains("&lt;b&gt;&amp;") && svg.contains("&lt;/script&gt;&quot;.jsonl"));
    assert!(!svg.contains('\u{1b}') && svg.matches("<svg").count() == 1);
}

#[test]
fn a_png_is_of_the_size_of_the_scene_and_shows_its_colours() {
    let plot = plot();
    let png = plot.render_png();
    let scene = plot.scene(WIDTH).0;
    let mut reader = ::png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((f64::from(info.width), f64::from(info.height)), (scene.width, scene.height.ceil()));
    let has = |colour: Colour| pixels.chunks(3).any(|pixel| pixel == colour.rgb());
    let shown =
        [Colour::Ground, Colour::Panel, Colour::InUse, Colour::RubyMalloc, Colour::Unreturned];
    for colour in shown {
        assert!(has(colour), "{colour:?}");
    }
    assert!(!has(Colour::Jit));
}

/// A report on a recording of `scenarios/kept/lines.rb` had the first sentence only, and its page nothing.
#[test]
fn a_recording_names_the_lines_that_allocate_what_stays() {
    let lines = include_bytes!("../../tests/kept.jsonl");
    let mut plot = Plot::default();
    plot.add("kept", &Recording::read(&lines[..]).unwrap());
    let text = without_styles(&plot.render_text(400));
    let page = plot.render_html();
    for line in [
        "Cache::STORE in process 14305 keeps 508,832 more objects of Array than 153 s ago; about 65 of 80 samples of them were made in ",
        " · about 65 of 80 samples: Cache#hot (/srv/app/scenarios/kept/lines.rb:29)\n",
        " · about 13 of 13 samples: block (2 levels) in Import.reader → Row.new (/srv/app/scenarios/kept/lines.rb:46)\n",
    ] {
        assert!(text.contains(line), "{text}");
        // Lines of the page are shorter.
        assert!(page.contains(&line[..60]), "{page}");
    }
    assert!(page.contains("<h2>Lines of kept that allocate what stays</h2>"), "{page}");
}

#[test]
fn recordings_without_samples_are_drawn_too() {
    let mut plot = Plot::default();
    plot.add("empty", &recording(Vec::new()));
    assert!(plot.render_svg().contains("too early to tell"));
    assert!(!plot.render_png().is_empty());
    assert!(plot.render_text(400).contains("empty: pid 1"));
}

#[test]
fn kills_are_drawn_in_their_runs_colour_and_no_text_covers_another() {
    let plot_of = |seconds_between: u64| {
        let mut plot = Plot::default();
        for name in ["one", "other"] {
            let kills = |second| sample(second, 100 * MIB, second / seconds_between);
            plot.add(name, &recording((0..600).map(kills).map(Line::Sample).collect()));
        }
        plot
    };
    let texts = |plot: &Plot| -> Vec<(i64, String)> {
        let elements = plot.scene(WIDTH).0.elements;
        let kills = elements.into_iter().filter_map(|element| match element {
            Element::Text { y, text, .. } if text.contains("OOM kill") => Some((y as i64, text)),
            _ => None,
        });
        kills.collect()
    };
    // Each run has a row.
    let sparse = texts(&plot_of(150));
    assert_eq!(sparse.iter().filter(|(_, text)| text == "OOM kill").count(), 6, "{sparse:?}");
    let rows: BTreeSet<i64> = sparse.iter().map(|(y, _)| *y).collect();
    assert_eq!(rows.len(), 2, "{sparse:?}");
    // The texts of many kills covered the lines of the next.
    let plot = plot_of(20);
    let dense = texts(&plot);
    let [(one, first), (other, second)] = &dense[..] else { panic!("{dense:?}") };
    assert!(one != other && first == "29 OOM kills" && second == "29 OOM kills", "{dense:?}");
    let elements = plot.scene(WIDTH).0.elements;
    for run in &plot.runs {
        let is_kill = |it: &&Element| {
            matches!(it, Element::Line { points, stroke, .. }
                if *stroke == run.colour && points.len() == 2 && points[0].0 == points[1].0)
        };
        assert_eq!(elements.iter().filter(is_kill).count(), 29);
    }
}

#[test]
fn the_processes_of_a_family_have_private_and_shared_memory() {
    let member = |pid: i32, rss: u64, pss: u64, private: u64| ProcessSample {
        pid,
        rss_bytes: rss * MIB,
        pss_bytes: Some(pss * MIB),
        uss_bytes: Some(private * MIB),
        ..sample(0, 0, 0).processes[0].clone()
    };
    let at = |second: u64, processes: Vec<ProcessSample>| {
        Line::Sample(Sample { processes, ..sample(second, 100 * MIB, 0) })
    };
    let lines = vec![
        at(0, vec![member(1, 100, 60, 5), member(2, 90, 50, 10)]),
        // Without exact figures.
        Line::Sample(Sample { exact: false, ..sample(60, 100 * MIB, 0) }),
        at(120, vec![member(1, 100, 55, 5), member(2, 96, 70, 40)]),
    ];
    let mut plot = Plot::default();
    plot.add("a", &recording(lines));
    let text = plot.render_text(400);
    let row = |pid: &str| -> Vec<String> {
        let is_row = |line: &&str| line.trim_start().starts_with(pid);
        let row = text.lines().find(is_row).unwrap_or_else(|| panic!("{text}"));
        row.split_whitespace().map(str::to_owned).collect()
    };
    // The first and the last PSS, private memory, its growth per minute, and shared memory.
    assert_eq!(row("2 ")[1..], ["50.0", "70.0", "10.0", "40.0", "+15.0", "80.0", "56.0"], "{text}");
    assert_eq!(row("1 ")[1..8], ["60.0", "55.0", "5.0", "5.0", "+0.0", "95.0", "95.0"], "{text}");
    let mut alone = Plot::default();
    alone.add("a", &recording(vec![at(0, vec![member(1, 100, 60, 5)])]));
    assert!(!alone.render_text(400).contains("PRIVATE"));
}
