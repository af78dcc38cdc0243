/*
 * Counts of what the GC did, kept by a hook that runs inside of it: the hook does nothing but count, and wake a thread
 * that asked for it.
 */
#ifndef RBLOAT_GC_EVENTS_H
#define RBLOAT_GC_EVENTS_H

#include "native_thread.h"

#include <stdint.h>

typedef struct {
    uint64_t starts;       /* collections that began */
    uint64_t sweeps;       /* collections whose sweep is over */
    uint64_t major_sweeps; /* of these, those of a major GC */
    uint64_t heap_pages;   /* pages of Ruby's heap, at the end of the last sweep */
} rbloat_gc_counts;

/* Needs no GVL. Each count is exact, but two of them may be of instants on both sides of an event. */
rbloat_gc_counts rbloat_count_gc(void);

/* Registers the hook, once; must be called with the GVL and outside of the GC. */
void rbloat_watch_gc(void);

/* From now on the end of a sweep wakes this one thread while it has `sleeping` set. */
void rbloat_wake_at_sweep(rbloat_native_thread *thread, volatile bool *sleeping);

/* Bytes that Ruby says malloc has handed out to it since the last GC. Reads a counter and needs no GVL. */
int64_t rbloat_malloc_increase(void);

#endif
