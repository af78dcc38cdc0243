/* The methods that read cells, by row and by column. */
#include "cells.h"

#include <ruby/encoding.h>
#include <string.h>

static ID id_decode;

/* The bytes of a cell, or NULL if it is nil. */
static inline const char *cell_at(const rbloat_cells *cells, size_t row, size_t column, size_t *length)
{
    if (cells->result) return rbloat_pgresult_cell(&cells->libpq, cells->result, row, column, length);
    return rbloat_table_cell(&cells->table, row * cells->columns + column, length);
}

static inline VALUE new_string(const char *bytes, size_t length, int encoding)
{
    if (!bytes) return Qnil;
    VALUE string = rb_str_new(bytes, (long)length);
    /* Faster than rb_enc_associate_index, whose checks a new string does not need. */
    if (encoding < RUBY_ENCODING_INLINE_MAX) {
        RB_ENCODING_SET_INLINED(string, encoding);
    } else {
        rb_enc_associate_index(string, encoding);
    }
    return string;
}

static inline VALUE string_at(const rbloat_cells *cells, size_t row, size_t column)
{
    size_t length;
    const char *bytes = cell_at(cells, row, column, &length);
    return new_string(bytes, length, cells->encoding[column]);
}

static VALUE value_at(const rbloat_cells *cells, size_t row, size_t column)
{
    rbloat_cells_check(cells);
    VALUE string = string_at(cells, row, column);
    if (!cells->decoder || NIL_P(cells->decoder[column]) || NIL_P(string)) return string;
    return rb_funcall(cells->decoder[column], id_decode, 3, string, SIZET2NUM(row), SIZET2NUM(column));
}

static size_t row_at(const rbloat_cells *cells, VALUE index)
{
    long row = NUM2LONG(index);
    rbloat_cells_check(cells);
    if (row < 0 || (size_t)row >= cells->rows) {
        rb_raise(rb_eIndexError, "row %ld is outside of the %lu rows", row, (unsigned long)cells->rows);
    }
    return (size_t)row;
}

/* Returns the index of the first column with this name, or -1. */
static long find_column(const rbloat_cells *cells, VALUE name)
{
    if (SYMBOL_P(name)) name = rb_sym2str(name);
    StringValue(name);
    rbloat_cells_check(cells);
    for (size_t column = 0; column < cells->columns; column++) {
        size_t length;
        const char *bytes = rbloat_table_cell(&cells->names, column, &length);
        if (bytes && length == (size_t)RSTRING_LEN(name) && memcmp(bytes, RSTRING_PTR(name), length) == 0) {
            return (long)column;
        }
    }
    return -1;
}

static size_t column_at(const rbloat_cells *cells, VALUE index)
{
    if (!RB_INTEGER_TYPE_P(index)) {
        long column = find_column(cells, index);
        if (column < 0) rb_raise(rb_eIndexError, "there is no column %+" PRIsVALUE, index);
        return (size_t)column;
    }
    long column = NUM2LONG(index);
    if (column < 0 || (size_t)column >= cells->columns) {
        rb_raise(rb_eIndexError, "column %ld is outside of the %lu columns", column, (unsigned long)cells->columns);
    }
    return (size_t)column;
}

static VALUE cells_get(VALUE self, VALUE row_index, VALUE column_index)
{
    const rbloat_cells *cells = rbloat_cells_filled(self);
    size_t row = row_at(cells, row_index), column = column_at(cells, column_index);
    return value_at(cells, row, column);
}

/* The string of a cell, not decoded. */
static VALUE cells_raw(VALUE self, VALUE row_index, VALUE column_index)
{
    const rbloat_cells *cells = rbloat_cells_filled(self);
    size_t row = row_at(cells, row_index), column = column_at(cells, column_index);
    return string_at(cells, row, column);
}

static VALUE cells_null_p(VALUE self, VALUE row_index, VALUE column_index)
{
    const rbloat_cells *cells = rbloat_cells_filled(self);
    size_t row = row_at(cells, row_index), column = column_at(cells, column_index), length;
    return cell_at(cells, row, column, &length) ? Qfalse : Qtrue;
}

