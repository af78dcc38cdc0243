//! A page in a headless browser, in which tests click and type as a user does.

mod chromium;
mod firefox;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use chromium::Chromium;
use firefox::Firefox;

/// A page in a headless browser, which ends when this value is dropped.
pub struct Browser(Program);

enum Program {
    Chromium(Chromium),
    Firefox(Firefox),
}

/// Calls a method of the program.
macro_rules! program {
    ($browser:expr, $method:ident($($argument:expr),*)) => {
        match &mut $browser.0 {
            Program::Chromium(chromium) => chromium.$method($($argument),*),
            Program::Firefox(firefox) => firefox.$method($($argument),*),
        }
    };
}

impl Browser {
    /// Opens the file at `path` in Chromium, in a window of `width` by `height` pixels, at `anchor` (`#` and a name) if
    /// it is not empty.
    ///
    /// # Panics
    /// If there is no Chromium, or it does not answer.
    #[must_use]
    pub fn open(path: &Path, anchor: &str, window: [u32; 2]) -> Self {
        Self(Program::Chromium(Chromium::open(&url(path, anchor), window)))
    }

    /// Opens the file in Chromium and, in `make nightly`, in Firefox, one after the other.
    pub fn each(path: &Path, anchor: &str, window: [u32; 2]) -> impl Iterator<Item = Self> {
        let url = url(path, anchor);
        let firefox = move || {
            let firefox = crate::is_nightly("Firefox").then(|| Firefox::open(&url, window))??;
            Some(Self(Program::Firefox(firefox)))
        };
        std::iter::once(Self::open(path, anchor, window))
            .chain(std::iter::once_with(firefox).flatten())
    }

    /// The value of a JavaScript expression; of a promise, the value that it resolves to.
    ///
    /// # Panics
    /// If it throws.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        program!(self, evaluate(expression))
    }

    /// Returns when the expression is true.
    pub fn wait_until(&mut self, expression: &str) {
        // This polls, because code that waits in a page is lost when another page replaces it.
        while self.evaluate(expression) != true {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Clicks at a point of the window.
    pub fn click(&mut self, x: f64, y: f64) {
        program!(self, click(x, y));
    }

    /// Presses the button of the mouse at one point of the window, and releases it at another one.
    pub fn drag(&mut self, from: [f64; 2], to: [f64; 2]) {
        program!(self, drag(from, to));
    }

    /// Presses a key, given by its name in JavaScript's events.
    pub fn press(&mut self, key: &str) {
        program!(self, press(key));
    }

    /// Types text where the focus is.
    pub fn write(&mut self, text: &str) {
        program!(self, write(text));
    }

    /// A picture of the window, as a PNG in base64.
    pub fn screenshot(&mut self) -> String {
        program!(self, screenshot())
    }

    /// Loads the page again for a user who prefers dark colours.
    pub fn prefer_dark(&mut self) {
        program!(self, prefer_dark());
    }

    /// The roles and names that the page has for assistive technology; `None` in Firefox, which does not tell them.
    pub fn accessibility_tree(&mut self) -> Option<Vec<(String, String)>> {
        match &mut self.0 {
            Program::Chromium(chromium) => Some(chromium.accessibility_tree()),
            Program::Firefox(_) => None,
        }
    }
}

fn url(path: &Path, anchor: &str) -> String {
    format!("file://{}{anchor}", path.display())
}
