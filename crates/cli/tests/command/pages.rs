//! `rbloat report -o FILE`: the page of a report in real browsers, and what it shares with the page of a map.

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use formats::Report;
use serde_json::Value;
use tempfile::TempDir;
use testkit::{Browser, Target};

use crate::{document, rbloat, run};

const DRAWN: &str = "document.documentElement?.dataset.drawn !== undefined";
/// A phone, a small window, and a large one.
const WINDOWS: [[u32; 2]; 3] = [[390, 844], [800, 900], [1440, 900]];

/// The page of a process, and the report of the same capture.
struct Page {
    _target: Target,
    _folder: TempDir,
    path: PathBuf,
    report: Value,
}

impl Page {
    /// The page of a scenario, with retained sizes if they are wanted.
    fn of(scenario: &str, scale: &str, options: &[&str]) -> Self {
        let target = Target::scenario(scenario, &["--scale", scale]);
        let folder = tempfile::tempdir().unwrap();
        let [snapshot, path, json] =
            ["a.rbloat", "report.html", "report.json"].map(|it| folder.path().join(it));
        let pid = target.pid().to_string();
        let done = |command: &mut std::process::Command| {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        done(rbloat().args(["snapshot", &pid]).args(options).arg("-o").arg(&snapshot));
        for file in [&path, &json] {
            done(rbloat().arg("report").arg(&snapshot).args(options).arg("-o").arg(file));
        }
        let report = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
        Self { _target: target, _folder: folder, path, report }
    }

    fn open(&self, window: [u32; 2]) -> Browser {
        let mut browser = Browser::open(&self.path, "", window);
        browser.wait_until(DRAWN);
        browser
    }
}

fn text(browser: &mut Browser, expression: &str) -> String {
    let value = browser.evaluate(expression);
    value.as_str().unwrap_or_else(|| panic!("{expression}: {value}")).to_owned()
}

fn count(browser: &mut Browser, selector: &str) -> u64 {
    let value = browser.evaluate(&format!("document.querySelectorAll(\"{selector}\").length"));
    value.as_u64().unwrap()
}

#[test]
fn the_page_of_a_report_has_its_figures_in_both_browsers() {
    let page = Page::of("leak", "0.2", &[]);
    let report: Report = serde_json::from_value(page.report.clone()).unwrap();
    let source = fs::read_to_string(&page.path).unwrap();
    for word in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!source.contains(word), "{word}");
    }
    assert!(source.contains("http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'"));
    for mut browser in Browser::each(&page.path, "", WINDOWS[2]) {
        browser.wait_until(DRAWN);
        let verdict = text(&mut browser, "document.getElementById('verdict').textContent");
        assert_eq!(verdict, page.report["summary"].as_str().unwrap());
        let rows = browser.evaluate(
            "[...document.querySelectorAll('#causes tbody tr')].map(row => [row.cells[0].textContent, Number(row.dataset.bytes)])",
        );
        let rows: Vec<(String, u64)> = serde_json::from_value(rows).unwrap();
        let causes = report.causes.iter().filter(|row| row.bytes > 0);
        let mut expected: Vec<_> =
            causes.map(|row| (row.cause.name().to_owned(), row.bytes)).collect();
        expected.push(("RSS".into(), report.process.rss_bytes));
        assert_eq!(rows, expected);
        // The first step, with its cost, and the others.
        let steps = count(&mut browser, "#advice .step");
        assert_eq!(steps, report.advice.len() as u64);
        let first = text(&mut browser, "document.querySelector('#advice .step').textContent");
        assert!(first.contains("Costs: "), "{first}");
        // Commands in sentences were shown with backticks, and some figures stood at the left.
        assert!(count(&mut browser, "#advice p code") > 0);
        let objects = count(&mut browser, "#owners td:nth-child(6).number");
        assert_eq!(objects, count(&mut browser, "#owners tbody tr"));
        // The boxes are as large as what they stand for.
        let boxes = browser.evaluate(
            "(() => { const boxes = [...document.getElementById('treemap').children];
                const area = box => box.offsetWidth * box.offsetHeight;
                return boxes.filter(box => area(box) > 4000).map(box => [box.item.bytes, area(box)]); })()",
        );
        let boxes: Vec<(f64, f64)> = serde_json::from_value(boxes).unwrap();
        assert!(boxes.len() > 1, "{boxes:?}");
        let scale = boxes[0].1 / boxes[0].0;
        for (bytes, area) in &boxes {
            assert!((area / (bytes * scale) - 1.0).abs() < 0.06, "{boxes:?}");
        }
        let loaded = browser.evaluate("performance.getEntriesByType('resource').length");
        assert_eq!(loaded, 0);
    }
}

