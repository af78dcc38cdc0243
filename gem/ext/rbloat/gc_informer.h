/*
 * Tells the GC, on behalf of a native thread, of memory that extensions took from malloc and do not report.
 *
 * Ruby looks at its limit only when the program allocates through Ruby's malloc, which it may not do for a while. So
 * something that holds the GVL has to allocate:
 *
 *   - from Ruby 3.3 on a postponed job, which any thread may trigger;
 *   - in Ruby 3.1 and 3.2 a Ruby thread that is parked outside of the GVL, since registering a job from a thread that Ruby
 *     does not know is unsafe there (Ruby bug 19991);
 *   - before that nothing: a Ruby thread could not be made again after a fork.
 */
#ifndef RBLOAT_GC_INFORMER_H
#define RBLOAT_GC_INFORMER_H

#include "native_thread.h"

/* Both are called with the GVL: the first before a thread of the service is started, the second after it was, also in a
   forked process. */
void rbloat_prepare_informing(const rbloat_service *service);
void rbloat_park_informer(void);

/* Takes bytes that were freed off from Ruby's counts, and adds bytes that were taken. Needs no GVL. */
void rbloat_inform_gc(int64_t freed, int64_t grown);

/* All bytes so far that were added to Ruby's counts: from Ruby 3.3 on a job may be late. */
int64_t rbloat_informed_bytes(void);

/* Called by each thread of the service before it ends. Needs no GVL. */
void rbloat_end_informing(void);

#endif
