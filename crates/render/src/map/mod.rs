//! The map of a process: all pages of its memory, as an HTML page and as a PNG.

mod html;
mod overview;
mod png;

use formats::{MadePages, SharedPages};

pub use html::map_html;
pub use png::map_png;

/// The colours of resident pages, beside those by use and by owner.
#[derive(Debug, Clone, Copy)]
pub enum PageColours<'a> {
    /// None.
    Use,
    /// By the code that touched them first.
    Code(&'a MadePages),
    /// By the processes of the family that share them.
    Sharing(&'a SharedPages),
}
