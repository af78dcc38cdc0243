/* The methods that fill a table: from a result of libpq, or from an array of arrays. */
#include "cells.h"

#include <ruby/encoding.h>
#include <stdlib.h>
#include <string.h>

/* Appends all strings of an array, which may contain nil. */
static bool append_all(rbloat_table *table, VALUE strings)
{
    for (long index = 0; index < RARRAY_LEN(strings); index++) {
        VALUE string = RARRAY_AREF(strings, index);
        const char *bytes = NIL_P(string) ? NULL : RSTRING_PTR(string);
        if (!rbloat_table_append(table, bytes, NIL_P(string) ? 0 : (size_t)RSTRING_LEN(string))) return false;
    }
    return true;
}

/* Returns the names as strings, in an array of our own. */
static VALUE strings_of(VALUE names)
{
    VALUE strings = rb_ary_new_capa(RARRAY_LEN(names));
    for (long index = 0; index < RARRAY_LEN(names); index++) {
        VALUE name = RARRAY_AREF(names, index);
        if (SYMBOL_P(name)) name = rb_sym2str(name);
        Check_Type(name, T_STRING);
        rb_ary_push(strings, name);
    }
    return strings;
}

/* Returns the index of the encoding of the names. The string of a Symbol is US-ASCII if it can be. */
static int encoding_of(VALUE names)
{
    for (long index = 0; index < RARRAY_LEN(names); index++) {
        if (rb_enc_str_coderange(RARRAY_AREF(names, index)) != ENC_CODERANGE_7BIT) {
            return rb_enc_get_index(RARRAY_AREF(names, index));
        }
    }
    return RARRAY_LEN(names) > 0 ? rb_enc_get_index(RARRAY_AREF(names, 0)) : rb_utf8_encindex();
}

static size_t bytes_in(VALUE strings)
{
    size_t bytes = 0;
    for (long index = 0; index < RARRAY_LEN(strings); index++) {
        VALUE string = RARRAY_AREF(strings, index);
        if (NIL_P(string)) continue;
        Check_Type(string, T_STRING);
        bytes += (size_t)RSTRING_LEN(string);
    }
    return bytes;
}

static void check_lengths(VALUE names, VALUE encodings, VALUE types, VALUE decoders)
{
    long count = RARRAY_LEN(names);
    if (RARRAY_LEN(encodings) != count || RARRAY_LEN(types) != count ||
        (!NIL_P(decoders) && RARRAY_LEN(decoders) != count)) {
        rb_raise(rb_eArgError, "there must be as many encodings, types and decoders as names");
    }
}

/* native_columns(names, encodings, types, decoders): defines the columns. The names are Strings or Symbols. `decoders` is
   nil or an array. */
static VALUE native_columns(VALUE self, VALUE names, VALUE encodings, VALUE types, VALUE decoders)
{
    rb_check_frozen(self);
    Check_Type(names, T_ARRAY);
    Check_Type(encodings, T_ARRAY);
    Check_Type(types, T_ARRAY);
    if (!NIL_P(decoders)) Check_Type(decoders, T_ARRAY);
    check_lengths(names, encodings, types, decoders);
    size_t columns = (size_t)RARRAY_LEN(names);
    /* Conversions may run Ruby code that changes the arrays or this table. So all other checks come after them. */
    VALUE encoding_buffer, type_buffer;
    int *encoding = ALLOCV_N(int, encoding_buffer, columns + 1);
    unsigned int *type = ALLOCV_N(unsigned int, type_buffer, columns + 1);
    for (size_t column = 0; column < columns; column++) {
        encoding[column] = rb_enc_to_index(rb_to_encoding(rb_ary_entry(encodings, (long)column)));
        type[column] = NUM2UINT(rb_ary_entry(types, (long)column));
    }
    check_lengths(names, encodings, types, decoders);
    if ((size_t)RARRAY_LEN(names) != columns) rb_raise(rb_eArgError, "the columns changed while they were read");
    VALUE strings = strings_of(names);
    size_t bytes = bytes_in(strings);
    rbloat_cells *cells = rbloat_cells_of(self);
    if (cells->cleared) rb_raise(rb_eArgError, "the result set was cleared");
    if (cells->encoding) rb_raise(rb_eArgError, "the columns are known already");
    /* One more than needed, so that these are not NULL in a table without columns. */
    cells->encoding = calloc(columns + 1, sizeof(*cells->encoding));
    cells->type = calloc(columns + 1, sizeof(*cells->type));
    if (!NIL_P(decoders)) cells->decoder = calloc(columns + 1, sizeof(*cells->decoder));
    if (!cells->encoding || !cells->type || (!NIL_P(decoders) && !cells->decoder) ||
        !rbloat_table_open(&cells->names, columns, bytes) || !append_all(&cells->names, strings)) {
        rbloat_cells_no_memory(cells);
    }
    memcpy(cells->encoding, encoding, columns * sizeof(*encoding));
    memcpy(cells->type, type, columns * sizeof(*type));
    for (size_t column = 0; cells->decoder && column < columns; column++) {
        cells->decoder[column] = RARRAY_AREF(decoders, (long)column);
    }
    cells->columns = columns;
    cells->symbols = columns > 0 && SYMBOL_P(RARRAY_AREF(names, 0));
    cells->name_encoding = encoding_of(strings);
    ALLOCV_END(encoding_buffer);
    ALLOCV_END(type_buffer);
    return Qnil;
}

