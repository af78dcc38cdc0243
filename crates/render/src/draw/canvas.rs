//! Pixels to draw on, and the PNG of them.

use std::convert::Infallible;

use embedded_graphics::mono_font::iso_8859_1::{FONT_7X13, FONT_10X20};
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::{
    DrawTarget, Drawable, OriginDimensions, Pixel, Point, RgbColor, Size,
};
use embedded_graphics::text::{Alignment, Baseline, Text, TextStyleBuilder};

/// Rows of pixels, red, green and blue. What lies outside is not drawn.
#[derive(Debug, Clone)]
pub(crate) struct Canvas {
    width: usize,
    pixels: Vec<[u8; 3]>,
}

/// How large letters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Letters {
    /// 7 pixels wide and 13 high.
    Small,
    /// 10 pixels wide and 20 high.
    Large,
}

/// Which part of a line of text stands at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// Its left upper corner.
    Top,
    /// The left end of the line that letters stand on.
    Start,
    /// The middle of that line.
    Middle,
    /// The right end of that line.
    End,
}

impl Letters {
    fn font(self) -> &'static MonoFont<'static> {
        match self {
            Self::Small => &FONT_7X13,
            Self::Large => &FONT_10X20,
        }
    }

    /// Pixels that a letter is wide.
    pub(crate) fn width(self) -> usize {
        self.font().character_size.width as usize
    }

    /// Pixels that a line is high.
    pub(crate) fn height(self) -> usize {
        self.font().character_size.height as usize
    }
}

impl Canvas {
    /// Rows that are `width` wide, one below the other; no row that would not be whole.
    pub(crate) fn new(width: usize, mut pixels: Vec<[u8; 3]>) -> Self {
        pixels.truncate(pixels.len() - pixels.len() % width.max(1));
        Self { width, pixels }
    }

    /// Adds rows of one colour, until there are `height`.
    pub(crate) fn reach(&mut self, height: usize, ground: [u8; 3]) {
        if height > self.height() {
            self.pixels.resize(height * self.width, ground);
        }
    }

    /// How many rows there are.
    pub(crate) fn height(&self) -> usize {
        self.pixels.len() / self.width.max(1)
    }

    /// Fills a rectangle.
    pub(crate) fn fill(&mut self, [x, y, width, height]: [usize; 4], colour: [u8; 3]) {
        let (from, to) = (x.min(self.width), (x + width).min(self.width));
        for row in y..(y + height).min(self.height()) {
            self.pixels[row * self.width + from..row * self.width + to].fill(colour);
        }
    }

    /// Writes a line of text.
    pub(crate) fn text(
        &mut self,
        (x, y): (i32, i32),
        anchor: Anchor,
        letters: Letters,
        colour: [u8; 3],
        text: &str,
    ) {
        let [red, green, blue] = colour;
        let character = MonoTextStyle::new(letters.font(), Rgb888::new(red, green, blue));
        let (alignment, baseline) = match anchor {
            Anchor::Top => (Alignment::Left, Baseline::Top),
            Anchor::Start => (Alignment::Left, Baseline::Alphabetic),
            Anchor::Middle => (Alignment::Center, Baseline::Alphabetic),
            Anchor::End => (Alignment::Right, Baseline::Alphabetic),
        };
        let style = TextStyleBuilder::new().alignment(alignment).baseline(baseline).build();
        let Ok(_) = Text::with_text_style(text, Point::new(x, y), character, style).draw(self);
    }

    /// What is drawn, as a PNG.
    ///
    /// # Panics
    /// Where it has no pixel.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height() as u32);
        encoder.set_color(png::ColorType::Rgb);
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
        Size::new(self.width as u32, self.height() as u32)
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
                self.fill([x, y, 1, 1], [colour.r(), colour.g(), colour.b()]);
            }
        }
        Ok(())
    }
}