#[test]
fn owners_are_searched_sorted_and_chosen_in_both_browsers() {
    let page = Page::of("leak", "0.2", &[]);
    for mut browser in Browser::each(&page.path, "", WINDOWS[1]) {
        browser.wait_until(DRAWN);
        let all = count(&mut browser, "#owners tbody tr");
        browser.press("/");
        browser.write("sessions");
        // The paths begin with the constant that retains the objects.
        browser.wait_until("document.getElementById('found').textContent.startsWith('3 of')");
        assert_eq!(count(&mut browser, "#owners tbody tr"), 3);
        browser.evaluate("(() => { const text = document.getElementById('text'); text.value = ''; text.dispatchEvent(new Event('input')); text.blur(); })()");
        assert_eq!(count(&mut browser, "#owners tbody tr"), all);

        let column = "[...document.querySelectorAll('#owners th button')].find(it => it.textContent === 'objects')";
        browser.evaluate(&format!("{column}.click()"));
        assert_eq!(count(&mut browser, "#owners th[aria-sort=descending]"), 1);
        let first =
            text(&mut browser, "document.querySelector('#owners tbody button').textContent");
        let owners = page.report["owners"].as_array().unwrap();
        let most = owners.iter().max_by_key(|owner| owner["objects"].as_u64()).unwrap();
        assert_eq!(first, most["owner"].as_str().unwrap());

        // A chosen owner keeps its name in view, shows its path, and dims the others.
        browser
            .evaluate("document.querySelector('#treemap button[aria-label^=\"String,\"]').click()");
        let choice = text(&mut browser, "document.querySelector('#choice .name').textContent");
        assert!(choice.starts_with("String: "), "{choice}");
        let detail = text(&mut browser, "document.getElementById('detail').textContent");
        assert!(detail.contains("SESSIONS → "), "{detail}");
        let boxes = count(&mut browser, "#treemap button");
        assert_eq!(count(&mut browser, "#treemap button.dim"), boxes - 1);
        browser.evaluate("scrollTo(0, document.body.scrollHeight)");
        let in_view =
            "(() => { const box = document.getElementById('choice').getBoundingClientRect();
            return box.top >= 0 && box.bottom <= innerHeight; })()";
        browser.wait_until(in_view);
        browser.press("Escape");
        assert_eq!(count(&mut browser, "#treemap button.dim"), 0);
        assert_eq!(browser.evaluate("document.getElementById('choice').hidden"), true);
    }
}

