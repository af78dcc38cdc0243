//! Parquet files that are written row by row, and kept in memory only as far as a row group goes.

use std::io::Write;
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
use crate::schema::{Column, Kind};

/// The maximum number of rows in a row group, and of values: a table with many columns has smaller groups, since they are kept in memory.
const ROW_GROUP: usize = 1 << 17;
const VALUES: usize = 1 << 20;

/// A table that is being written.
pub(crate) struct TableWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    columns: Vec<Buffer>,
    /// The column of the next value, and the number of whole rows.
    next: usize,
    rows: usize,
}

/// The values of a column in a row group.
struct Buffer {
    column: Column,
    values: Values,
    /// For each row 1 if it has a value; only of columns whose values may be missing.
    levels: Vec<i16>,
}

enum Values {
    Integers(Vec<i64>),
    Texts(Vec<ByteArray>),
    Flags(Vec<bool>),
}

impl<W: Write + Send> TableWriter<W> {
    /// Begins a file with this version of its schema.
    pub(crate) fn new(
        out: W,
        name: &str,
        columns: impl Iterator<Item = Column> + Clone,
        schema: (&str, u32),
    ) -> Result<Self, ParquetError> {
        let fields = columns.clone().map(field).collect::<Result<_, _>>()?;
        let fields = Type::group_type_builder(name).with_fields(fields).build()?;
        let pair = |key: &str, value: String| KeyValue::new(key.to_owned(), value);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_created_by(concat!("rbloat ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(vec![
                pair(schema.0, schema.1.to_string()),
                pair("rbloat.table", name.to_owned()),
            ]))
            // Statistics of pages and their offsets would make small files half as large again.
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .build();
        let file = SerializedFileWriter::new(out, Arc::new(fields), Arc::new(properties))?;
        let columns = columns.map(Buffer::new).collect();
        Ok(Self { file, columns, next: 0, rows: 0 })
    }

    /// Adds the next value of a row.
    pub(crate) fn integer(&mut self, value: Option<i64>) -> Result<(), ParquetError> {
        let buffer = &mut self.columns[self.next];
        buffer.level(value.is_some());
        if let (Values::Integers(values), Some(value)) = (&mut buffer.values, value) {
            values.push(value);
        }
        self.advance()
    }

    /// As [`integer`](Self::integer).
    pub(crate) fn text(&mut self, value: Option<&str>) -> Result<(), ParquetError> {
        let buffer = &mut self.columns[self.next];
        buffer.level(value.is_some());
        if let (Values::Texts(values), Some(value)) = (&mut buffer.values, value) {
            // Many rows in a row have the same text, which they can share.
            let again = values.last().filter(|last| last.data() == value.as_bytes()).cloned();
            values.push(again.unwrap_or_else(|| ByteArray::from(value)));
        }
        self.advance()
    }

    /// As [`integer`](Self::integer).
    pub(crate) fn flag(&mut self, value: bool) -> Result<(), ParquetError> {
        let buffer = &mut self.columns[self.next];
        buffer.level(true);
        if let Values::Flags(values) = &mut buffer.values {
            values.push(value);
        }
        self.advance()
    }

    /// Adds the next value of a row, in a column of this type.
    pub(crate) fn value(&mut self, value: &Value<'_>, kind: Kind) -> Result<(), ParquetError> {
        match value {
            Value::Integer(number) => self.integer(Some(*number)),
            Value::Text(text) => self.text(Some(text)),
            Value::Flag(flag) => self.flag(*flag),
            Value::Null if kind == Kind::Text => self.text(None),
            Value::Null => self.integer(None),
        }
    }

    fn advance(&mut self) -> Result<(), ParquetError> {
        self.next += 1;
        if self.next == self.columns.len() {
            (self.next, self.rows) = (0, self.rows + 1);
            if self.rows == ROW_GROUP.min(VALUES / self.columns.len()) {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for buffer in &mut self.columns {
            let mut writer = group.next_column()?.expect("there is one for each column");
            buffer.write(writer.untyped())?;
            writer.close()?;
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }

    /// Ends the file.
    pub(crate) fn finish(mut self) -> Result<(), ParquetError> {
        if self.rows > 0 {
            self.flush()?;
        }
        self.file.close()?;
        Ok(())
    }
}

impl Buffer {
    fn new(column: Column) -> Self {
        let values = match column.kind {
            Kind::Integer => Values::Integers(Vec::new()),
            Kind::Text => Values::Texts(Vec::new()),
            Kind::Flag => Values::Flags(Vec::new()),
        };
        Self { column, values, levels: Vec::new() }
    }

    fn level(&mut self, is_there: bool) {
        if self.column.optional {
            self.levels.push(i16::from(is_there));
        }
    }

    fn write(&mut self, writer: &mut ColumnWriter<'_>) -> Result<(), ParquetError> {
        let levels = self.column.optional.then_some(&self.levels[..]);
        match (writer, &mut self.values) {
            (ColumnWriter::Int64ColumnWriter(writer), Values::Integers(values)) => {
                writer.write_batch(values, levels, None)?;
                values.clear();
            }
            (ColumnWriter::ByteArrayColumnWriter(writer), Values::Texts(values)) => {
                writer.write_batch(values, levels, None)?;
                values.clear();
            }
            (ColumnWriter::BoolColumnWriter(writer), Values::Flags(values)) => {
                writer.write_batch(values, levels, None)?;
                values.clear();
            }
            _ => unreachable!("a column has one type"),
        }
        self.levels.clear();
        Ok(())
    }
}

fn field(column: Column) -> Result<Arc<Type>, ParquetError> {
    let (physical, logical) = match column.kind {
        Kind::Integer => (Physical::INT64, None),
        Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Kind::Flag => (Physical::BOOLEAN, None),
    };
    let repetition = if column.optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    let field = Type::primitive_type_builder(column.name, physical);
    Ok(Arc::new(field.with_logical_type(logical).with_repetition(repetition).build()?))
}
