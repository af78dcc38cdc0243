#include "gc_counts.h"
#include "process.h"
#include "rbloat.h"

#include <ruby/debug.h>
#include <ruby/version.h>

static VALUE major_gc_count, heap_allocated_pages, malloc_increase_bytes;

int64_t rbloat_malloc_increase(void)
{
    return (int64_t)rb_gc_stat(malloc_increase_bytes);
}

#if RUBY_API_VERSION_CODE < 30300

static VALUE state, none, major_by;

static void init_counts(void)
{
    state = ID2SYM(rb_intern("state"));
    none = ID2SYM(rb_intern("none"));
    major_by = ID2SYM(rb_intern("major_by"));
    rb_gc_latest_gc_info(state);
}

void rbloat_watch_gc(void)
{
}

rbloat_gc_counts rbloat_count_gc(void)
{
    uint64_t starts = rb_gc_count(), majors = rb_gc_stat(major_gc_count);
    bool over = rb_gc_latest_gc_info(state) == none, major = !NIL_P(rb_gc_latest_gc_info(major_by));
    /* A collection that began meanwhile is not over. */
    if (rb_gc_count() != starts) over = false;
    return (rbloat_gc_counts){
        .starts = starts,
        .sweeps = over || starts == 0 ? starts : starts - 1,
        .major_sweeps = over || !major || majors == 0 ? majors : majors - 1,
        .heap_pages = rb_gc_stat(heap_allocated_pages),
    };
}

#else

static struct {
    _Atomic uint64_t starts, sweeps, major_sweeps, heap_pages;
} counts;
static VALUE tracepoint = Qnil;

#define LOAD(field) atomic_load_explicit(&counts.field, memory_order_relaxed)
#define STORE(field, value) atomic_store_explicit(&counts.field, value, memory_order_relaxed)

static void init_counts(void)
{
    rb_gc_register_address(&tracepoint);
}

rbloat_gc_counts rbloat_count_gc(void)
{
    return (rbloat_gc_counts){
        .starts = LOAD(starts),
        .sweeps = LOAD(sweeps),
        .major_sweeps = LOAD(major_sweeps),
        .heap_pages = LOAD(heap_pages),
    };
}

static void sweep_ended(void)
{
    static size_t majors;
    size_t now = rb_gc_stat(major_gc_count);
    STORE(heap_pages, rb_gc_stat(heap_allocated_pages));
    if (now != majors) STORE(major_sweeps, LOAD(major_sweeps) + 1);
    majors = now;
    STORE(sweeps, LOAD(sweeps) + 1);
}

/* Runs inside the GC: it must not allocate objects, nor wait. */
static void gc_event(VALUE tracepoint_value, void *unused)
{
    rb_event_flag_t event = rb_tracearg_event_flag(rb_tracearg_from_tracepoint(tracepoint_value));
    if (event == RUBY_INTERNAL_EVENT_GC_START) {
        STORE(starts, LOAD(starts) + 1);
    } else {
        sweep_ended();
    }
}

void rbloat_watch_gc(void)
{
    if (!NIL_P(tracepoint)) return;
    STORE(heap_pages, rb_gc_stat(heap_allocated_pages));
    tracepoint = rb_tracepoint_new(0, RUBY_INTERNAL_EVENT_GC_START | RUBY_INTERNAL_EVENT_GC_END_SWEEP, gc_event, NULL);
    rb_tracepoint_enable(tracepoint);
}

#endif

#if RBLOAT_WATCHES && RUBY_API_VERSION_CODE >= 40000

/* Seconds to wait for an answer. The thread that holds the GVL may be busy in C. */
static const double PATIENCE = 0.1;

static const rbloat_service *asker;
static _Atomic int64_t answer;
static _Atomic uint32_t answers;

static void answer_increase(void *unused)
{
    atomic_store(&answer, rbloat_malloc_increase());
    atomic_fetch_add(&answers, 1);
    /* Wakes the service, not the thread that asked, which may have ended. */
    rbloat_wake_service(asker);
}

static rb_postponed_job_handle_t job;

void rbloat_prepare_asking(const rbloat_service *service)
{
    if (!asker) job = rb_postponed_job_preregister(0, answer_increase, NULL);
    asker = service;
}

bool rbloat_ask_malloc_increase(rbloat_native_thread *thread, int64_t *bytes)
{
    uint32_t before = atomic_load(&answers);
    double until = rbloat_monotonic() + PATIENCE;
    rb_postponed_job_trigger(job);
    for (double left = PATIENCE; left > 0 && !atomic_load(&thread->stopping); left = until - rbloat_monotonic()) {
        uint32_t seen = atomic_load(&thread->wakes);
        if (atomic_load(&answers) != before) {
            *bytes = atomic_load(&answer);
            return true;
        }
        rbloat_wait(thread, seen, left);
    }
    return false;
}

#else

void rbloat_prepare_asking(const rbloat_service *service)
{
}

bool rbloat_ask_malloc_increase(rbloat_native_thread *thread, int64_t *bytes)
{
    *bytes = rbloat_malloc_increase();
    return true;
}

#endif

void rbloat_init_gc_counts(void)
{
    major_gc_count = ID2SYM(rb_intern("major_gc_count"));
    heap_allocated_pages = ID2SYM(rb_intern("heap_allocated_pages"));
    malloc_increase_bytes = ID2SYM(rb_intern("malloc_increase_bytes"));
    init_counts();
    /* The first call of a process creates symbols. Inside the GC that would be a "[BUG] object allocation during garbage
       collection phase". */
    rb_gc_stat(major_gc_count);
}
