/*
 * Rbloat::Cells: a table of strings that is one Ruby object, however many cells it has. A cell becomes a String, or the
 * value that its decoder returns, each time it is read. The cells are in a table of ours, or in a result of libpq that was
 * taken over.
 */
#include "libpq.h"
#include "table.h"

#include <ruby.h>
#include <ruby/encoding.h>
#include <stdbool.h>
#include <string.h>

typedef struct {
    rbloat_table table;
    rbloat_table names;
    void *result; /* the PGresult with the cells; NULL if they are in `table` */
    rbloat_libpq libpq;
    bool cleared; /* A cleared table is never filled again. Otherwise it could change while a method runs Ruby code. */
    size_t rows, columns;
    size_t accounted; /* bytes that were reported to the GC */
    VALUE decoders;   /* the object that keeps the decoders alive, or nil */
    VALUE *decoder;   /* by column, nil for none; NULL if no column has one */
    int *encoding;    /* by column: the index of the encoding */
    unsigned int *type;
    int name_encoding; /* the index of the encoding of all names */
    bool symbols;      /* names are Symbols */
} rbloat_cells;

static ID id_decode;

static void cells_mark(void *argument)
{
    rbloat_cells *cells = argument;
    rb_gc_mark(cells->decoders);
    for (size_t column = 0; cells->decoder && column < cells->columns; column++) rb_gc_mark(cells->decoder[column]);
}

static void account(rbloat_cells *cells, size_t bytes)
{
#ifdef HAVE_RB_GC_ADJUST_MEMORY_USAGE
    if (bytes != cells->accounted) rb_gc_adjust_memory_usage((ssize_t)bytes - (ssize_t)cells->accounted);
#endif
    cells->accounted = bytes;
}

static void release(rbloat_cells *cells)
{
    if (cells->result) cells->libpq.clear(cells->result);
    cells->result = NULL;
    rbloat_table_free(&cells->table);
    rbloat_table_free(&cells->names);
    free(cells->decoder);
    free(cells->encoding);
    free(cells->type);
    cells->decoder = NULL;
    cells->encoding = NULL;
    cells->type = NULL;
    cells->decoders = Qnil;
    cells->rows = cells->columns = 0;
    account(cells, 0);
}

static void cells_free(void *argument)
{
    release(argument);
    ruby_xfree(argument);
}

static size_t cells_size(const void *argument)
{
    const rbloat_cells *cells = argument;
    size_t each = (cells->decoder ? sizeof(VALUE) : 0) + sizeof(int) + sizeof(unsigned int);
    size_t result = cells->result ? cells->libpq.size(cells->result) : 0;
    return sizeof(*cells) + result + cells->table.size + cells->names.size + cells->columns * each;
}

static const rb_data_type_t cells_type = {
    "Rbloat::Cells", {cells_mark, cells_free, cells_size}, NULL, NULL, RUBY_TYPED_FREE_IMMEDIATELY,
};

static VALUE cells_allocate(VALUE class)
{
    rbloat_cells *cells;
    VALUE self = TypedData_Make_Struct(class, rbloat_cells, &cells_type, cells);
    cells->decoders = Qnil;
    return self;
}

static rbloat_cells *cells_of(VALUE self)
{
    rbloat_cells *cells;
    TypedData_Get_Struct(self, rbloat_cells, &cells_type, cells);
    return cells;
}

/* Must be called again after anything that may run Ruby code, since that may clear the table. */
static inline void check_filled(const rbloat_cells *cells)
{
    if (cells->cleared) rb_raise(rb_eArgError, "the result set was cleared");
    if (!cells->encoding) rb_raise(rb_eArgError, "the result set was never filled");
}

static rbloat_cells *filled(VALUE self)
{
    rbloat_cells *cells = cells_of(self);
    check_filled(cells);
    return cells;
}