#[test]
fn the_tree_of_what_retains_memory_is_drawn_if_it_was_asked_for() {
    let page = Page::of("leak", "0.2", &["--retained"]);
    let mut browser = page.open(WINDOWS[2]);
    let pressed =
        text(&mut browser, "document.querySelector('[data-size][aria-pressed=true]').textContent");
    assert_eq!(pressed, "By what retains it");
    let largest = page.report["dominators"].as_array().unwrap().iter();
    let largest = largest.max_by_key(|row| row["retained_bytes"].as_u64()).unwrap();
    let first = "document.querySelector('#treemap button').item";
    assert_eq!(text(&mut browser, &format!("{first}.name")), "SESSIONS");
    assert_eq!(browser.evaluate(&format!("{first}.bytes")), largest["retained_bytes"]);
    // Its parts are inside of its box.
    let inside = "(() => { const [outer, ...boxes] = [...document.querySelectorAll('#treemap button')];
        const is = box => outer.item.parts.includes(box.item), within = box => box.offsetLeft >= outer.offsetLeft
          && box.offsetTop >= outer.offsetTop && box.offsetLeft + box.offsetWidth <= outer.offsetLeft + outer.offsetWidth
          && box.offsetTop + box.offsetHeight <= outer.offsetTop + outer.offsetHeight;
        return boxes.some(is) && boxes.filter(is).every(within); })()";
    assert_eq!(browser.evaluate(inside), true);
}

/// The same figures as in JSON, in the order of the bytes.
#[test]
fn memory_that_objects_do_not_use_has_tables_of_its_own() {
    let page = Page::of("cases/emptied_buffers", "1", &["--waste"]);
    let mut browser = page.open(WINDOWS[2]);
    assert_eq!(browser.evaluate("document.getElementById('waste').hidden"), false);
    let row = "document.querySelector('#room tbody tr')";
    let waste = &page.report["waste"];
    assert_eq!(
        text(&mut browser, &format!("{row}.dataset.bytes")),
        waste["groups"][0]["unused_bytes"].to_string()
    );
    let path = text(&mut browser, &format!("{row}.lastElementChild.textContent"));
    assert_eq!(path, waste["groups"][0]["path"].as_str().unwrap());
    let copies = waste["contents"]["copies"].as_array().unwrap();
    let shown = copies.iter().filter(|row| row["bytes"].as_u64().unwrap() >= 50 << 10).count();
    assert_eq!(count(&mut browser, "#copies tbody tr"), shown.min(10) as u64);
}

#[test]
fn the_page_of_a_report_fits_three_widths_in_light_and_dark() {
    let page = Page::of("leak", "0.2", &["--retained", "--waste"]);
    for window in WINDOWS {
        let mut browser = page.open(window);
        for scheme in ["light", "dark"] {
            if scheme == "dark" {
                browser.evaluate("delete document.documentElement.dataset.drawn");
                browser.prefer_dark();
                browser.wait_until(DRAWN);
                assert_eq!(browser.evaluate("document.documentElement.dataset.scheme"), "dark");
            }
            let widest = browser.evaluate("document.documentElement.scrollWidth");
            assert!(widest.as_u64().unwrap() <= u64::from(window[0]), "{window:?}: {widest}");
            assert!(STANDARD.decode(browser.screenshot()).unwrap().len() > 10_000);
        }
    }
}

#[test]
fn assistive_technology_gets_names_and_tables() {
    let page = Page::of("leak", "0.2", &[]);
    let mut browser = page.open(WINDOWS[2]);
    browser.evaluate("document.querySelector('details').open = true");
    let tree = browser.accessibility_tree().unwrap();
    let named =
        |role: &str, part: &str| tree.iter().any(|(it, name)| it == role && name.contains(part));
    assert!(named("heading", page.report["summary"].as_str().unwrap()), "{tree:?}");
    for heading in ["Where the memory is", "What to do first", "Whose memory it is", "Arenas"] {
        assert!(named("heading", heading), "{heading}: {tree:?}");
    }
    // The bar is a picture with its figures in words, and the boxes are buttons in a group.
    assert!(named("image", "Resident memory: memory of objects"), "{tree:?}");
    assert!(named("group", "Boxes as large as"), "{tree:?}");
    assert!(named("button", "String, "), "{tree:?}");
    assert!(named("searchbox", "Search") && named("combobox", "Cause"), "{tree:?}");
    // Both have the same figures as tables.
    assert!(named("columnheader", "owner") && named("columnheader", "cause"), "{tree:?}");
    for cause in ["ruby.malloc", "file.shared", "RSS"] {
        assert!(named("cell", cause), "{cause}: {tree:?}");
    }
    // Dozens of boxes without a visible name were stops for the Tab key, before the table.
    let stops = "[...document.querySelectorAll('#treemap button')].filter(it => it.tabIndex >= 0 && it.textContent === '').length";
    assert_eq!(browser.evaluate(stops), 0);
    // Nothing that can be pressed is without a name.
    let unnamed = tree.iter().filter(|(role, name)| role == "button" && name.trim().is_empty());
    assert_eq!(unnamed.count(), 0, "{tree:?}");
}

