/*
 * Threads of the operating system that Ruby does not know, so they never hold the GVL. They end before Ruby does. A
 * process that Ruby forks gets new ones.
 *
 * A *service* is the work that a module does in such a thread; at most one thread of it runs at a time. Each start makes a
 * new thread with a context of its own, so a thread that has not ended yet shares nothing with the one after it.
 */
#ifndef RBLOAT_NATIVE_THREAD_H
#define RBLOAT_NATIVE_THREAD_H

#include <pthread.h>
#include <ruby.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct rbloat_native_thread;

typedef struct {
    const char *name;
    size_t size; /* of a context: a structure whose first member is the rbloat_native_thread */
    void (*run)(struct rbloat_native_thread *thread); /* returns soon after `stopping` was set */
    void (*started)(void); /* after each start, with the GVL, also in a forked process; or NULL */
    void (*forked)(void);  /* in each forked process, inside fork(2), with the lock held */
} rbloat_service;

typedef struct rbloat_native_thread {
    const rbloat_service *service;
    atomic_bool stopping;
    _Atomic uint32_t wakes;
    /* The rest is native_thread.c's own, and read and written under the lock. */
    enum { RBLOAT_LIVES, RBLOAT_ENDED, RBLOAT_LEFT_BEHIND } state;
    uint64_t number;
    pthread_t thread;
    struct rbloat_native_thread *next;
} rbloat_native_thread;

/* All of these are called with the GVL. Start raises a SystemCallError if no thread can be made, and does nothing if one
   runs; it copies the context. Stop waits for the end of the thread; an interrupt ends the wait, and not the stop. */
void rbloat_start_thread(const rbloat_native_thread *context);
void rbloat_stop_service(const rbloat_service *service);

/* These two need no GVL. */
bool rbloat_service_runs(const rbloat_service *service);
void rbloat_wake_service(const rbloat_service *service);

/* In the thread itself: returns when it was woken since `seen` was read from `wakes`, or so many seconds later. */
void rbloat_wait(rbloat_native_thread *thread, uint32_t seen, double seconds);

/* The same for any word: returns when it is not `seen` any more. Waits without a limit if `seconds` is negative. */
void rbloat_wait_for_change(_Atomic uint32_t *word, uint32_t seen, double seconds);

/* Changes a word and wakes all that wait for it. One system call, no lock. */
void rbloat_change(_Atomic uint32_t *word);

/* Guards what threads of the gem share. Held for some instructions only, never while waiting, and across fork(2), so a
   forked process finds whole what is written under it. */
void rbloat_lock(void);
void rbloat_unlock(void);

/* Defines `native_start` and `running?` that return false, `stop` that returns nil, and empty `stats`, for a module
   that has nothing to do on this platform. */
void rbloat_define_no_service(VALUE module);

#endif