static void no_memory(rbloat_cells *cells)
{
    release(cells);
    rb_memerror();
}

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
    rbloat_cells *cells = cells_of(self);
    if (cells->cleared) rb_raise(rb_eArgError, "the result set was cleared");
    if (cells->encoding) rb_raise(rb_eArgError, "the columns are known already");
    /* One more than needed, so that these are not NULL in a table without columns. */
    cells->encoding = calloc(columns + 1, sizeof(*cells->encoding));
    cells->type = calloc(columns + 1, sizeof(*cells->type));
    if (!NIL_P(decoders)) cells->decoder = calloc(columns + 1, sizeof(*cells->decoder));
    if (!cells->encoding || !cells->type || (!NIL_P(decoders) && !cells->decoder) ||
        !rbloat_table_open(&cells->names, columns, bytes) || !append_all(&cells->names, strings)) {
        no_memory(cells);
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
    filled(self)->decoders = decoders;
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
    check_filled(cells);
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
    account(cells, cells_size(cells));
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
    rbloat_cells *cells = cells_of(self);
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
    rbloat_cells *cells = cells_of(self);
    rbloat_libpq libpq;
    pg_result *data = readable(cells, result, row_count, samples, &libpq);
    if (!data || !rbloat_copy_pgresult(&libpq, &cells->table, data->pgresult)) return Qfalse;
    set_rows(cells, (size_t)libpq.rows(data->pgresult));
    return Qtrue;
}

/* Copies the cells of a result of libpq into a table. */
static VALUE cells_shrink(VALUE self)
{
    rbloat_cells *cells = filled(self);
    if (!cells->result) return self;
    if (!rbloat_copy_pgresult(&cells->libpq, &cells->table, cells->result)) rb_memerror();
    cells->libpq.clear(cells->result);
    cells->result = NULL;
    account(cells, cells_size(cells));
    return self;
}

/* native_rows(rows): fills the table from an array of arrays of strings and nils. */
static VALUE native_rows(VALUE self, VALUE rows)
{
    rbloat_cells *cells = filled(self);
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
    if (!rbloat_table_open(&cells->table, count * cells->columns, bytes)) no_memory(cells);
    for (long row = 0; row < RARRAY_LEN(rows); row++) {
        if (!append_all(&cells->table, RARRAY_AREF(rows, row))) no_memory(cells);
    }
    set_rows(cells, count);
    return Qnil;
}

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
    check_filled(cells);
    VALUE string = string_at(cells, row, column);
    if (!cells->decoder || NIL_P(cells->decoder[column]) || NIL_P(string)) return string;
    return rb_funcall(cells->decoder[column], id_decode, 3, string, SIZET2NUM(row), SIZET2NUM(column));
}

static size_t row_at(const rbloat_cells *cells, VALUE index)
{
    long row = NUM2LONG(index);
    check_filled(cells);
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
    check_filled(cells);
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
    const rbloat_cells *cells = filled(self);
    size_t row = row_at(cells, row_index), column = column_at(cells, column_index);
    return value_at(cells, row, column);
}

/* The string of a cell, not decoded. */
static VALUE cells_raw(VALUE self, VALUE row_index, VALUE column_index)
{
    const rbloat_cells *cells = filled(self);
    size_t row = row_at(cells, row_index), column = column_at(cells, column_index);
    return string_at(cells, row, column);
}

static VALUE cells_null_p(VALUE self, VALUE row_index, VALUE column_index)
{
    const rbloat_cells *cells = filled(self);
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
    const rbloat_cells *cells = filled(self);
    return row_values(cells, row_at(cells, index));
}

static VALUE cells_size_of_each(VALUE self, VALUE arguments, VALUE enumerator)
{
    return SIZET2NUM(filled(self)->rows);
}

static VALUE cells_each_row(VALUE self)
{
    RETURN_SIZED_ENUMERATOR(self, 0, NULL, cells_size_of_each);
    const rbloat_cells *cells = filled(self);
    for (size_t row = 0; row < cells->rows; row++) {
        rb_yield(row_values(cells, row));
        check_filled(cells);
    }
    return self;
}

static VALUE cells_column_values(VALUE self, VALUE index)
{
    const rbloat_cells *cells = filled(self);
    size_t column = column_at(cells, index), rows = cells->rows;
    VALUE values = rb_ary_new_capa((long)rows);
    for (size_t row = 0; row < rows; row++) rb_ary_push(values, value_at(cells, row, column));
    return values;
}

