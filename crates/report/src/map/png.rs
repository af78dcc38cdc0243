//! The overview as a PNG: for a ticket or a chat.

use std::convert::Infallible;

use embedded_graphics::mono_font::iso_8859_1::{FONT_7X13, FONT_10X20};
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::{
    DrawTarget, Drawable, OriginDimensions, Pixel, Point, RgbColor, Size,
};
use embedded_graphics::text::{Baseline, Text};
use target::PAGE_SIZE;

use crate::Snapshot;
use crate::map::overview::Shade;

const WIDTH: usize = 1200;
const MARGIN: usize = 16;
/// The most rows of pixels that cells take, where cells of one pixel need no more.
const MOST_ROWS: usize = 2400;
const CELLS: [usize; 7] = [8, 6, 5, 4, 3, 2, 1];

const GROUND: Rgb888 = Rgb888::new(251, 250, 248);
const INK: Rgb888 = Rgb888::new(29, 28, 26);
const DIM: Rgb888 = Rgb888::new(107, 103, 97);
const BORDER: Rgb888 = Rgb888::new(217, 213, 206);
const RETURNED: Rgb888 = Rgb888::WHITE;
const KEPT: Rgb888 = Rgb888::new(155, 155, 155);
const SWAPPED: Rgb888 = Rgb888::new(127, 179, 230);
const IN_USE: [u8; 3] = [211, 40, 27];
const IN_USE_LITTLE: [u8; 3] = [243, 182, 174];

impl Snapshot {
    /// The overview as a PNG, 1200 pixels wide: the verdict, and a cell for each page.
    #[must_use]
    pub fn render_png(&self) -> Vec<u8> {
        let across = WIDTH - 2 * MARGIN;
        let pages: usize = self.pages();
        let fits = |cell: &usize| pages.div_ceil(across / cell) * cell <= MOST_ROWS;
        let cell = CELLS.into_iter().find(fits).unwrap_or(1);
        let mut canvas = Canvas { pixels: Vec::new(), at: MARGIN };
        self.write_head(&mut canvas, cell);
        for section in self.map_sections() {
            canvas.at += 10;
            canvas.write(&section.title, &FONT_7X13, INK);
            let shades = section.areas.iter().flat_map(|area| self.shades(area));
            canvas.draw_cells(shades, cell);
        }
        canvas.at += MARGIN;
        canvas.finish()
    }

    fn pages(&self) -> usize {
        let bytes = self.atlas.areas.iter().map(|area| target::length(&area.range));
        (bytes.sum::<u64>() / PAGE_SIZE) as usize
    }

    fn write_head(&self, canvas: &mut Canvas, cell: usize) {
        let process = &self.report.process;
        let columns = (WIDTH - 2 * MARGIN) / FONT_10X20.character_size.width as usize;
        for line in textwrap::wrap(&self.report.verdict.summary, columns) {
            canvas.write(&line, &FONT_10X20, INK);
        }
        let ruby = process.ruby_version.as_deref().unwrap_or("unknown");
        let line = format!(
            "pid {}, {} resident, ruby {ruby}, {}: {}",
            process.pid,
            ledger::Size(process.rss_bytes),
            process.libc,
            process.command
        );
        let columns = (WIDTH - 2 * MARGIN) / FONT_7X13.character_size.width as usize;
        let line: String = line.chars().take(columns).collect();
        canvas.write(&line, &FONT_7X13, DIM);
        canvas.at += 4;
        let legend = [
            (Shade::InUse(PAGE_SIZE as u16), "in use"),
            (Shade::InUse(1), "in use in part"),
            (Shade::Kept, "free but kept"),
            (Shade::Returned, "returned, or never touched"),
            (Shade::Swapped, "in swap"),
        ];
        let mut left = MARGIN;
        for (shade, text) in legend {
            canvas.fill(left, canvas.at, 13, 13, BORDER);
            canvas.fill(left + 1, canvas.at + 1, 11, 11, colour(shade));
            canvas.text(left + 19, canvas.at, text, &FONT_7X13, DIM);
            left += 19 + (text.len() + 3) * FONT_7X13.character_size.width as usize;
        }
        let text = format!("a cell of {cell} x {cell} pixels is a page of 4 kB");
        canvas.text(left, canvas.at, &text, &FONT_7X13, DIM);
        canvas.at += 18;
    }
}

/// What a page of this shade looks like.
fn colour(shade: Shade) -> Rgb888 {
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
            Rgb888::new(mix(0), mix(1), mix(2))
        }
    }
}

/// Rows of pixels, as many as were drawn on.
struct Canvas {
    pixels: Vec<[u8; 3]>,
    /// The row below what was written.
    at: usize,
}

impl Canvas {
    fn set(&mut self, x: usize, y: usize, colour: Rgb888) {
        let index = y * WIDTH + x;
        if x < WIDTH {
            if index >= self.pixels.len() {
                self.pixels.resize((y + 1) * WIDTH, [GROUND.r(), GROUND.g(), GROUND.b()]);
            }
            self.pixels[index] = [colour.r(), colour.g(), colour.b()];
        }
    }

    fn fill(&mut self, x: usize, y: usize, width: usize, height: usize, colour: Rgb888) {
        for row in y..y + height {
            for column in x..x + width {
                self.set(column, row, colour);
            }
        }
    }

    /// A line of text below what was written.
    fn write(&mut self, text: &str, font: &MonoFont<'_>, colour: Rgb888) {
        self.text(MARGIN, self.at, text, font, colour);
        self.at += font.character_size.height as usize + 3;
    }

    fn text(&mut self, x: usize, y: usize, text: &str, font: &MonoFont<'_>, colour: Rgb888) {
        let style = MonoTextStyle::new(font, colour);
        let point = Point::new(x as i32, y as i32);
        let Ok(_) = Text::with_baseline(text, point, style, Baseline::Top).draw(self);
    }

    /// Cells in rows that fill the width, within a border.
    fn draw_cells(&mut self, shades: impl Iterator<Item = Shade>, cell: usize) {
        let columns = (WIDTH - 2 * MARGIN) / cell;
        let mut rows = 0;
        for (index, shade) in shades.enumerate() {
            let (row, column) = (index / columns, index % columns);
            rows = row + 1;
            self.fill(MARGIN + column * cell, self.at + row * cell, cell, cell, colour(shade));
        }
        let height = rows * cell;
        for (x, width) in [(MARGIN - 1, 1), (MARGIN + columns * cell, 1)] {
            self.fill(x, self.at, width, height, BORDER);
        }
        for y in [self.at - 1, self.at + height] {
            self.fill(MARGIN - 1, y, columns * cell + 2, 1, BORDER);
        }
        self.at += height;
    }

    fn finish(mut self) -> Vec<u8> {
        self.pixels.resize(self.at * WIDTH, [GROUND.r(), GROUND.g(), GROUND.b()]);
        let mut bytes = Vec::new();
        let mut encoder = ::png::Encoder::new(&mut bytes, WIDTH as u32, self.at as u32);
        encoder.set_color(::png::ColorType::Rgb);
        let written = encoder
            .write_header()
            .and_then(|mut writer| writer.write_image_data(self.pixels.as_flattened()));
        written
            .expect("memory takes all that is written to it, and there is a pixel for each place");
        bytes
    }
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        Size::new(WIDTH as u32, u32::MAX)
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(
        &mut self,
        pixels: I,
    ) -> Result<(), Infallible> {
        for Pixel(point, colour) in pixels {
            if let (Ok(x), Ok(y)) = (usize::try_from(point.x), usize::try_from(point.y)) {
                self.set(x, y, colour);
            }
        }
        Ok(())
    }
}
