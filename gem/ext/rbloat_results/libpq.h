/* The functions of libpq that read and copy a result, from the library that the gem pg uses. */
#ifndef RBLOAT_LIBPQ_H
#define RBLOAT_LIBPQ_H

#include "table.h"

#include <stdbool.h>

typedef struct {
    int (*rows)(const void *);
    int (*columns)(const void *);
    char *(*value)(const void *, int, int);
    int (*length)(const void *, int, int);
    int (*is_null)(const void *, int, int);
    size_t (*size)(const void *);
    void (*clear)(void *);
} rbloat_libpq;

/*
 * Finds the libpq that an extension is linked with, given an address in the extension. A process may have loaded several
 * versions of libpq, and each can only read its own results. Returns false if a function is missing; PQresultMemorySize
 * is missing before PostgreSQL 12.
 */
bool rbloat_find_libpq(rbloat_libpq *libpq, const void *in_extension);

/* The bytes of a cell, or NULL if it is nil. */
static inline const char *rbloat_pgresult_cell(const rbloat_libpq *libpq, const void *result, size_t row, size_t column,
                                               size_t *length)
{
    *length = (size_t)libpq->length(result, (int)row, (int)column);
    if (*length == 0 && libpq->is_null(result, (int)row, (int)column)) return NULL;
    return libpq->value(result, (int)row, (int)column);
}

/* Copies all cells of a PGresult into the table. Returns false, and frees the table, if they do not fit. */
bool rbloat_copy_pgresult(const rbloat_libpq *libpq, rbloat_table *table, const void *result);

#endif
