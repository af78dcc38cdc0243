//! `rbloat map`: the map in a real browser agrees with the report.

use std::cmp::Reverse;
use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use formats::{FindingKind, Snapshot};
use ledger::{AreaKind, Count, PageUse, Use};
use serde_json::Value;
use testkit::{Browser, Target};

use crate::rbloat;
use crate::snapshots::Kept;

const WINDOW: [u32; 2] = [1280, 900];
/// True once the last line of the page's script has run.
const DRAWN: &str = "document.documentElement?.dataset.drawnMs !== undefined";

/// A snapshot, and the map of it.
struct Drawn {
    kept: Kept,
    snapshot: Snapshot,
    page: PathBuf,
}

impl Drawn {
    fn of(pid: i32) -> Self {
        let kept = Kept::of(pid);
        let page = kept.path().with_extension("html");
        let made = rbloat().arg("map").arg(kept.path()).arg("-o").arg(&page).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let snapshot = kept.read();
        Self { kept, snapshot, page }
    }

    fn open(&self, anchor: &str, window: [u32; 2]) -> Browser {
        let mut browser = Browser::open(&self.page, anchor, window);
        browser.wait_until(DRAWN);
        browser
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn the_numbers_on_the_page_are_those_of_the_report() {
    let target = Target::scenario("pin", &["--scale", "0.1"]);
    let drawn = Drawn::of(target.pid());
    let mut browser = drawn.open("", WINDOW);
    let report = &drawn.snapshot.report;
    let rows = browser.evaluate(
        "[...document.querySelectorAll('#causes tbody tr')].map(row => [row.cells[0].textContent, Number(row.dataset.bytes)])",
    );
    let rows: Vec<(String, u64)> = serde_json::from_value(rows).unwrap();
    let mut expected: Vec<_> = report
        .causes
        .iter()
        .filter(|row| row.bytes > 0)
        .map(|row| (row.cause.name().to_owned(), row.bytes))
        .collect();
    expected.push(("RSS".into(), report.process.rss_bytes));
    assert_eq!(rows, expected);
    assert_eq!(
        browser.evaluate("document.getElementById('verdict').textContent"),
        render::words::verdict(report).summary
    );
    // The drawn pages add up to RSS as well.
    let resident = browser.evaluate(
        "window.rbloat.memoryMap.pageUses.reduce((sum, use) => sum + (use === 1 || use === 3 ? 4096 : 0), 0)",
    );
    assert_eq!(number(&resident), report.process.rss_bytes);
    let unreturned = browser.evaluate(
        "window.rbloat.memoryMap.pageUses.reduce((sum, use) => sum + (use === 3 ? 4096 : 0), 0)",
    );
    assert_eq!(number(&unreturned), report.malloc.as_ref().unwrap().trim_yield_bytes);
    let arenas = browser
        .evaluate("[...document.querySelectorAll('#arenas tbody td')].map(cell => cell.title)");
    let arenas: Vec<String> = serde_json::from_value(arenas).unwrap();
    let sums: u64 = arenas
        .iter()
        .filter_map(|title| title.split(' ').next()?.replace(',', "").parse::<u64>().ok())
        .sum();
    let expected: u64 = report
        .arenas
        .iter()
        .flatten()
        .map(|it| {
            it.system_bytes
                + it.in_use_bytes
                + it.unreturned_bytes
                + it.muzzy_bytes
                + it.fragmented_bytes
                + it.cached_bytes
                + it.top_bytes
                + it.overhead_bytes
                + it.returned_bytes
        })
        .sum();
    assert_eq!(sums, expected);
    // Nothing was loaded but the file itself.
    assert_eq!(number(&browser.evaluate("performance.getEntriesByType('resource').length")), 0);
    assert_eq!(browser.evaluate("document.getElementById('failure').hidden"), true);
}

/// Reads the cells of each row of a table, and the bytes that belong to the row.
fn rows(browser: &mut Browser, table: &str) -> Vec<(Vec<String>, u64)> {
    let rows = browser.evaluate(&format!(
        "[...document.querySelectorAll('#{table} tbody tr')].map(row =>
            [[...row.cells].map(cell => cell.textContent), Number(row.dataset.bytes)])"
    ));
    serde_json::from_value(rows).unwrap()
}

#[test]
fn sparse_slabs_and_what_keeps_them_are_shown() {
    let start = |library: &str| {
        let mut command = testkit::scenario("pin");
        Target::start(command.args(["--scale", "0.1"]).env("LD_PRELOAD", library))
    };
    let drawn = Drawn::of(start("libjemalloc.so.2").pid());
    let report = &drawn.snapshot.report;
    if report.process.allocator != "jemalloc" {
        return testkit::skip("libjemalloc2 is not installed where targets run");
    }
    let malloc = report.malloc.as_ref().unwrap();
    let mut browser = drawn.open("", WINDOW);
    assert!(malloc.pinned_by.len() > 5, "{:?}", malloc.pinned_by);
    let expected: Vec<_> = malloc.pinned_by[..5]
        .iter()
        .map(|pin| (pin.owner.clone(), Count(pin.blocks).to_string(), pin.bytes))
        .collect();
    let shown: Vec<_> = rows(&mut browser, "pins")
        .into_iter()
        .map(|(cells, bytes)| (cells[0].clone(), cells[2].clone(), bytes))
        .collect();
    assert_eq!(shown, expected);

    let mut expected: Vec<_> = malloc.size_classes.iter().collect();
    assert!(expected.len() > 10, "{expected:?}");
    expected.sort_by_key(|class| Reverse(class.free_bytes));
    let shown = rows(&mut browser, "size-classes");
    assert_eq!(shown.len(), expected.len());
    for ((cells, bytes), class) in shown.iter().zip(expected) {
        let [region, slabs, regions, in_use, _, kept_by] = &cells[..] else { panic!("{cells:?}") };
        assert_eq!(*region, format!("{} B", Count(class.region_bytes)));
        assert_eq!(*slabs, Count(class.slabs).to_string());
        assert_eq!(*regions, Count(class.regions).to_string());
        let percent = ledger::percent(class.in_use, class.regions);
        assert!((in_use.parse::<f64>().unwrap() - percent).abs() < 0.06, "{cells:?} {percent}");
        assert_eq!(*bytes, class.free_bytes);
        let most = class.pinned_by.first().map_or("", |pin| pin.owner.as_str());
        assert!(kept_by.starts_with(most), "{cells:?}");
    }
    let widest = browser.evaluate("document.documentElement.scrollWidth");
    assert!(number(&widest) <= u64::from(WINDOW[0]), "{widest}");

    let glibc = Drawn::of(start("").pid());
    let mut browser = glibc.open("", WINDOW);
    let hidden = |id: &str| format!("document.getElementById('{id}').hidden");
    assert_eq!(browser.evaluate(&hidden("slabs")), true);
    let has_pins = !glibc.snapshot.report.malloc.as_ref().unwrap().pinned_by.is_empty();
    assert_eq!(browser.evaluate(&hidden("pinned")), !has_pins);
}

#[test]
fn a_click_on_a_chunk_shows_its_owner() {
    let target = Target::scenario("objects", &["--scale", "0.05"]);
    let drawn = Drawn::of(target.pid());
    let Snapshot { report, memory_map } = &drawn.snapshot;
    let owners = report.owners.as_ref().unwrap();
    let strings = owners.iter().position(|it| it.owner == "String" && it.kind == "class").unwrap();
    let arenas = memory_map.areas.iter().filter(|area| matches!(area.kind, AreaKind::Arena(_)));
    let chunk = arenas
        .flat_map(|area| memory_map.blocks(area))
        .filter(|it| it.used == Use::InUse && it.owner == Some(strings as u32))
        .max_by_key(|it| it.bytes)
        .unwrap();

    // Click the page in the overview, then the chunk in the zoom.
    let mut browser = drawn.open("", WINDOW);
    let middle = chunk.address.0 + chunk.bytes / 2;
    let place = browser.evaluate(&format!(
        "(() => {{ const {{ memoryMap, overview }} = window.rbloat, area = memoryMap.areaOf({middle}), {{ section }} = area;
            const cell = section.cell(area, area.firstPage + Math.floor(({middle} - area.start) / 4096));
            section.canvas.scrollIntoView();
            scrollBy(0, Math.floor(cell / section.columns) * overview.cell - 200);
            const box = section.canvas.getBoundingClientRect();
            return [box.left + (cell % section.columns + .5) * overview.cell,
              box.top + (Math.floor(cell / section.columns) + .5) * overview.cell]; }})()"
    ));
    browser.click(place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    let place = browser.evaluate(&format!(
        "(() => {{ const {{ zoom }} = window.rbloat, box = zoom.canvas.getBoundingClientRect();
            const at = {middle} - zoom.area.start - zoom.firstLine * zoom.perLine;
            return [box.left + 130 + (at % zoom.perLine / 8 + .5) * zoom.unit,
              box.top + Math.floor(at / zoom.perLine) * 15 + 8]; }})()"
    ));
    browser.click(place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    let text = browser.evaluate("document.getElementById('chosen').textContent");
    let text = text.as_str().unwrap();
    assert!(text.starts_with(&format!("{}: chunk in use, ", chunk.address)), "{text}");
    assert!(text.contains("owned by String (class)"), "{text}");
    assert!(text.contains("ruby.malloc"), "{text}");
    let link = browser.evaluate("Number(location.hash.slice(1))");
    assert!((chunk.address.0..chunk.address.0 + chunk.bytes).contains(&number(&link)), "{link}");
}

