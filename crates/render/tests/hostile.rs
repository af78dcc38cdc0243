//! Texts that a snapshot or a recording chose: they are bounded, and stay text in every picture and page.

use formats::{MadePages, Maker, Owner, Recording, Report, Snapshot};
use ledger::{Cause, MemoryMap};
use render::{PageColours, Plot, TextOptions, map_html, map_png};

const MARKUP: &str = "</script><script>pwned()</script></text><img src=x onerror=pwned()>\"'&";

fn snapshot(change: impl FnOnce(&mut Report)) -> Snapshot {
    let mut report: Report = serde_json::from_str(include_str!("burst.json")).unwrap();
    change(&mut report);
    Snapshot { report, memory_map: MemoryMap::default() }
}

fn rename(report: &mut Report, name: &str) {
    report.process.command = name.into();
    report.process.libc = name.into();
    report.verdict.cause = Some(Cause::NativeHeld);
    report.verdict.rows = vec![Cause::NativeHeld];
    for owner in report.owners.iter_mut().flatten() {
        let kept_by = std::mem::take(&mut owner.kept_by);
        *owner = Owner { owner: name.into(), cause: Some(Cause::NativeHeld), ..owner.clone() };
        owner.kept_by = kept_by;
    }
}

fn made() -> MadePages {
    let code = Maker {
        bytes: 4096,
        method: MARKUP.into(),
        calls: None,
        path: None,
        line: None,
        task: None,
    };
    MadePages { code: vec![code], pages: vec![(16, 1, 0)] }
}

#[test]
fn names_with_markup_stay_text() {
    let page = map_html(&snapshot(|report| rename(report, MARKUP)), PageColours::Code(&made()));
    let lines = include_str!("hostile.jsonl").replace("MARKUP", &MARKUP.replace('"', "\\\""));
    let recording = Recording::read(lines.as_bytes()).unwrap();
    let mut plot = Plot::default();
    plot.add(MARKUP, &recording);
    for picture in [page, plot.render_html(), plot.render_svg()] {
        assert!(!picture.contains("<script>pwned") && !picture.contains("<img"), "{picture}");
        assert!(!picture.contains("</text><"), "{picture}");
    }
}

/// A file of 29 kB took 935 MB: the headline of the picture had as many lines as the name of a class had words.
#[test]
fn the_png_of_a_long_name_is_small() {
    let words = "word ".repeat(10_000);
    let png = map_png(&snapshot(|report| rename(report, &words)), PageColours::Use);
    let height = u32::from_be_bytes(png[20..24].try_into().unwrap());
    assert!(height < 600, "{height}");
}

/// A bar had a character for each percent, however many percent there were.
#[test]
fn bars_are_no_longer_than_the_whole() {
    assert_eq!(render::bar(1, 2, 20).chars().count(), 10);
    assert_eq!(render::bar(u64::MAX, 1, 20).chars().count(), 20);
    assert_eq!(render::bar(5, 0, 20).chars().count(), 20);
    assert_eq!(render::bar(0, 0, 20), "");
    let snapshot = snapshot(|report| {
        report.process.rss_bytes = 1;
        report.causes[0].bytes = 1 << 60;
    });
    let text = render::report(
        &snapshot.report,
        TextOptions { width: 100, arenas: true, code: true, waste: false },
    );
    assert!(text.len() < 100_000, "{}", text.len());
}
