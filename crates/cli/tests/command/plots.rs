//! `rbloat report` on recordings: pictures of real recordings, in a real browser.

use std::fs;
use std::path::{Path, PathBuf};

use diagnosis::{MemorySeries, Shape};
use formats::{Line, MemoryShape, Sample, Stability};
use tempfile::TempDir;
use testkit::{Browser, Target};

use crate::record::Recorder;
use crate::{complaint, document, rbloat};

/// Records `steps` steps of a scenario, and returns a series with a sample after each. The samples are two seconds
/// apart, because steps take longer on a busy machine, and growth would seem to slow down.
fn record_steps(scenario: &str, steps: usize) -> MemorySeries {
    let mut target = Target::scenario(scenario, &["--scale", "0.5"]);
    let recorder = Recorder::of(&target, &["--every", "20ms", "--causes-every", "0"]);
    recorder.wait_for(|recording| recording.samples().count() >= 2);
    let mut series = MemorySeries::default();
    for step in 0..steps {
        target.tell("step");
        target.next_truth();
        let recording = recorder.wait_for_samples(1);
        let sample = recording.samples().last().unwrap();
        series.add(&Sample { t_ms: 2000 * step as u64, ..sample.clone() });
    }
    assert!(target.finish());
    recorder.end();
    series
}

#[test]
fn what_grows_with_each_step_is_growth_and_what_has_warmed_up_is_not() {
    let growth = record_steps("growth/array", 30).stable_point();
    assert!(matches!(growth.shape, Shape::Growth { .. }), "{growth:?}");
    let warm = record_steps("growth/warm_up", 30).stable_point();
    assert!(!matches!(warm.shape, Shape::Growth { .. }), "{warm:?}");
}

#[test]
fn what_stands_still_is_a_plateau_at_its_rss() {
    let target = Target::scenario("healthy", &["--scale", "0.3"]);
    let recorder = Recorder::of(&target, &["--every", "20ms", "--causes-every", "0"]);
    recorder.wait_for(|recording| recording.samples().filter(|it| it.exact).count() >= 40);
    recorder.signal("INT");
    let recording = recorder.end().1;
    let stable = MemorySeries::of(&recording).stable_point();
    let Shape::Plateau { level_bytes, .. } = stable.shape else { panic!("{stable:?}") };
    assert!((level_bytes / target.rss_bytes() as f64 - 1.0).abs() < 0.01);
}

/// A file as a recorder would write it for two workers in a group with a limit, for an hour.
fn synthetic(folder: &Path) -> PathBuf {
    let mut text = String::new();
    let start = r#"{"schema":1,"kind":"start","rbloat":"0.1.0","unix_ms":0,"pid":7,"command":["puma","<i>"],"every_ms":1000,"causes_every_ms":30000}"#;
    text += &format!("{start}\n");
    for second in 0..3600_u64 {
        let rss = (200 << 20) + second * (40 << 10) + second % 120 * (300 << 10);
        let kills = u64::from(second > 3000);
        text += &format!(
            r#"{{"schema":1,"kind":"sample","t_ms":{},"exact":true,"rss_bytes":{rss},"pss_bytes":{},"uss_bytes":{},"swap_bytes":0,"processes":[],"group":{{"usage_bytes":{},"limit_bytes":536870912,"cache_bytes":0,"oom_kills":{kills}}},"recorder_cpu_ms":1.5}}"#,
            second * 1000,
            rss / 2,
            rss / 4,
            rss + (20 << 20),
        );
        text.push('\n');
        if second % 30 == 0 {
            text += &format!(
                r#"{{"schema":1,"kind":"causes","t_ms":{},"pid":7,"started_ticks":1,"command":"puma","ruby_version":"3.1.2","allocator":"glibc","rss_bytes":{},"causes":[{{"cause":"ruby.malloc","bytes":{}}},{{"cause":"malloc.unreturned","bytes":{}}},{{"cause":"file.shared","bytes":12582912}}],"verdict":"ruby.malloc","trim_yield_bytes":0,"slots_live":1,"slots_free":1,"method":"freeze","pause_ms":3.0,"recorder_cpu_ms":1.0}}"#,
                second * 1000,
                rss / 2 + rss / 3 + 12_582_912,
                rss / 2,
                rss / 3,
            );
            text.push('\n');
        }
    }
    let path = folder.join("synthetic.jsonl");
    fs::write(&path, text).unwrap();
    path
}

