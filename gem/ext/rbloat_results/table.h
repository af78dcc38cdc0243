/*
 * A compact table of byte strings: one block of memory, with the offset of the end of each cell, followed by the bytes of
 * all cells. Independent of Ruby.
 */
#ifndef RBLOAT_TABLE_H
#define RBLOAT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The highest bit of an offset is set if the cell is nil. */
#define RBLOAT_NIL ((uint32_t)1 << 31)
#define RBLOAT_WIDE_NIL ((uint64_t)1 << 63)

typedef struct {
    char *block;
    size_t size;   /* bytes of the block */
    bool mapped;   /* the block is a mapping, so freeing it returns the memory to the kernel at once */
    size_t cells;  /* final number of cells */
    size_t filled; /* number of cells so far */
    char *bytes;   /* the bytes of the cells, within the block */
    size_t room;   /* how many bytes there can be */
    size_t ends;   /* how many bytes there are */
    size_t ready;  /* how many bytes are known to be resident */
    bool wide;     /* offsets of 8 bytes instead of 4 */
} rbloat_table;

/* Allocates room for `cells` cells with `bytes` bytes in total. rbloat_table_close frees what was not needed. Returns false
   if there is not enough memory. */
bool rbloat_table_open(rbloat_table *table, size_t cells, size_t bytes);

/* Makes the next pages resident, many at a time. One page fault for each would take as long as the copying itself. */
void rbloat_table_make_ready(rbloat_table *table, size_t length);

/* Appends a cell, which is nil if `bytes` is NULL. Returns false if there is no room for it. Inline, since it is called for
   every cell. */
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

/* Frees the room that was not needed. */
void rbloat_table_close(rbloat_table *table);

/* The offset of the end of a cell, with RBLOAT_WIDE_NIL set if the cell is nil. */
static inline uint64_t rbloat_table_end(const rbloat_table *table, size_t index)
{
    if (table->wide) return ((const uint64_t *)table->block)[index];
    uint32_t end = ((const uint32_t *)table->block)[index];
    return end & RBLOAT_NIL ? RBLOAT_WIDE_NIL | (end & ~RBLOAT_NIL) : end;
}

/* The bytes of a cell, or NULL if it is nil. The index must be less than `filled`. */
static inline const char *rbloat_table_cell(const rbloat_table *table, size_t index, size_t *length)
{
    uint64_t begin = index > 0 ? rbloat_table_end(table, index - 1) & ~RBLOAT_WIDE_NIL : 0;
    uint64_t end = rbloat_table_end(table, index);
    *length = (size_t)((end & ~RBLOAT_WIDE_NIL) - begin);
    return end & RBLOAT_WIDE_NIL ? NULL : table->bytes + begin;
}

void rbloat_table_free(rbloat_table *table);

#endif
