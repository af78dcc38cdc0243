/*
 * Counts of what the GC did, for threads that Ruby does not know of.
 *
 * Up to Ruby 3.2 they are read from Ruby's own: a hook into the GC, be it called once per collection, would send every
 * allocation of an object down its slow path (gc.c, newobj_of: flags.has_hook). From 3.3
 * on a hook costs nothing (flags.has_newobj_hook), and from 4.0 on it is the only way: rb_gc_stat first brings the counts
 * of the caller's Ractor up to date (gc/default/default.c, ractor_cache_flush_count), and crashes in a thread of none.
 */
#ifndef RBLOAT_GC_COUNTS_H
#define RBLOAT_GC_COUNTS_H

#include "native_thread.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t starts;       /* collections that began */
    uint64_t sweeps;       /* collections whose sweep is over */
    uint64_t major_sweeps; /* of these, those of a major GC */
    uint64_t heap_pages;   /* pages of Ruby's heap; from 3.3 on those at the end of the last sweep */
} rbloat_gc_counts;

/* Must be called before the others, with the GVL and outside of the GC. More than once does no harm. */
void rbloat_watch_gc(void);

/* Needs no GVL. While a collection begins, one of the counts may be behind the others by it; the next call finds them
   together. */
rbloat_gc_counts rbloat_count_gc(void);

/* Bytes that Ruby says malloc has handed out to it since the last GC. Must be called with the GVL from Ruby 4.0 on. */
int64_t rbloat_malloc_increase(void);

/* The same for a native thread. From Ruby 4.0 on whoever holds the GVL is asked, which must have been prepared with the
   GVL. Returns false if nobody answers in time. */
void rbloat_prepare_asking(const rbloat_service *service);
bool rbloat_ask_malloc_increase(rbloat_native_thread *thread, int64_t *bytes);

#endif
