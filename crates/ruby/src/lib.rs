//! CRuby's object space of another process: heap pages, slots, types and class names as plain
//! data, walked out of an image.
//!
//! [`find`] tells whether a process is a Ruby, and which; [`read()`] yields its [`ObjectSpace`], or
//! an [`Error`] that says why nothing can be known of it.
//!
//! No layout is looked up by version. What is read is derived from the class Object alone, whose
//! address C extensions need and every Ruby exports, and it has to pass every [`Check`]: a layout
//! that is wrong ends as an error, never as other numbers. The few things that cannot be derived
//! are constants beside the code that uses them, with the place in Ruby's source that they are from.
//!
//! ```no_run
//! let frozen = capture::freeze(4242, capture::PATIENCE).unwrap();
//! let space = ruby::read(frozen.image()).unwrap();
//! for (kind, slots) in space.counts() {
//!     println!("{slots} {kind}");
//! }
//! ```

mod ancestry;
mod bitmaps;
mod classes;
mod contents;
mod context;
mod data_types;
mod descriptor;
mod error;
mod fibers;
mod hash_tables;
mod imemo;
mod interpreter;
mod io_buffers;
mod jit;
mod layouts;
mod links;
mod named_roots;
mod names;
mod object;
mod object_space;
mod page;
mod page_cache;
mod page_index;
mod pages;
mod read;
mod references;
mod shapes;
mod slots;
mod symbols;
mod tables;
mod territory;
#[cfg(test)]
mod tests;
mod transient;
mod word;

pub use contents::{Content, Form};
pub use data_types::{DataObjects, DataType};
pub use error::{Check, Error, Failure};
pub use hash_tables::HashTable;
pub use interpreter::{Interpreter, find, find_in};
pub use links::Links;
pub use named_roots::{NamedRoot, RootKind, named_roots};
pub use object_space::{Class, HeapPage, ObjectSpace, References, Slot, SlotState, SlotType};
pub use read::read;
