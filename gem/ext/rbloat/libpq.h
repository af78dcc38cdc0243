/* The few functions of libpq that copy a result fast, found in the library that the gem pg has loaded. */
#ifndef RBLOAT_LIBPQ_H
#define RBLOAT_LIBPQ_H

#include "table.h"

#include <stdbool.h>

/*
 * Copies all cells of a PGresult into the table. False where that cannot be done: libpq was not found, it does not see
 * what the gem pg sees, or there is no memory; the table is free then.
 */
bool rbloat_copy_pgresult(rbloat_table *table, const void *result, int rows, int columns);

#endif
