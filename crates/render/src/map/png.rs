//! The overview as a PNG: for a ticket or a chat.

use formats::{MadePages, SharedPages, Snapshot};
use ledger::{Sharing, Size};
use resvg::tiny_skia::Pixmap;

use crate::draw::{
    Anchor, Colour, SERIES, Scene, TEXT_SIZE, cut, encode, line_width, rasterize, wrap,
};
use crate::made_by::maker;
use crate::map::PageColours;
use crate::map::overview::{
    LEGEND, LEGEND_OF_CODE, SHARING, Section, Shade, each_run, legend_of_sharing, sections,
};
use crate::words;

const WIDTH: usize = 1200;
const MARGIN: usize = 16;
const ROOM: usize = WIDTH - 2 * MARGIN;
const HEADLINE: f64 = 18.0;
/// The most lines of the headline.
const MAX_LINES: usize = 6;
/// The most rows of pixels that cells take.
const MAX_ROWS: u64 = 2400;

/// The size of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cells {
    /// The sides of a cell, in pixels.
    side: usize,
    /// The pages of a cell: one, if cells of a pixel suffice for that.
    pages: u64,
    /// Bytes of a page.
    page_size: u64,
}

impl Cells {
    /// Returns the largest cells with which all sections fit.
    fn fitting(sections: &[Section<'_>], page_size: u64) -> Self {
        let of_a_page = [8, 6, 5, 4, 3, 2].map(|side| Self { side, pages: 1, page_size });
        let of_pages = (0..u64::BITS).map(|power| Self { side: 1, pages: 1 << power, page_size });
        let fits = |cells: &Self| {
            sections.iter().map(|it| cells.rows(it)).sum::<u64>() * cells.side as u64 <= MAX_ROWS
        };
        let last = Self { side: 1, pages: 1 << (u64::BITS - 1), page_size };
        of_a_page.into_iter().chain(of_pages).find(fits).unwrap_or(last)
    }

    fn columns(self) -> u64 {
        (ROOM / self.side) as u64
    }

    fn rows(self, section: &Section<'_>) -> u64 {
        section.pages(self.page_size).div_ceil(self.pages).div_ceil(self.columns())
    }

    fn describe(self) -> String {
        let side = self.side;
        match self.pages {
            1 => format!(
                "a cell of {side} x {side} pixels is a page of {} KiB",
                self.page_size >> 10
            ),
            pages => format!(
                "a pixel is {pages} pages ({}), in their average colour",
                Size(pages.saturating_mul(self.page_size))
            ),
        }
    }
}

/// Returns the overview as PNG, 1200 pixels wide: the verdict, and a cell for each page. In the map of a large process
/// a cell is several pages.
#[must_use]
pub fn map_png(snapshot: &Snapshot, colours: PageColours<'_>) -> Vec<u8> {
    encode(&draw(snapshot, colours))
}

fn draw(snapshot: &Snapshot, colours: PageColours<'_>) -> Pixmap {
    let sections = sections(snapshot);
    let cells = Cells::fitting(&sections, snapshot.memory_map.page_size);
    let mut page = Page { scene: Scene::new(WIDTH as f64), at: MARGIN };
    write_head(snapshot, colours, &mut page, cells);
    let mut tops = Vec::new();
    for section in &sections {
        page.at += 10;
        page.write(&section.title, TEXT_SIZE, Colour::Ink);
        tops.push(page.at);
        page.make_room(
            cells.columns() as usize * cells.side,
            cells.rows(section) as usize * cells.side,
        );
    }
    page.scene.height = (page.at + MARGIN) as f64;
    let mut pixmap = rasterize(&page.scene);
    for (section, top) in sections.iter().zip(tops) {
        draw_cells(&mut pixmap, snapshot, colours, section, cells, top);
    }
    pixmap
}

fn write_head(snapshot: &Snapshot, colours: PageColours<'_>, page: &mut Page, cells: Cells) {
    let process = &snapshot.report.process;
    let summary = words::verdict(&snapshot.report).summary;
    for line in wrap(&summary, HEADLINE, ROOM as f64).iter().take(MAX_LINES) {
        page.write(line, HEADLINE, Colour::Ink);
    }
    let ruby = process.ruby_version.as_deref().unwrap_or("unknown");
    let line = format!(
        "pid {}, {} resident, ruby {ruby}, {}: {}",
        process.pid,
        Size(process.rss_bytes),
        process.libc,
        process.command
    );
    page.write(&line, TEXT_SIZE, Colour::Dim);
    page.at += 4;
    // The names of code are long: each has a line.
    if let PageColours::Code(made) = colours {
        for (index, code) in made.code.iter().enumerate() {
            let text = format!("{}: {}", Size(code.bytes), maker(code));
            page.write_entry(MARGIN as f64, &text, code_colour(made, index as u32));
            page.at += 18;
        }
    }
    let owned = |legend: &[(&str, Colour)]| -> Vec<(String, Colour)> {
        legend.iter().map(|&(text, colour)| (text.to_owned(), colour)).collect()
    };
    let legend = match colours {
        PageColours::Use => owned(&LEGEND),
        PageColours::Code(_) => owned(&LEGEND_OF_CODE),
        PageColours::Sharing(shared) => legend_of_sharing(shared),
    };
    let mut left = MARGIN as f64;
    for (text, colour) in &legend {
        if left + line_width(text, TEXT_SIZE) > ROOM as f64 {
            (left, page.at) = (MARGIN as f64, page.at + 18);
        }
        left += page.write_entry(left, text, *colour);
    }
    if left + line_width(&cells.describe(), TEXT_SIZE) > ROOM as f64 {
        (left, page.at) = (MARGIN as f64, page.at + 18);
    }
    let place = (left, page.at as f64 + 11.0);
    page.scene.text(place, Anchor::Start, Colour::Dim, &cells.describe());
    page.at += 18;
}

/// The colour of the code with this number: the last one is that of all other code.
fn code_colour(made: &MadePages, number: u32) -> Colour {
    let number = number as usize;
    if number < made.code.len() { SERIES[number % SERIES.len()] } else { Colour::Ink }
}

/// A scene that is filled from the top down.
struct Page {
    scene: Scene,
    /// The row below its last line.
    at: usize,
}

impl Page {
    /// Writes a line of text, as far as it fits.
    fn write(&mut self, text: &str, size: f64, colour: Colour) {
        let place = (MARGIN as f64, self.at as f64 + size);
        self.scene.large_text(place, Anchor::Start, size, colour, cut(text, size, ROOM as f64));
        self.at += (size * 1.4) as usize;
    }

