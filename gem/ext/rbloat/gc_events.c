#include "gc_events.h"
#include "rbloat.h"

#include <ruby/debug.h>

static struct {
    rbloat_native_thread *thread;
    volatile bool *sleeping;
} sleeper;

static rbloat_gc_counts counts;
static VALUE tracepoint = Qnil;
static VALUE major_gc_count, heap_allocated_pages, malloc_increase_bytes;

#define LOAD(field) __atomic_load_n(&counts.field, __ATOMIC_RELAXED)
#define STORE(field, value) __atomic_store_n(&counts.field, value, __ATOMIC_RELAXED)

rbloat_gc_counts rbloat_count_gc(void)
{
    return (rbloat_gc_counts){
        .starts = LOAD(starts),
        .sweeps = LOAD(sweeps),
        .major_sweeps = LOAD(major_sweeps),
        .heap_pages = LOAD(heap_pages),
    };
}

int64_t rbloat_malloc_increase(void)
{
    return (int64_t)rb_gc_stat(malloc_increase_bytes);
}

#if RBLOAT_WATCHES

static void sweep_ended(void)
{
    static size_t majors;
    size_t now = rb_gc_stat(major_gc_count);
    STORE(heap_pages, rb_gc_stat(heap_allocated_pages));
    if (now != majors) STORE(major_sweeps, LOAD(major_sweeps) + 1);
    majors = now;
    STORE(sweeps, LOAD(sweeps) + 1);
    if (sleeper.thread && *sleeper.sleeping) rbloat_wake_thread(sleeper.thread);
}

/* Runs inside of the GC: nothing here may allocate an object, nor wait. */
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
    rb_event_flag_t events = RUBY_INTERNAL_EVENT_GC_START | RUBY_INTERNAL_EVENT_GC_END_SWEEP;
    tracepoint = rb_tracepoint_new(0, events, gc_event, NULL);
    rb_tracepoint_enable(tracepoint);
}

void rbloat_wake_at_sweep(rbloat_native_thread *thread, volatile bool *sleeping)
{
    sleeper.sleeping = sleeping;
    __atomic_store_n(&sleeper.thread, thread, __ATOMIC_RELEASE);
}

#endif

void rbloat_init_gc_events(void)
{
    rb_gc_register_address(&tracepoint);
    major_gc_count = ID2SYM(rb_intern("major_gc_count"));
    heap_allocated_pages = ID2SYM(rb_intern("heap_allocated_pages"));
    malloc_increase_bytes = ID2SYM(rb_intern("malloc_increase_bytes"));
    /* The first call makes the symbols of all counters. Inside of the GC that would be a "[BUG] object allocation
       during garbage collection phase". */
    rb_gc_stat(major_gc_count);
}
