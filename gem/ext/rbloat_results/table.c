#include "table.h"

#include <stdlib.h>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

/* Blocks of at least this many bytes are mappings. */
static const size_t MAPPED = 256 * 1024;

/* The bytes that are made resident at a time. */
static const size_t AHEAD = 256 * 1024;

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static size_t offset_size(const rbloat_table *table)
{
    return table->wide ? sizeof(uint64_t) : sizeof(uint32_t);
}

#ifdef __linux__

static size_t whole_pages(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

static bool take(rbloat_table *table, size_t size)
{
    table->mapped = size >= MAPPED;
    if (table->mapped) {
        table->size = whole_pages(size);
        table->block = mmap(NULL, table->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (table->block == MAP_FAILED) table->block = NULL;
    } else {
        table->size = size;
        table->block = malloc(size > 0 ? size : 1);
    }
    return table->block != NULL;
}

void rbloat_table_make_ready(rbloat_table *table, size_t length)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (size_t)(table->bytes - table->block) + table->ends;
    size_t from = table->ready > 0 ? (used + page - 1) / page * page : 0;
    size_t to = used + length + AHEAD < table->size ? used + length + AHEAD : table->size;
    to = to / page * page;
    table->ready = table->room;
    if (!table->mapped || to <= from) return;
    /* Before Linux 5.14 this fails, and pages become resident one by one. */
    if (madvise(table->block + from, to - from, MADV_POPULATE_WRITE) != 0) return;
    size_t ready = to - (size_t)(table->bytes - table->block);
    table->ready = to < table->size / page * page && ready < table->room ? ready : table->room;
}

static void shrink(rbloat_table *table, size_t size)
{
    if (!table->mapped) {
        char *block = realloc(table->block, size > 0 ? size : 1);
        if (block) table->block = block;
        table->size = size;
    } else if (whole_pages(size) < table->size) {
        munmap(table->block + whole_pages(size), table->size - whole_pages(size));
        table->size = whole_pages(size);
    }
}

#else

void rbloat_table_make_ready(rbloat_table *table, size_t length)
{
    table->ready = table->room;
}

static bool take(rbloat_table *table, size_t size)
{
    table->size = size;
    table->block = malloc(size > 0 ? size : 1);
    return table->block != NULL;
}

static void shrink(rbloat_table *table, size_t size)
{
    char *block = realloc(table->block, size > 0 ? size : 1);
    if (block) table->block = block;
    table->size = size;
}

#endif

bool rbloat_table_open(rbloat_table *table, size_t cells, size_t bytes)
{
    memset(table, 0, sizeof(*table));
    table->cells = cells;
    table->wide = bytes >= RBLOAT_NIL;
    if (cells > SIZE_MAX / 16 || bytes > SIZE_MAX / 2) return false;
    size_t offsets = cells * offset_size(table);
    if (!take(table, offsets + bytes)) return false;
    table->bytes = table->block + offsets;
    table->room = bytes;
    return true;
}

void rbloat_table_close(rbloat_table *table)
{
    shrink(table, table->cells * offset_size(table) + table->ends);
    table->bytes = table->block + table->cells * offset_size(table);
    table->room = table->ends;
}

void rbloat_table_free(rbloat_table *table)
{
    if (!table->block) return;
#ifdef __linux__
    if (table->mapped) {
        munmap(table->block, table->size);
    } else {
        free(table->block);
    }
#else
    free(table->block);
#endif
    table->block = NULL;
    table->size = table->cells = table->filled = 0;
}