    /// Writes an entry of the legend, and returns its width.
    fn write_entry(&mut self, left: f64, text: &str, colour: Colour) -> f64 {
        let at = self.at as f64;
        let text = cut(text, TEXT_SIZE, ROOM as f64 - 19.0);
        self.scene.rect([left, at, 13.0, 13.0], Colour::Line);
        self.scene.rect([left + 1.0, at + 1.0, 11.0, 11.0], colour);
        self.scene.text((left + 19.0, at + 11.0), Anchor::Start, Colour::Dim, text);
        19.0 + line_width(text, TEXT_SIZE) + 20.0
    }

    /// Leaves room for cells, with a border around it.
    fn make_room(&mut self, width: usize, height: usize) {
        let place = [MARGIN, self.at, width, height].map(|it| it as f64);
        let [x, y, width, height] = place;
        self.scene.rect([x - 1.0, y - 1.0, width + 2.0, height + 2.0], Colour::Line);
        self.scene.rect(place, Colour::Ground);
        self.at += height as usize;
    }
}

/// Draws the pages of a section, in rows from `top` on.
fn draw_cells(
    pixmap: &mut Pixmap,
    snapshot: &Snapshot,
    colours: PageColours<'_>,
    section: &Section<'_>,
    cells: Cells,
    top: usize,
) {
    let mut index = 0;
    let mut draw = |colour: [u8; 3]| {
        let (row, column) =
            ((index / cells.columns()) as usize, (index % cells.columns()) as usize);
        let (x, y) = (MARGIN + column * cells.side, top + row * cells.side);
        for y in y..y + cells.side {
            let from = (y * WIDTH + x) * 4;
            for pixel in pixmap.data_mut()[from..from + cells.side * 4].chunks_exact_mut(4) {
                pixel[..3].copy_from_slice(&colour);
            }
        }
        index += 1;
    };
    let mut mixture = Mixture::default();
    for area in &section.areas {
        let mut page = area.range.start.0 / cells.page_size;
        let end = area.range.end.0 / cells.page_size;
        each_run(&snapshot.memory_map, area, |mut pages, shade| {
            while pages > 0 {
                let part = pages.min(cells.pages - mixture.pages);
                let is_resident = matches!(shade, Shade::InUse(_) | Shade::Kept);
                let (part, colour) = match colours {
                    PageColours::Code(made) if is_resident => colour_by_code(made, end, page, part),
                    PageColours::Sharing(shared) if is_resident => {
                        colour_by_sharing(shared, page, part)
                    }
                    _ => (part, colour(shade, cells.page_size)),
                };
                mixture.add(part, colour);
                pages -= part;
                page += part;
                if mixture.pages == cells.pages {
                    draw(std::mem::take(&mut mixture).colour());
                }
            }
        });
    }
    if mixture.pages > 0 {
        draw(mixture.colour());
    }
}

/// The colour of the page with this number by the code that touched it first, and how many of the next `pages` have the same. A
/// sample counts for pages of its own area only, which ends before page `end`.
fn colour_by_code(made: &MadePages, end: u64, page: u64, pages: u64) -> (u64, [u8; 3]) {
    let next = made.pages.partition_point(|&(first, count, _)| first.saturating_add(count) <= page);
    match made
        .pages
        .get(next)
        .map(|&(first, count, code)| (first, first.saturating_add(count), code))
    {
        Some((first, last, code)) if first <= page && last <= end => {
            (pages.min(last - page), code_colour(made, code).rgb())
        }
        Some((first, last, _)) if first > page && last <= end => {
            (pages.min(first - page), Colour::Kept.rgb())
        }
        _ => (pages, Colour::Kept.rgb()),
    }
}

/// The colour of the resident page with this number by the processes that share it, and how many of the next `pages` have the same.
/// Pages that came after the look at the family are new.
fn colour_by_sharing(shared: &SharedPages, page: u64, pages: u64) -> (u64, [u8; 3]) {
    let colour = |sharing| {
        let found = SHARING.iter().find(|(it, _)| *it == sharing);
        found.map_or(Colour::Unknown, |it| it.1).rgb()
    };
    let next = shared.pages.partition_point(|&(first, count, _)| first + count <= page);
    match shared.pages.get(next) {
        Some(&(first, count, sharing)) if first <= page => {
            (pages.min(first + count - page), colour(sharing))
        }
        Some(&(first, ..)) => (pages.min(first - page), colour(Sharing::Private)),
        None => (pages, colour(Sharing::Private)),
    }
}

/// The colours of the pages of one cell.
#[derive(Debug, Default)]
struct Mixture {
    pages: u64,
    sums: [u128; 3],
}

impl Mixture {
    fn add(&mut self, pages: u64, colour: [u8; 3]) {
        self.pages += pages;
        for (sum, part) in self.sums.iter_mut().zip(colour) {
            *sum += u128::from(pages) * u128::from(part);
        }
    }

