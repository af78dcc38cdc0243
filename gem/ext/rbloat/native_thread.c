#include "native_thread.h"
#include "rbloat.h"

#include <ruby/thread.h>

#if RBLOAT_WATCHES

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 4 };
static rbloat_native_thread *known[MOST_THREADS];

static void *main_of_thread(void *argument)
{
    rbloat_native_thread *thread = argument;
#ifdef HAVE_PTHREAD_SETNAME_NP
    pthread_setname_np(pthread_self(), thread->name);
#endif
    thread->run();
    return NULL;
}

/* With all signals blocked: they are for threads that Ruby knows of. */
static int create(rbloat_native_thread *thread)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread->stopping = false;
    int error = pthread_create(&thread->thread, &attributes, main_of_thread, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/* In the child of a fork only the thread that forked is left. glibc has put its own locks in order by now, so a thread
   may be made. A process that may have no more threads does without. */
static void after_fork_in_child(void)
{
    for (int index = 0; index < MOST_THREADS && known[index]; index++) {
        rbloat_native_thread *thread = known[index];
        if (!thread->wanted) continue;
        if (thread->forked) thread->forked();
        thread->wanted = create(thread) == 0;
    }
}

static void remember(rbloat_native_thread *thread)
{
    for (int index = 0; index < MOST_THREADS; index++) {
        if (known[index] == thread) return;
        if (known[index]) continue;
        if (index == 0) pthread_atfork(NULL, NULL, after_fork_in_child);
        known[index] = thread;
        return;
    }
}

int rbloat_start_thread(rbloat_native_thread *thread)
{
    if (thread->wanted) return 0;
    remember(thread);
    int error = create(thread);
    thread->wanted = error == 0;
    return error;
}

static void *join(void *argument)
{
    pthread_join(((rbloat_native_thread *)argument)->thread, NULL);
    return NULL;
}

void rbloat_stop_thread(rbloat_native_thread *thread)
{
    if (!thread->wanted) return;
    thread->wanted = false;
    thread->stopping = true;
    rbloat_wake_thread(thread);
    rb_thread_call_without_gvl(join, thread, NULL, NULL);
}

void rbloat_wake_thread(rbloat_native_thread *thread)
{
    __atomic_add_fetch(&thread->wakes, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &thread->wakes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void rbloat_wait(rbloat_native_thread *thread, uint32_t seen, double seconds)
{
    struct timespec timeout = {.tv_sec = (time_t)seconds};
    timeout.tv_nsec = (long)((seconds - (double)timeout.tv_sec) * 1e9);
    /* Returns at once where the count is another by now. An early return does no harm. */
    syscall(SYS_futex, &thread->wakes, FUTEX_WAIT_PRIVATE, seen, &timeout, NULL, 0);
}

#endif