static VALUE cells_column_index(VALUE self, VALUE name)
{
    long column = find_column(filled(self), name);
    return column < 0 ? Qnil : LONG2NUM(column);
}

static VALUE cells_column_name(VALUE self, VALUE index)
{
    const rbloat_cells *cells = filled(self);
    size_t length;
    const char *bytes = rbloat_table_cell(&cells->names, column_at(cells, index), &length);
    VALUE name = new_string(bytes, length, cells->name_encoding);
    return cells->symbols ? rb_str_intern(name) : name;
}

static VALUE cells_column_type(VALUE self, VALUE index)
{
    const rbloat_cells *cells = filled(self);
    size_t column = column_at(cells, index);
    return UINT2NUM(cells->type[column]);
}

static VALUE cells_column_encoding(VALUE self, VALUE index)
{
    const rbloat_cells *cells = filled(self);
    size_t column = column_at(cells, index);
    return rb_enc_from_encoding(rb_enc_from_index(cells->encoding[column]));
}

static VALUE cells_row_count(VALUE self)
{
    return SIZET2NUM(filled(self)->rows);
}

static VALUE cells_column_count(VALUE self)
{
    return SIZET2NUM(filled(self)->columns);
}

static VALUE cells_bytesize(VALUE self)
{
    return SIZET2NUM(cells_size(cells_of(self)));
}

static VALUE cells_decoders(VALUE self)
{
    return filled(self)->decoders;
}

static VALUE cells_clear(VALUE self)
{
    rbloat_cells *cells = cells_of(self);
    release(cells);
    cells->cleared = true;
    return Qnil;
}

static VALUE cells_cleared_p(VALUE self)
{
    return cells_of(self)->encoding ? Qfalse : Qtrue;
}

static VALUE cells_initialize_copy(VALUE self, VALUE other)
{
    rb_raise(rb_eTypeError, "a %s is immutable and needs no copy", rb_obj_classname(self));
}

__attribute__((visibility("default"))) void Init_rbloat_results(void)
{
#ifdef HAVE_RB_EXT_RACTOR_SAFE
    rb_ext_ractor_safe(true);
#endif
    id_decode = rb_intern("decode");
    VALUE cells = rb_define_class_under(rb_define_module("Rbloat"), "Cells", rb_cObject);
    rb_define_alloc_func(cells, cells_allocate);
    rb_define_private_method(cells, "native_columns", native_columns, 4);
    rb_define_private_method(cells, "native_keep", native_keep, 1);
    rb_define_private_method(cells, "native_take", native_take, 3);
    rb_define_private_method(cells, "native_copy", native_copy, 3);
    rb_define_private_method(cells, "native_rows", native_rows, 1);
    rb_define_private_method(cells, "raw", cells_raw, 2);
    rb_define_private_method(cells, "decoders", cells_decoders, 0);
    rb_define_method(cells, "initialize_copy", cells_initialize_copy, 1);
    rb_define_method(cells, "get", cells_get, 2);
    rb_define_method(cells, "null?", cells_null_p, 2);
    rb_define_method(cells, "row_values", cells_row_values, 1);
    rb_define_method(cells, "each_row", cells_each_row, 0);
    rb_define_method(cells, "column_values", cells_column_values, 1);
    rb_define_method(cells, "column_index", cells_column_index, 1);
    rb_define_method(cells, "column_name", cells_column_name, 1);
    rb_define_method(cells, "column_type", cells_column_type, 1);
    rb_define_method(cells, "column_encoding", cells_column_encoding, 1);
    rb_define_method(cells, "row_count", cells_row_count, 0);
    rb_define_method(cells, "column_count", cells_column_count, 0);
    rb_define_method(cells, "bytesize", cells_bytesize, 0);
    rb_define_method(cells, "shrink", cells_shrink, 0);
    rb_define_method(cells, "clear", cells_clear, 0);
    rb_define_method(cells, "cleared?", cells_cleared_p, 0);
}
