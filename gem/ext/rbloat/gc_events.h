/*
 * Counts of what the GC did, kept by a hook that runs inside of it: the hook does nothing but count, wake a thread that
 * asked for it, and start threads anew that a fork lost.
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

/* Keeps a thread alive across forks. With `wake_at_sweep` the end of a sweep wakes it while it has `sleeping` set. */
void rbloat_tie_to_gc(rbloat_native_thread *thread, volatile bool *sleeping);

/* Bytes that Ruby says malloc has handed out to it since the last GC. Reads a counter and needs no GVL. */
int64_t rbloat_malloc_increase(void);

#endif