/// A free chunk may have whole free pages, which a trim returns, and ends on pages in use, which it does not.
#[test]
fn no_part_of_a_free_chunk_is_both_fragmented_and_returnable() {
    let target = Target::scenario("burst", &["--scale", "0.1"]);
    let drawn = Drawn::of(target.pid());
    let mut browser = drawn.open("", WINDOW);
    let described = browser.evaluate(
        "(() => { const { memoryMap, zoom } = window.rbloat, texts = [];
            for (const area of memoryMap.areas) {
              for (let block = area.firstBlock; block < area.firstBlock + area.pieces; block++) {
                if (memoryMap.uses[block] !== FREE && memoryMap.uses[block] !== TOP) continue;
                const start = memoryMap.addressOf(area, block), bytes = memoryMap.bytesOf(area, block);
                for (const address of [start, start + Math.floor(bytes / 16) * 8, start + bytes - 8]) texts.push(zoom.describe(area, address));
              }
            }
            return texts; })()",
    );
    let described: Vec<String> = serde_json::from_value(described).unwrap();
    let returnable = |text: &&String| text.contains("a trim would return it");
    let (returned, kept): (Vec<_>, Vec<_>) = described.iter().partition(returnable);
    assert!(returned.len() > 100 && kept.len() > 100, "{} {}", returned.len(), kept.len());
    for text in returned {
        assert!(text.contains("here: malloc.unreturned"), "{text}");
    }
    for text in kept {
        assert!(!text.contains("here: malloc.unreturned"), "{text}");
    }
    let both = described.iter().find(|text| {
        text.contains("bytes on whole free pages") && text.contains("bytes on pages in use")
    });
    assert!(both.is_some(), "{:?}", &described[..9]);
    let legend = browser.evaluate("document.getElementById('legend').textContent");
    assert!(legend.as_str().unwrap().contains("free: you can have it back"), "{legend}");
}