/// Draws two recordings, one of a real process, as `name`.
fn draw(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let recorder = Recorder::of(&target, &["--every", "20ms"]);
    recorder
        .wait_for(|recording| recording.samples().count() >= 3 && recording.causes().count() >= 1);
    let synthetic = synthetic(folder.path());
    let output = folder.path().join(name);
    let drawn = rbloat()
        .arg("report")
        .args([&synthetic, &recorder.path, &PathBuf::from("-o"), &output])
        .output()
        .unwrap();
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    let text = String::from_utf8(drawn.stdout).unwrap();
    assert!(
        text.contains("RSS: still growing by about ") && text.contains("it reaches its limit in ")
    );
    assert!(text.contains("ruby "), "{text}");
    assert!(text.lines().any(|line| line.starts_with(output.to_str().unwrap())), "{text}");
    (folder, output)
}

#[test]
fn the_page_shows_values_at_the_pointer_on_light_and_dark() {
    let (_folder, page) = draw("plot.html");
    let mut browser = Browser::open(&page, "", [1300, 1000]);
    browser.wait_until("document.documentElement?.dataset.drawnMs !== undefined");
    let tip = "document.getElementById('tip').innerText";
    let hidden = "document.getElementById('tip').hidden";
    assert_eq!(browser.evaluate(hidden), true);
    // The middle of the first panel is half an hour.
    let point = "(() => { const box = svg.getBoundingClientRect(), scale = svg.clientWidth / width, panel = panels[0];
        return [box.left + (panel.left + panel.right) / 2 * scale, box.top + (panel.top + 99) * scale]; })()";
    let at = browser.evaluate(point);
    browser.click(at[0].as_f64().unwrap(), at[1].as_f64().unwrap());
    let text = browser.evaluate(tip);
    let text = text.as_str().unwrap();
    assert!(text.contains("0:29:5") || text.contains("0:30:0"), "{text}");
    assert!(text.contains("synthetic") && text.contains("of 512.0 MiB"), "{text}");
    let rss: f64 =
        text.split("RSS").nth(1).unwrap().trim().split(' ').next().unwrap().parse().unwrap();
    assert!((200.0..400.0).contains(&rss), "{text}");
    // The arrow keys reach the causes of the first run.
    browser.evaluate("picture.focus()");
    browser.press("ArrowDown");
    let text = browser.evaluate(tip);
    assert!(text.as_str().unwrap().contains("memory of objects"), "{text}");
    browser.press("Escape");
    assert_eq!(browser.evaluate(hidden), true);

    let ground = "getComputedStyle(svg.querySelector('rect')).fill";
    browser.evaluate("setScheme('light')");
    assert_eq!(browser.evaluate(ground), "rgb(251, 250, 248)");
    browser.evaluate("document.getElementById('scheme').click()");
    assert_eq!(browser.evaluate(ground), "rgb(22, 21, 19)");
    assert_eq!(browser.evaluate("document.querySelectorAll('i, img, link').length"), 0);
    assert_eq!(browser.evaluate("performance.getEntriesByType('resource').length"), 0);
}

#[test]
fn a_phone_gets_a_picture_of_its_own_with_text_that_can_be_read() {
    let (_folder, page) = draw("plot.html");
    let mut browser = Browser::open(&page, "", [390, 844]);
    browser.wait_until("document.documentElement?.dataset.drawnMs !== undefined");
    let widest = browser.evaluate("document.documentElement.scrollWidth");
    assert!(widest.as_u64().unwrap() <= 390, "{widest}");
    let height = "Math.min(...[...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect().height))";
    assert!(browser.evaluate(height).as_f64().unwrap() >= 10.0);
    // The values at the pointer are those of this picture.
    browser.evaluate("picture.focus()");
    browser.press("ArrowRight");
    assert_eq!(browser.evaluate("document.getElementById('tip').hidden"), false);
    assert_eq!(browser.evaluate("width < 500 && svg === svgs[1]"), true);
}