    fn colour(&self) -> [u8; 3] {
        self.sums.map(|sum| (sum / u128::from(self.pages)) as u8)
    }
}

/// Returns the colour of a page.
fn colour(shade: Shade, page_size: u64) -> [u8; 3] {
    match shade {
        Shade::Kept => Colour::Kept.rgb(),
        Shade::Returned => Colour::Returned.rgb(),
        Shade::Swapped => Colour::Swapped.rgb(),
        Shade::Lost => Colour::Lost.rgb(),
        Shade::InUse(bytes) => {
            let share = (bytes as f64 / page_size as f64).sqrt();
            let (little, full) = (Colour::InUseLittle.rgb(), Colour::InUse.rgb());
            std::array::from_fn(|part| {
                let (from, to) = (f64::from(little[part]), f64::from(full[part]));
                (from + (to - from) * share).round() as u8
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use formats::Maker;
    use ledger::{Area, AreaKind, MemoryMap, PageUse};
    use linux::{Address, MIN_PAGE_SIZE};

    use super::*;

    /// A snapshot of areas of this many pages each, which never were resident.
    fn snapshot(kinds: &[AreaKind], pages: u64) -> Snapshot {
        snapshot_of(kinds, pages, PageUse::Returned)
    }

    fn snapshot_of(kinds: &[AreaKind], pages: u64, used: PageUse) -> Snapshot {
        let report = serde_json::from_str(include_str!("../../tests/burst.json")).unwrap();
        let mut map = MemoryMap::default();
        let mut start = Address(0);
        for &kind in kinds {
            let end = start.offset(pages * MIN_PAGE_SIZE);
            let from = map.columns.pages.len();
            let mut number = pages << 3 | used as u64;
            while number > 127 {
                map.columns.pages.push(number as u8 | 128);
                number >>= 7;
            }
            map.columns.pages.push(number as u8);
            let runs = from..map.columns.pages.len();
            map.areas.push(Area {
                range: start..end,
                kind,
                name: String::new(),
                blocks: 0,
                sizes: 0..0,
                uses: 0..0,
                owners: 0..0,
                pages: runs,
            });
            start = end;
        }
        assert_eq!(map.check(0), Ok(()));
        Snapshot { report, memory_map: map }
    }

    fn height(png: &[u8]) -> u32 {
        u32::from_be_bytes(png[20..24].try_into().unwrap())
    }

    #[test]
    fn cells_shrink_and_then_stand_for_several_pages() {
        let cells = |pages| {
            let snapshot = snapshot(&[AreaKind::Anonymous], pages);
            Cells::fitting(&sections(&snapshot), snapshot.memory_map.page_size)
        };
        let page_size = MIN_PAGE_SIZE;
        assert_eq!(cells(1000), Cells { side: 8, pages: 1, page_size });
        assert_eq!(cells(1000 * 1000), Cells { side: 1, pages: 1, page_size });
        let few = cells(1 << 24);
        assert_eq!(few, Cells { side: 1, pages: 8, page_size });
        assert!(few.describe().contains("8 pages (32.0 KiB)"), "{}", few.describe());
    }

    #[test]
    fn the_png_of_a_huge_address_space_is_small() {
        let tib = snapshot(&[AreaKind::Anonymous], 1 << 50);
        assert!(height(&map_png(&tib, PageColours::Use)) < 2600);
        let arenas: Vec<AreaKind> = (0..3000).map(AreaKind::Arena).collect();
        assert!(height(&map_png(&snapshot(&arenas, 1 << 14), PageColours::Use)) < 4000);
    }

    #[test]
    fn resident_pages_have_the_colour_of_their_code() {
        let maker = |method: &str| Maker {
            bytes: 4096,
            method: method.into(),
            calls: None,
            path: None,
            line: None,
            task: None,
        };
        let made = MadePages {
            code: vec![maker("a"), maker("b")],
            // Code "b" also has the last pages of an area that ended.
            pages: vec![(0, 100, 0), (300, 50, 2), (350, 10, 1), (900, 200, 1)],
        };
        let counts = |used, colours| {
            let pixmap = draw(&snapshot_of(&[AreaKind::Anonymous], 1000, used), colours);
            let count = |colour: Colour| {
                // The legend is above the cells.
                let pixels = pixmap.data().chunks_exact(4);
                pixels.filter(|pixel| pixel[..3] == colour.rgb()).count() / 64
            };
            [count(SERIES[0]), count(SERIES[1])]
        };
        // A cell has 64 pixels, and an entry of the legend 121.
        assert_eq!(counts(PageUse::Resident, PageColours::Code(&made)), [100 + 1, 10 + 1]);
        assert_eq!(counts(PageUse::Returned, PageColours::Code(&made)), [1, 1]);
        assert_eq!(counts(PageUse::Resident, PageColours::Use), [0, 0]);
    }

    #[test]
    fn resident_pages_have_the_colour_of_their_users() {
        let pages =
            vec![(0, 100, Sharing::All), (100, 20, Sharing::Some), (300, 50, Sharing::Copied)];
        let shared = SharedPages { processes: 3, is_estimated: false, pages };
        let counts = |used| {
            let snapshot = snapshot_of(&[AreaKind::Anonymous], 1000, used);
            let pixmap = draw(&snapshot, PageColours::Sharing(&shared));
            SHARING.map(|(_, colour)| {
                let pixels = pixmap.data().chunks_exact(4);
                pixels.filter(|pixel| pixel[..3] == colour.rgb()).count() / 64
            })
        };
        // With an entry of the legend for each. The other pages came later.
        assert_eq!(counts(PageUse::Resident), [101, 21, 51, 831]);
        assert_eq!(counts(PageUse::Returned), [1, 1, 1, 1]);
    }

    #[test]
    fn a_cell_of_several_pages_has_their_average_colour() {
        let mut mixture = Mixture::default();
        mixture.add(3, [100, 0, 255]);
        mixture.add(1, [0, 0, 255]);
        assert_eq!(mixture.colour(), [75, 0, 255]);
    }
}