#[test]
fn a_chosen_owner_dims_the_rest_of_the_map_in_both_browsers() {
    let target = Target::scenario("pin", &["--scale", "0.1"]);
    let drawn = Drawn::of(target.pid());
    // The pixels of the largest section.
    let pixels = "(() => { const { canvas } = rbloat.overview.sections[0];
        return canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.join(); })()";
    for mut browser in Browser::each(&drawn.page, "", WINDOW) {
        browser.wait_until(DRAWN);
        let before = browser.evaluate(pixels);
        browser.evaluate("document.querySelector('#owners tbody button').click()");
        assert_ne!(browser.evaluate(pixels), before);
        let name = browser.evaluate("document.querySelector('#owners tbody button').textContent");
        let choice = browser.evaluate("document.querySelector('#choice .name').textContent");
        assert!(choice.as_str().unwrap().starts_with(name.as_str().unwrap()), "{choice} {name}");
        browser.evaluate("document.getElementById('show-choice').click()");
        browser.wait_until("document.getElementById('choice').getBoundingClientRect().top >= 0");
        browser.press("Escape");
        assert_eq!(browser.evaluate(pixels), before);
    }
}

#[test]
fn pages_are_enlarged_by_dragging_in_both_browsers() {
    let target = Target::scenario("pin", &["--scale", "0.1"]);
    let drawn = Drawn::of(target.pid());
    let shown = "(() => { const { first, end, size } = rbloat.overview.sections[0]; return [first, end, size]; })()";
    for mut browser in Browser::each(&drawn.page, "", WINDOW) {
        browser.wait_until(DRAWN);
        let all: [u64; 3] = serde_json::from_value(browser.evaluate(shown)).unwrap();
        let place = browser.evaluate(
            "(() => { const { canvas, size } = rbloat.overview.sections[0]; canvas.scrollIntoView({ block: 'center' });
                const { left, top } = canvas.getBoundingClientRect();
                return [left + 10.5 * size, left + 60.5 * size, Math.max(top, 0) + size / 2]; })()",
        );
        let [from, to, y]: [f64; 3] = serde_json::from_value(place).unwrap();
        browser.drag([from, y], [to, y]);
        let part: [u64; 3] = serde_json::from_value(browser.evaluate(shown)).unwrap();
        assert!((50..=52).contains(&(part[1] - part[0])) && part[2] >= all[2], "{all:?} {part:?}");
        assert_eq!(browser.evaluate("rbloat.overview.sections[0].whole.hidden"), false);
        browser.press("Escape");
        let again: [u64; 3] = serde_json::from_value(browser.evaluate(shown)).unwrap();
        assert_eq!(again, all);
    }
}

