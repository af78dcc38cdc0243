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

/* All that were defined. */
static rbloat_native_thread *first;

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
    for (rbloat_native_thread *thread = first; thread; thread = thread->next) {
        if (!thread->wanted) continue;
        if (thread->forked) thread->forked();
        thread->wanted = create(thread) == 0;
    }
}

static bool ends_with_ruby;

/* What a thread reads of Ruby is not there any more while the VM is taken down. */
static void stop_all(VALUE unused)
{
    ends_with_ruby = false;
    for (rbloat_native_thread *thread = first; thread; thread = thread->next) rbloat_stop_thread(thread);
}

void rbloat_start_thread(rbloat_native_thread *thread)
{
    static bool watches_forks;
    if (thread->wanted) return;
    if (!watches_forks) pthread_atfork(NULL, NULL, after_fork_in_child);
    watches_forks = true;
    if (!ends_with_ruby) rb_set_end_proc(stop_all, Qnil);
    ends_with_ruby = true;
    int error = create(thread);
    if (error) rb_syserr_fail_str(error, rb_sprintf("cannot start the thread %s", thread->name));
    thread->wanted = true;
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

static rbloat_native_thread *thread_of(VALUE module)
{
    rbloat_native_thread *thread = first;
    while (thread->module != module) thread = thread->next;
    return thread;
}

static VALUE stop(VALUE self)
{
    rbloat_stop_thread(thread_of(self));
    return Qnil;
}

static VALUE running_p(VALUE self)
{
    return thread_of(self)->wanted ? Qtrue : Qfalse;
}

/* A module that C defines is never collected, nor moved. */
void rbloat_define_thread(VALUE module, rbloat_native_thread *thread)
{
    thread->module = module;
    thread->next = first;
    first = thread;
    rb_define_singleton_method(module, "stop", stop, 0);
    rb_define_singleton_method(module, "running?", running_p, 0);
}

#endif

static VALUE return_false(int count, VALUE *arguments, VALUE self)
{
    return Qfalse;
}

static VALUE return_nil(VALUE self)
{
    return Qnil;
}

static VALUE return_nothing(VALUE self)
{
    return rb_hash_new();
}

void rbloat_define_no_thread(VALUE module)
{
    rb_define_singleton_method(module, "native_start", return_false, -1);
    rb_define_singleton_method(module, "stop", return_nil, 0);
    rb_define_singleton_method(module, "running?", return_false, -1);
    rb_define_singleton_method(module, "stats", return_nothing, 0);
}