#[test]
fn a_report_is_written_as_a_page_or_as_json() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let folder = tempfile::tempdir().unwrap();
    let [page, json, plain, none] =
        ["a.html", "a.json", "a.txt", "b.html"].map(|it| folder.path().join(it));
    for path in [&page, &json, &plain] {
        let path = path.to_str().unwrap();
        let written = run(target.pid(), &["-o", path]);
        let line = String::from_utf8(written.stdout).unwrap();
        assert!(written.status.success() && line.starts_with(path), "{line}");
    }
    let report: Report = document(&fs::read(&json).unwrap());
    assert_eq!(report.process.pid, target.pid());
    assert!(fs::read_to_string(&page).unwrap().trim_end().ends_with("</html>"));
    // The file had a page.
    let plain = fs::read_to_string(&plain).unwrap();
    assert!(plain.starts_with(&format!("pid {}  ", target.pid())), "{plain}");
    assert!(plain.contains("\n RSS ") && !plain.contains('\x1b'), "{plain}");
    let printed = run(target.pid(), &["-o", "/dev/stdout"]);
    assert!(printed.stdout.starts_with(b"<!doctype html>"));
    // The first process is no Ruby: nothing is written.
    let refused = rbloat().args(["report", "1", "-o"]).arg(&none).output().unwrap();
    assert!(!refused.status.success() && !none.exists());
}

/// The page of who was always light.
#[test]
fn the_pages_of_who_and_plot_fit_a_phone_in_light_and_dark_in_both_browsers() {
    let source = "$kept = []; Thread.new { loop { $kept << 'x' * (1 << 20); sleep 0.05 } }
                  puts 'ready {}'; $stdout.flush; $stdin.read";
    let (target, folder) = (Target::bare_ruby(source), tempfile::tempdir().unwrap());
    let pid = target.pid().to_string();
    let done = |arguments: &[&str]| {
        let output = rbloat().args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    done(&["who", &pid, "--for", "2s", "--max-pause", "10s", "-o", "who.html"]);
    done(&["record", &pid, "--for", "2s", "--max-pause", "10s", "-o", "a.jsonl"]);
    done(&["report", "a.jsonl", "-o", "plot.html"]);
    for (page, is_drawn) in [
        ("who.html", "document.querySelectorAll('#graph button').length > 1"),
        ("plot.html", "document.documentElement?.dataset.drawnMs !== undefined"),
    ] {
        for mut browser in Browser::each(&folder.path().join(page), "", WINDOWS[0]) {
            let mut grounds = Vec::new();
            for scheme in ["light", "dark"] {
                if scheme == "dark" {
                    browser.prefer_dark();
                }
                let has_scheme = format!("document.documentElement?.dataset.scheme === '{scheme}'");
                browser.wait_until(&format!("{has_scheme} && {is_drawn}"));
                let width = "[document.documentElement.scrollWidth, innerWidth]";
                let [widest, window] =
                    [0, 1].map(|at| browser.evaluate(width)[at].as_u64().unwrap());
                assert!(widest <= window, "{page}, {scheme}: {widest} of {window}");
                grounds.push(text(&mut browser, "getComputedStyle(document.body).backgroundColor"));
            }
            assert_ne!(grounds[0], grounds[1], "{page}");
        }
    }
    assert!(target.finish());
}
