//! mimalloc's heap: v2 and v3.
//!
//! Memory is divided into slices of 64 KiB. One or more slices are a *page*: blocks of one size, and a structure (`mi_page_t`) with
//! lists of free blocks and the number of blocks in use. v3 has a map from each slice to its page; v2 has segments that begin
//! with their pages' structures. No block has a header.
//!
//! Nothing of this has a symbol, and each release moves the members of the structures. So no offset is a constant: the map is what
//! leads to pages, and a layout of pages is accepted if, in every page, the blocks on its lists and those in use add up to the
//! blocks that it has (`PageLayout`).

mod arenas;
mod error;
mod page_layout;
mod page_map;
mod pages;
mod segments;
mod walk;

pub(crate) use error::Error;
pub(crate) use walk::walk;
