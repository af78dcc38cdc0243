#include "cells.h"

#include <stdlib.h>

static void cells_mark(void *argument)
{
    rbloat_cells *cells = argument;
    rb_gc_mark(cells->decoders);
    for (size_t column = 0; cells->decoder && column < cells->columns; column++) rb_gc_mark(cells->decoder[column]);
}

void rbloat_cells_account(rbloat_cells *cells, size_t bytes)
{
#ifdef HAVE_RB_GC_ADJUST_MEMORY_USAGE
    if (bytes != cells->accounted) rb_gc_adjust_memory_usage((ssize_t)bytes - (ssize_t)cells->accounted);
#endif
    cells->accounted = bytes;
}

void rbloat_cells_release(rbloat_cells *cells)
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
    rbloat_cells_account(cells, 0);
}

static void cells_free(void *argument)
{
    rbloat_cells_release(argument);
    ruby_xfree(argument);
}

size_t rbloat_cells_size(const void *argument)
{
    const rbloat_cells *cells = argument;
    size_t each = (cells->decoder ? sizeof(VALUE) : 0) + sizeof(int) + sizeof(unsigned int);
    size_t result = cells->result ? cells->libpq.size(cells->result) : 0;
    return sizeof(*cells) + result + cells->table.size + cells->names.size + cells->columns * each;
}

static const rb_data_type_t cells_type = {
    "Rbloat::Cells", {cells_mark, cells_free, rbloat_cells_size}, NULL, NULL, RUBY_TYPED_FREE_IMMEDIATELY,
};

static VALUE cells_allocate(VALUE class)
{
    rbloat_cells *cells;
    VALUE self = TypedData_Make_Struct(class, rbloat_cells, &cells_type, cells);
    cells->decoders = Qnil;
    return self;
}

rbloat_cells *rbloat_cells_of(VALUE self)
{
    rbloat_cells *cells;
    TypedData_Get_Struct(self, rbloat_cells, &cells_type, cells);
    return cells;
}

void rbloat_cells_check(const rbloat_cells *cells)
{
    if (cells->cleared) rb_raise(rb_eArgError, "the result set was cleared");
    if (!cells->encoding) rb_raise(rb_eArgError, "the result set was never filled");
}

rbloat_cells *rbloat_cells_filled(VALUE self)
{
    rbloat_cells *cells = rbloat_cells_of(self);
    rbloat_cells_check(cells);
    return cells;
}

void rbloat_cells_no_memory(rbloat_cells *cells)
{
    rbloat_cells_release(cells);
    rb_memerror();
}

static VALUE cells_row_count(VALUE self)
{
    return SIZET2NUM(rbloat_cells_filled(self)->rows);
}

static VALUE cells_column_count(VALUE self)
{
    return SIZET2NUM(rbloat_cells_filled(self)->columns);
}

static VALUE cells_bytesize(VALUE self)
{
    return SIZET2NUM(rbloat_cells_size(rbloat_cells_of(self)));
}

static VALUE cells_decoders(VALUE self)
{
    return rbloat_cells_filled(self)->decoders;
}

static VALUE cells_clear(VALUE self)
{
    rbloat_cells *cells = rbloat_cells_of(self);
    rbloat_cells_release(cells);
    cells->cleared = true;
    return Qnil;
}

static VALUE cells_cleared_p(VALUE self)
{
    return rbloat_cells_of(self)->encoding ? Qfalse : Qtrue;
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
    VALUE cells = rb_define_class_under(rb_define_module("Rbloat"), "Cells", rb_cObject);
    rb_define_alloc_func(cells, cells_allocate);
    rbloat_init_fill(cells);
    rbloat_init_read(cells);
    rb_define_private_method(cells, "decoders", cells_decoders, 0);
    rb_define_method(cells, "initialize_copy", cells_initialize_copy, 1);
    rb_define_method(cells, "row_count", cells_row_count, 0);
    rb_define_method(cells, "column_count", cells_column_count, 0);
    rb_define_method(cells, "bytesize", cells_bytesize, 0);
    rb_define_method(cells, "clear", cells_clear, 0);
    rb_define_method(cells, "cleared?", cells_cleared_p, 0);
}