/* Fetches `length` bytes from `begin` on into the caches of the processor, but no more than a page. Any address is allowed. */
static inline void prefetch(const char *begin, size_t length)
{
    enum { CACHE_LINE = 64, MOST = 4096 };
    for (size_t offset = 0; offset < length && offset < MOST; offset += CACHE_LINE) __builtin_prefetch(begin + offset);
}

/* Returns all values of a row. Raises an error if a decoder clears the table. */
static VALUE row_values(const rbloat_cells *cells, size_t row)
{
    /* Appending to an array takes as long as creating a short string. So an array of the usual length is created at once. */
    enum { USUAL = 32 };
    VALUE first[USUAL] = {Qnil};
    size_t column = 0, columns = cells->columns, usual = columns < USUAL ? columns : USUAL;
    if (cells->decoder) {
        for (; column < usual; column++) first[column] = value_at(cells, row, column);
    } else {
        const char *bytes = NULL;
        size_t length = 0, total = 0;
        for (; column < usual; column++) {
            bytes = cell_at(cells, row, column, &length);
            first[column] = new_string(bytes, length, cells->encoding[column]);
            total += length;
        }
        /* The next row usually follows in memory, and is in no cache yet. */
        if (bytes) prefetch(bytes + length, total + usual);
    }
    VALUE values = rb_ary_new_from_values((long)column, first);
    for (; column < columns; column++) rb_ary_push(values, value_at(cells, row, column));
    return values;
}

static VALUE cells_row_values(VALUE self, VALUE index)
{
    const rbloat_cells *cells = rbloat_cells_filled(self);
    return row_values(cells, row_at(cells, index));
}

static VALUE cells_size_of_each(VALUE self, VALUE arguments, VALUE enumerator)
{
    return SIZET2NUM(rbloat_cells_filled(self)->rows);
}

static VALUE cells_each_row(VALUE self)
{
    RETURN_SIZED_ENUMERATOR(self, 0, NULL, cells_size_of_each);
    const rbloat_cells *cells = rbloat_cells_filled(self);
    for (size_t row = 0; row < cells->rows; row++) {
        rb_yield(row_values(cells, row));
        rbloat_cells_check(cells);
    }
    return self;
}

static VALUE cells_column_values(VALUE self, VALUE index)
{
    const rbloat_cells *cells = rbloat_cells_filled(self);
    size_t column = column_at(cells, index), rows = cells->rows;
    VALUE values = rb_ary_new_capa((long)rows);
    for (size_t row = 0; row < rows; row++) rb_ary_push(values, value_at(cells, row, column));
    return values;
}

static VALUE cells_column_index(VALUE self, VALUE name)
{
    long column = find_column(rbloat_cells_filled(self), name);
    return column < 0 ? Qnil : LONG2NUM(column);
}

static VALUE cells_column_name(VALUE self, VALUE index)
{
    const rbloat_cells *cells = rbloat_cells_filled(self);
    size_t length;
    const char *bytes = rbloat_table_cell(&cells->names, column_at(cells, index), &length);
    VALUE name = new_string(bytes, length, cells->name_encoding);
    return cells->symbols ? rb_str_intern(name) : name;
}

static VALUE cells_column_type(VALUE self, VALUE index)
{
    const rbloat_cells *cells = rbloat_cells_filled(self);
    size_t column = column_at(cells, index);
    return UINT2NUM(cells->type[column]);
}

static VALUE cells_column_encoding(VALUE self, VALUE index)
{
    const rbloat_cells *cells = rbloat_cells_filled(self);
    size_t column = column_at(cells, index);
    return rb_enc_from_encoding(rb_enc_from_index(cells->encoding[column]));
}

void rbloat_init_read(VALUE cells)
{
    id_decode = rb_intern("decode");
    rb_define_private_method(cells, "raw", cells_raw, 2);
    rb_define_method(cells, "get", cells_get, 2);
    rb_define_method(cells, "null?", cells_null_p, 2);
    rb_define_method(cells, "row_values", cells_row_values, 1);
    rb_define_method(cells, "each_row", cells_each_row, 0);
    rb_define_method(cells, "column_values", cells_column_values, 1);
    rb_define_method(cells, "column_index", cells_column_index, 1);
    rb_define_method(cells, "column_name", cells_column_name, 1);
    rb_define_method(cells, "column_type", cells_column_type, 1);
    rb_define_method(cells, "column_encoding", cells_column_encoding, 1);
}
