/*
 * A compact table of byte strings: one block of memory with all bytes one after the other, and in front of them the
 * offset at which each cell ends. Knows nothing of Ruby.
 */
#ifndef RBLOAT_TABLE_H
#define RBLOAT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The highest bit of an offset says that the cell is nil. */
#define RBLOAT_NIL ((uint32_t)1 << 31)
#define RBLOAT_WIDE_NIL ((uint64_t)1 << 63)

typedef struct {
    char *block;
    size_t size;   /* of the block, or of the mapping that it is */
    bool mapped;   /* a mapping of its own, so that freeing it gives it back to the kernel at once */
    size_t cells;  /* that there will be */
    size_t filled; /* that there are */
    char *bytes;   /* of the cells, within the block */
    size_t room;   /* for them */
    size_t ends;   /* how many of these are used */
    size_t ready;  /* how many of these are known to have pages */
    bool wide;     /* offsets of 8 bytes instead of 4 */
} rbloat_table;

/* Room for so many cells with so many bytes in all; more than needed is given back by rbloat_table_close. False where
   there is no memory, or the sizes are absurd. */
bool rbloat_table_open(rbloat_table *table, size_t cells, size_t bytes);

/* Lets the kernel bring in the pages that are to be written next, many at a time: a fault for each of them would take as
   long as all of the copying. */
void rbloat_table_make_ready(rbloat_table *table, size_t length);

/* Appends a cell: nil where `bytes` is NULL. False where there is no room for it. In the header, since it is called for
   each of very many cells. */
static inline bool rbloat_table_append(rbloat_table *table, const char *bytes, size_t length)
{
    if (table->filled == table->cells || length > table->room - table->ends) return false;
    if (table->ends + length > table->ready) rbloat_table_make_ready(table, length);
    memcpy(table->bytes + table->ends, bytes ? bytes : "", length);
    table->ends += length;
    if (table->wide) {
        ((uint64_t *)table->block)[table->filled++] = table->ends | (bytes ? 0 : RBLOAT_WIDE_NIL);
    } else {
        ((uint32_t *)table->block)[table->filled++] = (uint32_t)table->ends | (bytes ? 0 : RBLOAT_NIL);
    }
    return true;
}

/* Gives back what was not needed. */
void rbloat_table_close(rbloat_table *table);

/* Where a cell ends, with RBLOAT_WIDE_NIL where it is nil. */
static inline uint64_t rbloat_table_end(const rbloat_table *table, size_t index)
{
    if (table->wide) return ((const uint64_t *)table->block)[index];
    uint32_t end = ((const uint32_t *)table->block)[index];
    return end & RBLOAT_NIL ? RBLOAT_WIDE_NIL | (end & ~RBLOAT_NIL) : end;
}

/* The bytes of a cell, NULL for nil. The index must be below `filled`. As the one that appends. */
static inline const char *rbloat_table_cell(const rbloat_table *table, size_t index, size_t *length)
{
    uint64_t begin = index > 0 ? rbloat_table_end(table, index - 1) & ~RBLOAT_WIDE_NIL : 0;
    uint64_t end = rbloat_table_end(table, index);
    *length = (size_t)((end & ~RBLOAT_WIDE_NIL) - begin);
    return end & RBLOAT_WIDE_NIL ? NULL : table->bytes + begin;
}

void rbloat_table_free(rbloat_table *table);

#endif
