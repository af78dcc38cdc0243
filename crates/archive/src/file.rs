//! The Parquet files of archives.

use parquet::errors::ParquetError;

use crate::rows::Value;
use crate::schema::{SCHEMA, Table};
use crate::table_writer::TableWriter;

/// Returns a file with these rows of a table.
pub(crate) fn of(table: &Table, rows: &[Vec<Value<'_>>]) -> Result<Vec<u8>, ParquetError> {
    let mut bytes = Vec::new();
    let columns = table.all_columns().copied();
    let mut file = TableWriter::new(&mut bytes, table.name, columns, ("rbloat.schema", SCHEMA))?;
    for (value, column) in rows.iter().flat_map(|row| row.iter().zip(table.all_columns())) {
        file.value(value, column.kind)?;
    }
    file.finish()?;
    Ok(bytes)
}
