#include "gc_informer.h"
#include "gc_counts.h"
#include "rbloat.h"

#include <ruby/debug.h>
#include <ruby/thread.h>
#include <ruby/version.h>
#include <unistd.h>

#if RBLOAT_WATCHES && defined(HAVE_RB_GC_ADJUST_MEMORY_USAGE)

static _Atomic int64_t informed;

int64_t rbloat_informed_bytes(void)
{
    return atomic_load(&informed);
}

/* Ruby has two counts: oldmalloc_increase, since the last major GC, and malloc_increase, since the last GC. `freed` was
   reported before the last GC, so it must only lower the first one; what it takes off the second is added again.
   Up to Ruby 3.2 this only adds to two atomic counters, and needs no GVL. */
static void adjust(int64_t freed, int64_t grown)
{
    size_t collection = rb_gc_count();
    int64_t before = rbloat_malloc_increase();
    if (freed > 0) rb_gc_adjust_memory_usage((ssize_t)-freed);
    int64_t lost = before - rbloat_malloc_increase(), again = freed > 0 && lost > 0 ? lost : 0;
    /* A GC that began meanwhile has reset the count itself. */
    if (again > freed || rb_gc_count() != collection) again = 0;
    if (grown + again > 0) rb_gc_adjust_memory_usage((ssize_t)(grown + again));
    atomic_fetch_add(&informed, grown);
}

#if RUBY_API_VERSION_CODE >= 30100

/* Lets Ruby check its limits. Needs the GVL. */
static void let_ruby_look(void)
{
    size_t collection = rb_gc_count();
    ruby_xfree(ruby_xmalloc(1));
    /* A lazy sweep only continues when the program needs slots. Few objects with much memory rarely need any. Disabling
       the GC completes the sweep. */
    if (rb_gc_count() != collection && !RTEST(rb_gc_disable())) rb_gc_enable();
}

#endif

#ifdef HAVE_RB_POSTPONED_JOB_PREREGISTER

static _Atomic int64_t pending, freed_pending;
static rb_postponed_job_handle_t job;

static void inform_with_gvl(void *unused)
{
    adjust(atomic_exchange(&freed_pending, 0), atomic_exchange(&pending, 0));
    let_ruby_look();
}

void rbloat_prepare_informing(const rbloat_service *service)
{
    /* Registering the same function again returns the same handle. */
    job = rb_postponed_job_preregister(0, inform_with_gvl, NULL);
}

void rbloat_park_informer(void)
{
}

void rbloat_inform_gc(int64_t freed, int64_t grown)
{
    atomic_fetch_add(&freed_pending, freed);
    atomic_fetch_add(&pending, grown);
    rb_postponed_job_trigger(job);
}

void rbloat_end_informing(void)
{
}

#elif RUBY_API_VERSION_CODE >= 30100

static const rbloat_service *informed_by;

/* The id of the process that has a parked thread, guarded by the lock. It differs from the own id in a forked process,
   which has none. */
static pid_t parked_in;

/* Changes with each report, and when the parked thread should check whether to end. */
static _Atomic uint32_t changes;

static void *wait_for_a_change(void *seen)
{
    rbloat_wait_for_change(&changes, *(uint32_t *)seen, -1);
    return NULL;
}

static void interrupt(void *unused)
{
    rbloat_change(&changes);
}

static bool take_place(void)
{
    rbloat_lock();
    bool taken = parked_in != getpid();
    parked_in = getpid();
    rbloat_unlock();
    return taken;
}

static void leave_place(void)
{
    rbloat_lock();
    parked_in = 0;
    rbloat_unlock();
}

static VALUE serve(VALUE holds)
{
    bool *holds_place = (bool *)holds;
    while (*holds_place) {
        uint32_t seen = atomic_load(&changes);
        if (rbloat_service_runs(informed_by)) {
            let_ruby_look();
            rb_thread_call_without_gvl(wait_for_a_change, &seen, interrupt, NULL);
            continue;
        }
        /* In this order: a start that happens meanwhile either finds the place free, or is seen here. */
        leave_place();
        *holds_place = rbloat_service_runs(informed_by) && take_place();
    }
    return Qnil;
}

/* Runs even after Thread#kill, so that the next start parks another thread. */
static VALUE leave(VALUE holds)
{
    if (*(bool *)holds) leave_place();
    return Qnil;
}

static VALUE main_of_informer(void *unused)
{
    bool holds_place = true;
    return rb_ensure(serve, (VALUE)&holds_place, leave, (VALUE)&holds_place);
}

void rbloat_prepare_informing(const rbloat_service *service)
{
    informed_by = service;
}

void rbloat_park_informer(void)
{
    if (!take_place()) return;
    VALUE thread = rb_thread_create(main_of_informer, NULL);
    rb_funcall(thread, rb_intern("name="), 1, rb_str_new_cstr("rbloat-inform"));
    /* Puma warns about threads that run before it forks. This one is restarted in workers. */
    rb_funcall(thread, rb_intern("thread_variable_set"), 2, ID2SYM(rb_intern("fork_safe")), Qtrue);
}

void rbloat_inform_gc(int64_t freed, int64_t grown)
{
    adjust(freed, grown);
    rbloat_change(&changes);
}

void rbloat_end_informing(void)
{
    rbloat_change(&changes);
}

#else

void rbloat_prepare_informing(const rbloat_service *service)
{
}

void rbloat_park_informer(void)
{
}

void rbloat_inform_gc(int64_t freed, int64_t grown)
{
    adjust(freed, grown);
}

void rbloat_end_informing(void)
{
}

#endif

#endif
