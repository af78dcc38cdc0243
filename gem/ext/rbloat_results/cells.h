/*
 * Rbloat::Cells: a table of strings that is one Ruby object, however many cells it has. A cell becomes a String, or the
 * value that its decoder returns, each time it is read. The cells are in a table of ours, or in a result of libpq that was
 * taken over.
 */
#ifndef RBLOAT_CELLS_H
#define RBLOAT_CELLS_H

#include "libpq.h"
#include "table.h"

#include <ruby.h>
#include <stdbool.h>

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

/* The struct of an object. Raises a TypeError if it is none. */
rbloat_cells *rbloat_cells_of(VALUE self);

/*
 * Raises an ArgumentError if the table was cleared, or never filled. Must be called again after anything that may run Ruby
 * code, since that may clear the table.
 */
void rbloat_cells_check(const rbloat_cells *cells);

/* The struct of an object, checked. */
rbloat_cells *rbloat_cells_filled(VALUE self);

/* Tells the GC how many bytes the table has now. */
void rbloat_cells_account(rbloat_cells *cells, size_t bytes);

/* The bytes that it has: for the GC, and for `bytesize`. */
size_t rbloat_cells_size(const void *cells);

/* Frees all memory. */
void rbloat_cells_release(rbloat_cells *cells);

/* Frees all memory, and raises a NoMemoryError. */
_Noreturn void rbloat_cells_no_memory(rbloat_cells *cells);

/* Define the methods that fill a table, and those that read one. */
void rbloat_init_fill(VALUE cells);
void rbloat_init_read(VALUE cells);

#endif
