/*
 * A thread of the operating system that Ruby does not know of, so it never holds the GVL. It ends before Ruby does,
 * and a process that is forked has a new one.
 */
#ifndef RBLOAT_NATIVE_THREAD_H
#define RBLOAT_NATIVE_THREAD_H

#include <pthread.h>
#include <ruby.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct rbloat_native_thread {
    const char *name;
    void (*run)(void);      /* returns soon after `stopping` was set */
    void (*forked)(void);   /* in a forked process, before a new thread begins: alone, and inside of fork(2) */
    pthread_t thread;
    volatile bool wanted;   /* start was called, and not stop */
    volatile bool stopping;
    volatile uint32_t wakes;
    VALUE module; /* whose work it does */
    struct rbloat_native_thread *next;
} rbloat_native_thread;

/* Makes it the thread of a module, which gets the methods `stop` and `running?`. Once, before it is started. */
void rbloat_define_thread(VALUE module, rbloat_native_thread *thread);

/* The same module where it can do nothing: `native_start` and `running?` return false, `stop` nil, `stats` nothing. */
void rbloat_define_no_thread(VALUE module);

/* Both are called with the GVL. Start raises a SystemCallError where no thread can be made, and does nothing where there
   is one; stop waits for the end of the thread. */
void rbloat_start_thread(rbloat_native_thread *thread);
void rbloat_stop_thread(rbloat_native_thread *thread);

/* Lets a waiting thread go on. One system call, no lock. */
void rbloat_wake_thread(rbloat_native_thread *thread);

/* In the thread itself: returns when it was woken since `seen` was read from `wakes`, or so many seconds later. */
void rbloat_wait(rbloat_native_thread *thread, uint32_t seen, double seconds);

#endif