#[test]
fn the_largest_arena_comes_first_and_small_ones_are_folded() {
    let target = Target::scenario("burst", &["--scale", "0.1"]);
    let drawn = Drawn::of(target.pid());
    let mut browser = drawn.open("", WINDOW);
    let cells = browser.evaluate(
        "rbloat.overview.sections.filter(it => it.areas[0].kind === 'arena').map(it => [it.cells, it.box.closest('details') !== null])",
    );
    let cells: Vec<(u64, bool)> = serde_json::from_value(cells).unwrap();
    assert!(cells.windows(2).all(|pair| pair[0].0 >= pair[1].0), "{cells:?}");
    assert!(!cells[0].1, "{cells:?}");
    let pages = number(&browser.evaluate("rbloat.memoryMap.pages"));
    let folded = browser.evaluate(
        "rbloat.overview.sections.filter(it => it.box.closest('details')).map(it => it.cells)",
    );
    let folded: Vec<u64> = serde_json::from_value(folded).unwrap();
    assert!(!folded.is_empty() && folded.iter().all(|cells| cells * 100 < pages), "{folded:?}");
}

/// Returns the address that a description begins with.
fn address_of(description: &str) -> &str {
    description.split(':').next().unwrap()
}

#[test]
fn an_address_is_found_and_keys_lead_on_from_there() {
    let target = Target::scenario("pin", &["--scale", "0.05"]);
    let drawn = Drawn::of(target.pid());
    let Snapshot { memory_map, .. } = &drawn.snapshot;
    let area = memory_map.areas.iter().find(|area| area.kind == AreaKind::Arena(0)).unwrap();
    let blocks: Vec<_> = memory_map.blocks(area).collect();
    let [one, next] = [blocks[40], blocks[41]];
    let mut browser = drawn.open("", WINDOW);
    browser.press("/");
    browser.write(&one.address.to_string());
    browser.evaluate("document.querySelector('#find button').click()");
    let chosen = |browser: &mut Browser| {
        let text = browser.evaluate("document.getElementById('chosen').textContent");
        address_of(text.as_str().unwrap()).to_owned()
    };
    assert_eq!(chosen(&mut browser), one.address.to_string());
    browser.evaluate("document.getElementById('zoom-canvas').focus()");
    browser.press("ArrowRight");
    assert_eq!(chosen(&mut browser), next.address.to_string());
    browser.press("ArrowLeft");
    assert_eq!(chosen(&mut browser), one.address.to_string());
    browser.press("Escape");
    assert_eq!(browser.evaluate("document.getElementById('zoom').hidden"), true);
    assert_eq!(browser.evaluate("document.activeElement.tagName"), "CANVAS");
    browser.press("ArrowRight");
    assert_eq!(browser.evaluate("document.getElementById('zoom').hidden"), false);
    // A link may contain the address.
    let mut linked = drawn.open(&format!("#{}", next.address), WINDOW);
    assert_eq!(chosen(&mut linked), next.address.to_string());
    let mut nowhere = drawn.open("#0x10", WINDOW);
    assert_eq!(nowhere.evaluate("document.getElementById('zoom').hidden"), true);
    assert_eq!(nowhere.evaluate("document.getElementById('failure').hidden"), true);
}

