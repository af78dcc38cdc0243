/*
 * Counts of collections, for native threads.
 *
 * Up to Ruby 3.2 they are read from Ruby's own counters. A GC hook, even for one event per collection, would send every
 * allocation of an object down the slow path (gc.c, newobj_of: flags.has_hook). From Ruby 3.3 on a hook costs nothing
 * (flags.has_newobj_hook). From 4.0 on it is the only way: rb_gc_stat crashes in native threads, since it first updates
 * the counts of the caller's Ractor (gc/default/default.c, ractor_cache_flush_count).
 */
#ifndef RBLOAT_GC_COUNTS_H
#define RBLOAT_GC_COUNTS_H

#include "native_thread.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t starts;       /* collections that began */
    uint64_t sweeps;       /* collections whose sweep has ended */
    uint64_t major_sweeps; /* major collections whose sweep has ended */
    uint64_t heap_pages;   /* pages of Ruby's heap; from Ruby 3.3 on at the end of the last sweep */
} rbloat_gc_counts;

/* Must be called before rbloat_count_gc, with the GVL and outside of the GC. May be called again. */
void rbloat_watch_gc(void);

/* Needs no GVL. While a collection begins, one of the counts may be behind the others by one. */
rbloat_gc_counts rbloat_count_gc(void);

/* Ruby's count of bytes allocated with malloc since the last GC. Needs the GVL from Ruby 4.0 on. */
int64_t rbloat_malloc_increase(void);

/* The same for a native thread. From Ruby 4.0 on, asks the thread that holds the GVL, and returns false if it does not
   answer in time. */
void rbloat_prepare_asking(const rbloat_service *service);
bool rbloat_ask_malloc_increase(rbloat_native_thread *thread, int64_t *bytes);

#endif
