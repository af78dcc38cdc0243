//! The claims on memory, and their booking: malloc claims its blocks, Ruby its slots, threads and fibers their
//! stacks. Claims are laid over each other and then booked against the resident pages.

mod booking;
mod heap;
mod overlay;
mod ruby;
mod span;

pub(crate) use booking::{Booking, book};
pub(crate) use heap::heap_spans;
pub(crate) use overlay::Overlay;
pub(crate) use ruby::ruby_spans;
pub(crate) use span::Span;