#[test]
fn red_is_in_use_gray_is_kept_and_white_is_returned() {
    let target = Target::scenario("burst", &["--scale", "0.1"]);
    let drawn = Drawn::of(target.pid());
    let Snapshot { memory_map, .. } = &drawn.snapshot;
    let mut browser = drawn.open("", WINDOW);
    let colours = browser.evaluate(
        "(() => { const { memoryMap } = window.rbloat; return memoryMap.areas.map(area => {
            const pen = area.section.canvas.getContext('2d');
            const { width } = area.section.canvas, first = area.section.cell(area, area.firstPage);
            return Array.from({ length: area.pages }, (_, page) =>
              [...pen.getImageData((first + page) % width, Math.floor((first + page) / width), 1, 1).data.slice(0, 3)]);
          }); })()",
    );
    let colours: Vec<Vec<[u8; 3]>> = serde_json::from_value(colours).unwrap();
    let (mut red, mut gray, mut white) = (0, 0, 0);
    for (area, colours) in memory_map.areas.iter().zip(&colours) {
        let busy = busy_pages(memory_map, area);
        let mut page = 0;
        for (range, used) in memory_map.pages(area) {
            for _ in 0..linux::length(&range) / 4096 {
                let colour = colours[page];
                match used {
                    PageUse::Returned => {
                        assert_eq!(colour, [255, 255, 255]);
                        white += 1;
                    }
                    PageUse::Swapped | PageUse::Lost => {}
                    _ if busy[page] => {
                        assert!(
                            colour[0] > colour[1] && colour[1].abs_diff(colour[2]) < 20,
                            "{colour:?}"
                        );
                        red += 1;
                    }
                    _ => {
                        assert_eq!(colour, [155, 155, 155]);
                        gray += 1;
                    }
                }
                page += 1;
            }
        }
    }
    assert!(red > 100 && gray > 1000 && white > 10, "{red} {gray} {white}");
    // The other view has another legend.
    let legend = browser.evaluate("document.getElementById('legend').textContent");
    browser.press("v");
    assert_ne!(browser.evaluate("document.getElementById('legend').textContent"), legend);
    browser.press("d");
    assert_eq!(browser.evaluate("document.documentElement.dataset.scheme"), "dark");
}

