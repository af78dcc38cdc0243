//! Layouts of CRuby's structures: derived from facts that hold for every Ruby, and checked before use.

pub(crate) mod array;
pub(crate) mod bitmaps;
pub(crate) mod catch_table;
pub(crate) mod class_layout;
pub(crate) mod class_names;
pub(crate) mod class_structures;
pub(crate) mod constant_path;
pub(crate) mod context;
pub(crate) mod embedded;
pub(crate) mod heap_layout;
pub(crate) mod imemo;
pub(crate) mod interpreter_lists;
pub(crate) mod io_buffers;
pub(crate) mod iseq_location;
pub(crate) mod line_tables;
pub(crate) mod object;
pub(crate) mod object_head;
pub(crate) mod object_layouts;
pub(crate) mod page_descriptor;
pub(crate) mod page_finder;
pub(crate) mod queue;
pub(crate) mod regexp;
pub(crate) mod room;
pub(crate) mod set_table;
pub(crate) mod shape_tree;
pub(crate) mod st_table;
