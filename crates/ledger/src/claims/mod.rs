//! The claims on memory, and their booking: malloc claims its blocks, Ruby its slots, threads and fibers their
//! stacks. Claims are laid over each other and then booked against the resident pages.

mod booking;
mod bookings;
mod heap;
mod overlay;
mod ruby;
mod span;

pub(crate) use booking::Booking;
use booking::{book, lies_in};
pub(crate) use bookings::book_all;
use heap::heap_spans;
use overlay::Overlay;
use ruby::ruby_spans;
pub(crate) use span::Span;