/// Returns true for each page that has a byte in use.
fn busy_pages(memory_map: &ledger::MemoryMap, area: &ledger::Area) -> Vec<bool> {
    let pages = (linux::length(&area.range) / 4096) as usize;
    if area.blocks == 0 {
        return vec![true; pages];
    }
    let mut busy = vec![false; pages];
    for block in memory_map.blocks(area).filter(|block| block.used.is_busy()) {
        let start = block.address - area.range.start;
        for page in start / 4096..(start + block.bytes).div_ceil(4096) {
            busy[page as usize] = true;
        }
    }
    busy
}

#[test]
fn the_page_fits_windows_of_all_sizes() {
    let target = Target::scenario("pin", &["--scale", "0.05"]);
    let drawn = Drawn::of(target.pid());
    for window in [[390, 800], [1024, 700], [2560, 1300]] {
        let mut browser = drawn.open("", window);
        let widest = browser.evaluate("document.documentElement.scrollWidth");
        assert!(number(&widest) <= u64::from(window[0]), "{window:?}: {widest}");
        let shot = STANDARD.decode(browser.screenshot()).unwrap();
        assert_eq!(size_of_png(&shot), window);
    }
}

/// Returns width and height from the header of a PNG.
fn size_of_png(bytes: &[u8]) -> [u32; 2] {
    assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"));
    [16, 20].map(|at| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()))
}

#[test]
fn the_overview_is_a_png() {
    let target = Target::scenario("pin", &["--scale", "0.05"]);
    let kept = Kept::of(target.pid());
    let path = kept.path().with_extension("png");
    let made = rbloat().arg("map").arg(kept.path()).arg("-o").arg(&path).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let [width, height] = size_of_png(&fs::read(path).unwrap());
    assert_eq!(width, 1200);
    assert!((200..4000).contains(&height), "{height}");
}

#[test]
fn a_map_is_of_a_live_process_or_of_a_file() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let drawn = Drawn::of(target.pid());
    let live = drawn.page.with_extension("live.html");
    let made = rbloat().args(["map", &target.pid().to_string(), "-o"]).arg(&live).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let page = fs::read_to_string(live).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    // It has no links.
    for word in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(drawn.kept.path().exists());
}

/// Names of a snapshot cannot become a script of the page.
#[test]
fn names_with_markup_stay_text_on_the_page() {
    const NAME: &str = "</script><script>pwned = 1</script><img src=x onerror='pwned = 1'>\"&amp;";
    let target = Target::scenario("pin", &["--scale", "0.1"]);
    let mut drawn = Drawn::of(target.pid());
    let Snapshot { report, memory_map } = &mut drawn.snapshot;
    report.process.command = NAME.into();
    report.process.ruby_version = Some(NAME.into());
    for owner in report.owners.iter_mut().flatten() {
        owner.owner = NAME.into();
        owner.kind = NAME.into();
        owner.kept_by.iter_mut().for_each(|root| root.path = Some(NAME.into()));
    }
    report.files.iter_mut().for_each(|file| file.path = NAME.into());
    let told = FindingKind::Other { kind: None, what: Some(NAME.into()) };
    report.findings.push(told.into());
    if let Some(malloc) = &mut report.malloc {
        malloc.walker = NAME.into();
        malloc.pinned_by.iter_mut().for_each(|pin| pin.owner = NAME.into());
    }
    memory_map.areas.iter_mut().for_each(|area| area.name = NAME.into());
    fs::write(drawn.kept.path(), drawn.snapshot.to_bytes()).unwrap();
    let made = rbloat().arg("map").arg(drawn.kept.path()).arg("-o").arg(&drawn.page).output();
    assert!(made.unwrap().status.success());
    let mut browser = drawn.open("", WINDOW);
    let owner = browser.evaluate("document.querySelector('#owners tbody tr').textContent");
    assert!(owner.as_str().unwrap().contains(NAME), "{owner}");
    assert_eq!(browser.evaluate("typeof pwned"), "undefined");
    assert_eq!(browser.evaluate("document.images.length + document.scripts.length - document.querySelectorAll('body > script').length"), 0);
}
