//! Parquet files, written column by column.

use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use crate::rows::Value;
use crate::schema::{Column, Kind, SCHEMA, Table};

/// The maximum number of rows in a row group.
const ROW_GROUP: usize = 1 << 17;

/// Returns a file with these rows of a table.
pub(crate) fn of(table: &Table, rows: &[Vec<Value<'_>>]) -> Result<Vec<u8>, ParquetError> {
    let fields = table.all_columns().map(field).collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder(table.name).with_fields(fields).build()?;
    let pair = |key: &str, value: String| KeyValue::new(key.to_owned(), value);
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by(concat!("rbloat ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(vec![
            pair("rbloat.schema", SCHEMA.to_string()),
            pair("rbloat.table", table.name.to_owned()),
        ]))
        // Statistics of pages and their offsets would make small files half as large again.
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .build();
    let mut bytes = Vec::new();
    let mut file = SerializedFileWriter::new(&mut bytes, Arc::new(schema), Arc::new(properties))?;
    for rows in rows.chunks(ROW_GROUP) {
        let mut group = file.next_row_group()?;
        for (index, column) in table.all_columns().enumerate() {
            let mut writer = group.next_column()?.expect("there is one for each column");
            write(writer.untyped(), column, rows.iter().map(|row| &row[index]))?;
            writer.close()?;
        }
        group.close()?;
    }
    file.close()?;
    Ok(bytes)
}

fn field(column: &Column) -> Result<Arc<Type>, ParquetError> {
    let (physical, logical) = match column.kind {
        Kind::Integer => (Physical::INT64, None),
        Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Kind::Flag => (Physical::BOOLEAN, None),
    };
    let repetition = if column.optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    let field = Type::primitive_type_builder(column.name, physical);
    Ok(Arc::new(field.with_logical_type(logical).with_repetition(repetition).build()?))
}

fn write<'a>(
    writer: &mut ColumnWriter<'_>,
    column: &Column,
    values: impl Iterator<Item = &'a Value<'a>> + Clone,
) -> Result<(), ParquetError> {
    let is_there = |value: &Value<'_>| i16::from(!matches!(value, Value::Null));
    let levels: Option<Vec<i16>> = column.optional.then(|| values.clone().map(is_there).collect());
    let levels = levels.as_deref();
    match writer {
        ColumnWriter::Int64ColumnWriter(writer) => {
            let integer = |value: &Value<'_>| match value {
                Value::Integer(number) => Some(*number),
                _ => None,
            };
            let values: Vec<i64> = values.filter_map(integer).collect();
            writer.write_batch(&values, levels, None)?;
        }
        ColumnWriter::ByteArrayColumnWriter(writer) => {
            let text = |value: &Value<'_>| match value {
                Value::Text(text) => Some(ByteArray::from(text.as_ref())),
                _ => None,
            };
            let values: Vec<ByteArray> = values.filter_map(text).collect();
            writer.write_batch(&values, levels, None)?;
        }
        ColumnWriter::BoolColumnWriter(writer) => {
            let flag = |value: &Value<'_>| match value {
                Value::Flag(flag) => Some(*flag),
                _ => None,
            };
            let values: Vec<bool> = values.filter_map(flag).collect();
            writer.write_batch(&values, levels, None)?;
        }
        _ => unreachable!("columns have three types"),
    }
    Ok(())
}
