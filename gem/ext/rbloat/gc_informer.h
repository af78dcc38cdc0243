/*
 * Reports memory to the GC on behalf of a native thread.
 *
 * Ruby checks its limits only when the program allocates with Ruby's malloc, which it may not do for a while. So someone
 * who holds the GVL has to allocate:
 *
 *   - From Ruby 3.3 on: a postponed job, which any thread may trigger.
 *   - In Ruby 3.1 and 3.2: a Ruby thread that is parked without the GVL. There, registering a job from a native thread is
 *     unsafe (Ruby bug 19991).
 *   - Before Ruby 3.1: nobody, since a Ruby thread could not be restarted after a fork.
 */
#ifndef RBLOAT_GC_INFORMER_H
#define RBLOAT_GC_INFORMER_H

#include "native_thread.h"

/* Called with the GVL before a thread of the service starts. */
void rbloat_prepare_informing(const rbloat_service *service);

/* Called with the GVL after a thread of the service was started, also in a forked process. */
void rbloat_park_informer(void);

/* Adds `grown` to Ruby's counts and subtracts `freed`. Needs no GVL. */
void rbloat_inform_gc(int64_t freed, int64_t grown);

/* The bytes that were added to Ruby's counts so far. From Ruby 3.3 on the postponed job adds them, maybe later. */
int64_t rbloat_informed_bytes(void);

/* Called by each thread of the service before it ends. Needs no GVL. */
void rbloat_end_informing(void);

#endif