/* native_keep(decoders): sets the object that keeps the decoders alive. */
static VALUE native_keep(VALUE self, VALUE decoders)
{
    rb_check_frozen(self);
    rbloat_cells_filled(self)->decoders = decoders;
    return Qnil;
}

/* The beginning of the struct of a PG::Result since pg 1.1. Earlier versions give it no type. */
typedef struct {
    void *pgresult; /* NULL if it was cleared */
    VALUE connection, type_map;
} pg_result;

/*
 * The struct of a PG::Result, which is private to the gem pg. It is read only if its type has the name that pg uses, and
 * accepted only if it contains the type map that PG::Result#type_map returns.
 */
static pg_result *struct_of(VALUE result)
{
    const char *type = RB_TYPE_P(result, T_DATA) && RTYPEDDATA_P(result) ? RTYPEDDATA_TYPE(result)->wrap_struct_name : "";
    if (strcmp(type, "PG::Result") != 0 && strcmp(type, "pg") != 0) {
        rb_raise(rb_eTypeError, "wrong argument type %s (expected PG::Result)", rb_obj_classname(result));
    }
    VALUE type_map = rb_funcall(result, rb_intern("type_map"), 0);
    pg_result *data = rb_check_typeddata(result, RTYPEDDATA_TYPE(result));
    if (!data || data->type_map != type_map) {
        rb_raise(rb_eTypeError, "cannot read the PG::Result: unknown layout in this version of pg");
    }
    return data;
}

/* True if the cell of a result has the bytes of a sample [row, column, bytes or nil]. Runs no Ruby code. */
static bool agrees(const rbloat_libpq *libpq, const void *result, VALUE sample)
{
    if (!RB_TYPE_P(sample, T_ARRAY) || RARRAY_LEN(sample) != 3) return false;
    VALUE row = RARRAY_AREF(sample, 0), column = RARRAY_AREF(sample, 1), expected = RARRAY_AREF(sample, 2);
    if (!FIXNUM_P(row) || FIX2LONG(row) < 0 || FIX2LONG(row) >= libpq->rows(result)) return false;
    if (!FIXNUM_P(column) || FIX2LONG(column) < 0 || FIX2LONG(column) >= libpq->columns(result)) return false;
    size_t length;
    const char *bytes = rbloat_pgresult_cell(libpq, result, (size_t)FIX2LONG(row), (size_t)FIX2LONG(column), &length);
    if (!bytes || !RB_TYPE_P(expected, T_STRING)) return !bytes && NIL_P(expected);
    return length == (size_t)RSTRING_LEN(expected) && memcmp(bytes, RSTRING_PTR(expected), length) == 0;
}

/*
 * Returns the struct of a PG::Result that the table can read, and finds its libpq. Returns NULL if that was not found, or the
 * result was cleared. The extension reads the result without pg, so `samples` has cells that pg read: both must agree.
 */
static pg_result *readable(rbloat_cells *cells, VALUE result, VALUE row_count, VALUE samples, rbloat_libpq *libpq)
{
    int rows = NUM2INT(row_count);
    Check_Type(samples, T_ARRAY);
    pg_result *data = struct_of(result);
    rbloat_cells_check(cells);
    if (cells->table.block || cells->result) rb_raise(rb_eArgError, "the rows are known already");
    if (!data->pgresult || !rbloat_find_libpq(libpq, RTYPEDDATA_TYPE(result))) return NULL;
    bool same = libpq->rows(data->pgresult) == rows && libpq->columns(data->pgresult) == (int)cells->columns;
    for (long index = 0; same && index < RARRAY_LEN(samples); index++) {
        same = agrees(libpq, data->pgresult, RARRAY_AREF(samples, index));
    }
    if (!same) rb_raise(rb_eTypeError, "cannot read the PG::Result: pg and libpq disagree on its cells");
    return data;
}

