/*
 * Counts of what the GC did, read from Ruby's own.
 *
 * Not by a hook into the GC: up to Ruby 3.2 any internal event that is listened to, be it once per collection, sends
 * every allocation of an object down its slow path (gc.c, newobj_of: flags.has_hook), at 9 to 20 % of a program's time.
 */
#ifndef RBLOAT_GC_COUNTS_H
#define RBLOAT_GC_COUNTS_H

#include <stdint.h>

typedef struct {
    uint64_t starts;       /* collections that began */
    uint64_t sweeps;       /* collections whose sweep is over */
    uint64_t major_sweeps; /* of these, those of a major GC */
    uint64_t heap_pages;   /* pages of Ruby's heap */
} rbloat_gc_counts;

/* Reads a few words, by functions that need no GVL nor a thread of Ruby's from 2.7 to 4.0. While a collection begins, one
   of the counts may be behind the others by it; the next call finds them together. */
rbloat_gc_counts rbloat_count_gc(void);

/* Bytes that Ruby says malloc has handed out to it since the last GC. Reads a counter and needs no GVL. */
int64_t rbloat_malloc_increase(void);

#endif
