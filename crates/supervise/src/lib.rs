//! Programs that rbloat starts and watches, and processes that it records.

mod error;
mod load;
mod orphans;
mod pace;
mod program;
mod recorder;
mod signals;
mod work;

pub use error::Error;
pub use load::{LoadError, parse_load};
pub use orphans::Orphans;
pub use recorder::{Journal, Recorder, RecorderOptions, Watcher, unix_ms};
pub use signals::{Event, Signals};
pub use work::{Loaded, Until, Used, Work};