static void set_rows(rbloat_cells *cells, size_t rows)
{
    cells->rows = rows;
    rbloat_cells_account(cells, rbloat_cells_size(cells));
}

/*
 * native_take(result, rows, samples): takes over the PGresult of a PG::Result, which is cleared. Returns false if that is
 * not possible. All errors come before the first change. Ruby runs no other code during the changes, so no thread, signal
 * or exception can find a result that is neither whole nor cleared.
 */
static VALUE native_take(VALUE self, VALUE result, VALUE row_count, VALUE samples)
{
    rb_check_frozen(self);
    rb_check_frozen(result);
    rbloat_cells *cells = rbloat_cells_of(self);
    rbloat_libpq libpq;
    pg_result *data = readable(cells, result, row_count, samples, &libpq);
    if (!data) return Qfalse;
    /* pg reports to the GC what this function returns, and does not correct that for a result without PGresult. */
    size_t (*size)(const void *) = RTYPEDDATA_TYPE(result)->function.dsize;
    size_t reported = size ? size(data) : 0;
    cells->libpq = libpq;
    cells->result = data->pgresult;
    data->pgresult = NULL;
    set_rows(cells, (size_t)libpq.rows(cells->result));
#ifdef HAVE_RB_GC_ADJUST_MEMORY_USAGE
    rb_gc_adjust_memory_usage(-(ssize_t)reported);
#endif
    return Qtrue;
}

/* native_copy(result, rows, samples): copies a PG::Result with the functions of libpq. Returns false if that is not
   possible. */
static VALUE native_copy(VALUE self, VALUE result, VALUE row_count, VALUE samples)
{
    rb_check_frozen(self);
    rbloat_cells *cells = rbloat_cells_of(self);
    rbloat_libpq libpq;
    pg_result *data = readable(cells, result, row_count, samples, &libpq);
    if (!data || !rbloat_copy_pgresult(&libpq, &cells->table, data->pgresult)) return Qfalse;
    set_rows(cells, (size_t)libpq.rows(data->pgresult));
    return Qtrue;
}

/* Copies the cells of a result of libpq into a table. */
static VALUE cells_shrink(VALUE self)
{
    rbloat_cells *cells = rbloat_cells_filled(self);
    if (!cells->result) return self;
    if (!rbloat_copy_pgresult(&cells->libpq, &cells->table, cells->result)) rb_memerror();
    cells->libpq.clear(cells->result);
    cells->result = NULL;
    rbloat_cells_account(cells, rbloat_cells_size(cells));
    return self;
}

/* native_rows(rows): fills the table from an array of arrays of strings and nils. */
static VALUE native_rows(VALUE self, VALUE rows)
{
    rbloat_cells *cells = rbloat_cells_filled(self);
    rb_check_frozen(self);
    Check_Type(rows, T_ARRAY);
    if (cells->table.block || cells->result) rb_raise(rb_eArgError, "the rows are known already");
    size_t bytes = 0;
    for (long row = 0; row < RARRAY_LEN(rows); row++) {
        VALUE strings = RARRAY_AREF(rows, row);
        Check_Type(strings, T_ARRAY);
        if ((size_t)RARRAY_LEN(strings) != cells->columns) rb_raise(rb_eArgError, "row %ld has another length", row);
        bytes += bytes_in(strings);
    }
    size_t count = (size_t)RARRAY_LEN(rows);
    if (!rbloat_table_open(&cells->table, count * cells->columns, bytes)) rbloat_cells_no_memory(cells);
    for (long row = 0; row < RARRAY_LEN(rows); row++) {
        if (!append_all(&cells->table, RARRAY_AREF(rows, row))) rbloat_cells_no_memory(cells);
    }
    set_rows(cells, count);
    return Qnil;
}

void rbloat_init_fill(VALUE cells)
{
    rb_define_private_method(cells, "native_columns", native_columns, 4);
    rb_define_private_method(cells, "native_keep", native_keep, 1);
    rb_define_private_method(cells, "native_take", native_take, 3);
    rb_define_private_method(cells, "native_copy", native_copy, 3);
    rb_define_private_method(cells, "native_rows", native_rows, 1);
    rb_define_method(cells, "shrink", cells_shrink, 0);
}
