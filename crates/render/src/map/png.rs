//! The overview as a PNG: for a ticket or a chat.

use capture::PAGE_SIZE;
use formats::Snapshot;

use crate::draw::{Anchor, Canvas, Letters};
use crate::map::overview::{Shade, sections, shades};
use crate::words;

const WIDTH: usize = 1200;
const MARGIN: usize = 16;
/// The most rows of pixels that cells take, where cells of one pixel need no more.
const MOST_ROWS: usize = 2400;
const CELLS: [usize; 7] = [8, 6, 5, 4, 3, 2, 1];

const GROUND: [u8; 3] = [251, 250, 248];
const INK: [u8; 3] = [29, 28, 26];
const DIM: [u8; 3] = [107, 103, 97];
const BORDER: [u8; 3] = [217, 213, 206];
const RETURNED: [u8; 3] = [255, 255, 255];
const KEPT: [u8; 3] = [155, 155, 155];
const SWAPPED: [u8; 3] = [127, 179, 230];
const IN_USE: [u8; 3] = [211, 40, 27];
const IN_USE_LITTLE: [u8; 3] = [243, 182, 174];

/// The overview as a PNG, 1200 pixels wide: the verdict, and a cell for each page.
#[must_use]
pub fn map_png(snapshot: &Snapshot) -> Vec<u8> {
    let across = WIDTH - 2 * MARGIN;
    let pages: usize = pages(snapshot);
    let fits = |cell: &usize| pages.div_ceil(across / cell) * cell <= MOST_ROWS;
    let cell = CELLS.into_iter().find(fits).unwrap_or(1);
    let mut page = Page { canvas: Canvas::new(WIDTH, Vec::new()), at: MARGIN };
    write_head(snapshot, &mut page, cell);
    for section in sections(snapshot) {
        page.at += 10;
        page.write(&section.title, Letters::Small, INK);
        let shades = section.areas.iter().flat_map(|area| shades(snapshot, area));
        page.draw_cells(shades, cell);
    }
    page.canvas.reach(page.at + MARGIN, GROUND);
    page.canvas.encode()
}

fn pages(snapshot: &Snapshot) -> usize {
    let bytes = snapshot.memory_map.areas.iter().map(|area| capture::length(&area.range));
    (bytes.sum::<u64>() / PAGE_SIZE) as usize
}

fn write_head(snapshot: &Snapshot, page: &mut Page, cell: usize) {
    let process = &snapshot.report.process;
    let columns = (WIDTH - 2 * MARGIN) / Letters::Large.width();
    for line in textwrap::wrap(&words::verdict(&snapshot.report).summary, columns) {
        page.write(&line, Letters::Large, INK);
    }
    let ruby = process.ruby_version.as_deref().unwrap_or("unknown");
    let line = format!(
        "pid {}, {} resident, ruby {ruby}, {}: {}",
        process.pid,
        ledger::Size(process.rss_bytes),
        process.libc,
        process.command
    );
    let columns = (WIDTH - 2 * MARGIN) / Letters::Small.width();
    let line: String = line.chars().take(columns).collect();
    page.write(&line, Letters::Small, DIM);
    page.at += 4;
    let legend = [
        (Shade::InUse(PAGE_SIZE as u16), "in use"),
        (Shade::InUse(1), "in use in part"),
        (Shade::Kept, "free but kept"),
        (Shade::Returned, "returned, or never touched"),
        (Shade::Swapped, "in swap"),
    ];
    let mut left = MARGIN;
    for (shade, text) in legend {
        page.fill([left, page.at, 13, 13], BORDER);
        page.fill([left + 1, page.at + 1, 11, 11], colour(shade));
        page.text(left + 19, text, Letters::Small, DIM);
        left += 19 + (text.len() + 3) * Letters::Small.width();
    }
    let text = format!("a cell of {cell} x {cell} pixels is a page of 4 KiB");
    page.text(left, &text, Letters::Small, DIM);
    page.at += 18;
}

/// What a page of this shade looks like.
fn colour(shade: Shade) -> [u8; 3] {
    match shade {
        Shade::Kept => KEPT,
        Shade::Returned => RETURNED,
        Shade::Swapped => SWAPPED,
        Shade::InUse(bytes) => {
            let share = (f64::from(bytes) / PAGE_SIZE as f64).sqrt();
            let mix = |part: usize| {
                let (from, to) = (f64::from(IN_USE_LITTLE[part]), f64::from(IN_USE[part]));
                (from + (to - from) * share).round() as u8
            };
            [mix(0), mix(1), mix(2)]
        }
    }
}

/// What is drawn from the top down, as far as it goes.
struct Page {
    canvas: Canvas,
    /// The row below what was written.
    at: usize,
}

impl Page {
    fn fill(&mut self, place: [usize; 4], colour: [u8; 3]) {
        self.canvas.reach(place[1] + place[3], GROUND);
        self.canvas.fill(place, colour);
    }

    /// A line of text below what was written.
    fn write(&mut self, text: &str, letters: Letters, colour: [u8; 3]) {
        self.text(MARGIN, text, letters, colour);
        self.at += letters.height() + 3;
    }

    /// A text beside others.
    fn text(&mut self, x: usize, text: &str, letters: Letters, colour: [u8; 3]) {
        self.canvas.reach(self.at + letters.height(), GROUND);
        let place = (x as i32, self.at as i32);
        self.canvas.text(place, Anchor::Top, letters, colour, text);
    }

    /// Cells in rows that fill the width, within a border.
    fn draw_cells(&mut self, shades: impl Iterator<Item = Shade>, cell: usize) {
        let columns = (WIDTH - 2 * MARGIN) / cell;
        let mut rows = 0;
        for (index, shade) in shades.enumerate() {
            let (row, column) = (index / columns, index % columns);
            rows = row + 1;
            let place = [MARGIN + column * cell, self.at + row * cell, cell, cell];
            self.fill(place, colour(shade));
        }
        let height = rows * cell;
        for (x, width) in [(MARGIN - 1, 1), (MARGIN + columns * cell, 1)] {
            self.fill([x, self.at, width, height], BORDER);
        }
        for y in [self.at - 1, self.at + height] {
            self.fill([MARGIN - 1, y, columns * cell + 2, 1], BORDER);
        }
        self.at += height;
    }
}
