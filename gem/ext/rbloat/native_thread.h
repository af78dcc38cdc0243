/*
 * Native threads, which Ruby does not know and which never hold the GVL. They end before the VM is destroyed. Forked
 * processes start new ones.
 *
 * A *service* is the work that a module does in such a thread. At most one thread of a service runs at a time. Each start
 * creates a thread with its own context, so it shares nothing with an earlier thread that is still stopping.
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
    size_t size; /* of a context: a structure whose first member is a rbloat_native_thread */
    void (*run)(struct rbloat_native_thread *thread); /* must return soon after `stopping` was set */
    void (*started)(void); /* called with the GVL after each start, also in forked processes; or NULL */
    void (*forked)(void);  /* called inside fork(2) in the child, with the lock held; or NULL */
} rbloat_service;

typedef struct rbloat_native_thread {
    const rbloat_service *service;
    atomic_bool stopping;
    _Atomic uint32_t wakes;
    /* The rest is private to native_thread.c, and guarded by the lock. */
    enum rbloat_thread_state { RBLOAT_LIVES, RBLOAT_ENDED, RBLOAT_LEFT_BEHIND } state;
    uint64_t number;
    pthread_t thread;
    struct rbloat_native_thread *next;
} rbloat_native_thread;

/* Starts a thread with a copy of the context, or does nothing if one is running. Raises a SystemCallError if no thread
   can be created. Needs the GVL. */
void rbloat_start_thread(const rbloat_native_thread *context);

/* Stops the thread and waits until it has ended. An interrupt ends the wait; the thread still stops. Needs the GVL. */
void rbloat_stop_service(const rbloat_service *service);

/* Need no GVL. */
bool rbloat_service_runs(const rbloat_service *service);
void rbloat_wake_service(const rbloat_service *service);

/* Called by the thread itself: waits until `wakes` differs from `seen`, at most for this many seconds. */
void rbloat_wait(rbloat_native_thread *thread, uint32_t seen, double seconds);

/* Waits until the word differs from `seen`. If `seconds` is negative, there is no timeout. */
void rbloat_wait_for_change(_Atomic uint32_t *word, uint32_t seen, double seconds);

/* Changes the word and wakes all threads that wait for it. Takes no lock. */
void rbloat_change(_Atomic uint32_t *word);

/* Guards data that threads of the gem share. It is held briefly, never while waiting. fork(2) takes it, so a forked
   process never inherits half-written data. */
void rbloat_lock(void);
void rbloat_unlock(void);

/* Defines methods that do nothing, for a module that this platform does not support. */
void rbloat_define_no_service(VALUE module);

#endif