#[test]
fn svg_and_png_are_whole_pictures() {
    let (_folder, svg) = draw("plot.svg");
    let mut browser = Browser::open(&svg, "", [1300, 1000]);
    browser.wait_until("document.readyState === 'complete'");
    assert_eq!(browser.evaluate("document.documentElement.localName"), "svg");
    assert!(browser.evaluate("document.querySelectorAll('path').length").as_u64().unwrap() > 20);
    let (_folder, png) = draw("plot.png");
    let mut browser = Browser::open(&png, "", [1300, 1000]);
    browser.wait_until("document.images[0]?.complete === true");
    assert_eq!(browser.evaluate("document.images[0].naturalWidth"), 1200);
}

#[test]
fn the_judgement_on_recordings_is_also_data() {
    let folder = tempfile::tempdir().unwrap();
    let recording = synthetic(folder.path());
    let file = folder.path().join("a.json");
    let report = || {
        let mut command = rbloat();
        command.arg("report").arg(&recording);
        command
    };
    let printed: Stability = document(&report().arg("--json").output().unwrap().stdout);
    let shown = report().arg("-o").arg(&file).output().unwrap();
    let written: Stability = document(&fs::read(&file).unwrap());
    assert_eq!(printed, written);
    let [judged] = &printed.recordings[..] else { panic!("{printed:?}") };
    assert_eq!((judged.name.as_str(), judged.shape), ("synthetic", MemoryShape::Growth));
    // It grows by 40 KiB in a second.
    let growth = judged.growth.unwrap();
    assert!((growth.bytes_per_second / 40_960.0 - 1.0).abs() < 0.2, "{growth:?}");
    assert!(growth.low <= growth.bytes_per_second && growth.bytes_per_second <= growth.high);
    let limit = judged.limit.unwrap();
    assert!(limit.min_seconds <= limit.seconds && limit.seconds > 0.0, "{limit:?}");
    assert!(judged.oom_kills > 0 && judged.level.is_none(), "{judged:?}");
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("still growing by about "), "{text}");
}

#[test]
fn what_is_no_recording_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = synthetic(folder.path());
    let good = good.to_str().unwrap();
    let first = fs::read_to_string(good).unwrap().lines().next().unwrap().to_owned();
    let unnamed = write("unnamed", &first);
    fs::create_dir(folder.path().join("folder.jsonl")).unwrap();
    let is_folder = folder.path().join("folder.jsonl").to_str().unwrap().to_owned();
    let cases = [
        (vec!["/no/such/file.jsonl".to_owned()], 3, "cannot read"),
        (vec![is_folder], 3, "cannot read"),
        (vec![write("a.jsonl", "not one\n")], 3, "it is not a recording"),
        (vec![write("b.jsonl", &first.replace(":1,", ":9,"))], 3, "it is not a recording"),
        (vec![write("c.jsonl", &(first.replace(":1,", ":9,") + "\n"))], 3, "has version 9"),
        (vec![write("d.jsonl", &(first + "\n\n{}\n"))], 3, "line 2 is invalid"),
        (vec![unnamed.clone()], 3, "reads recordings, whose names end in .jsonl"),
        (
            vec![good.into(), "-o".into(), "a.gif".into()],
            2,
            "must end in .html, .svg, .png or .json",
        ),
        (vec![good.into(), "--waste".into()], 2, "no option but --output"),
        (vec![good.into(), "--max-pause=1s".into()], 2, "no option but --output"),
        (vec![good.into(), "--capture=freeze".into()], 2, "no option but --output"),
        (vec![good.into(), "--sysroot=/".into()], 2, "no option but --output"),
        (vec![good.into(), "1".into()], 2, "each further name must be that of a recording"),
        (vec![good.into(), "missing.jsonl".into()], 3, "cannot read missing.jsonl"),
    ];
    for (arguments, status, said) in cases {
        let output = rbloat().arg("report").args(&arguments).output().unwrap();
        let (ended, text) = complaint(&output);
        assert_eq!(ended, status, "{text}");
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn a_recording_is_drawn_while_it_is_written() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let recorder = Recorder::of(&target, &["--every", "20ms"]);
    recorder
        .wait_for(|recording| recording.lines.iter().any(|line| matches!(line, Line::Causes(_))));
    for _ in 0..20 {
        let output = rbloat().arg("report").arg(&recorder.path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
