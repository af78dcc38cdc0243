//! The heap of one process as data: in the format of `ObjectSpace.dump_all`, and as Parquet tables. And what two
//! such files have apart.

mod compare;
mod gzip;
mod line;
mod ndjson;
mod tables;

pub use compare::{DumpError, Input, OpenDump, compare_dumps};
pub use gzip::write_compressed_lines;
pub use ndjson::{Counts, write_lines};
pub use tables::{DUMP_QUESTIONS, DUMP_SCHEMA, DUMP_TABLES, write_tables};
