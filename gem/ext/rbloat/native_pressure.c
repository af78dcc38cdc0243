/*
 * Rbloat::NativePressure: lets the GC know of memory that extensions take from malloc and do not report.
 *
 * A native thread watches the anonymous memory of the process. When that grew, malloc is asked how much more is in use
 * than before; what Ruby counts itself since (malloc_increase) is taken off, and the rest is told to the GC as an
 * extension would do it, by rb_gc_adjust_memory_usage. So it is Ruby's own limits, and how they adapt, that decide when
 * the GC runs. When the GC has freed such memory, that is told as well.
 *
 * Everything is counted from one collection to the next, since Ruby counts so. A program that allocates by Ruby alone
 * is told nothing, and costs one read of /proc each tick. Once something was told, the next collection is watched more
 * closely: what it frees is used again first, so that the process grows by nothing while the GC again knows of nothing.
 */
#include "allocator.h"
#include "gc_counts.h"
#include "gc_informer.h"
#include "native_thread.h"
#include "process.h"
#include "rbloat.h"

#if RBLOAT_WATCHES && defined(HAVE_RB_GC_ADJUST_MEMORY_USAGE)

/* Seconds between two looks while there is something to tell, while memory changes, and at most. */
static const double CLOSE_TICK = 0.005, TICK = 0.01, LAST_TICK = 0.1;

/* Malloc is asked when the memory grew by so much, and by this share. */
static const int64_t STEP = 4 * 1024 * 1024;
static const int64_t STEP_SHARE = 16;

/* It is asked so seldom that this takes at most this share of the time, whatever for: a call walks all free chunks, with
   the locks of the arenas held. */
static const double ASKING = 0.02;

/* What is unknown to Ruby counts from here on, above the half of what is known: headers of chunks, and what lies in
   caches of malloc, are in use as well. */
static const int64_t SLACK = 4 * 1024 * 1024;

/* Changes below this are not worth telling. */
static const int64_t LEAST = 1024 * 1024;

typedef struct {
    rbloat_native_thread thread;
    int64_t page_of_ruby; /* bytes of a heap page that are not malloc's */
} context;

/* What a thread knows, on its own stack. */
typedef struct {
    context *context;
    size_t collection;   /* of which all below is */
    int64_t anonymous;   /* bytes at its beginning, or when malloc was last asked */
    bool has_base;
    int64_t base_anonymous, base_in_use, base_free, base_increase, base_applied, base_pages;
    int64_t told;            /* since the base */
    bool tells, told_before; /* something was told in it; in the one before */
    int64_t outstanding; /* told, and neither freed since nor forgotten by Ruby in a major GC */
    int64_t in_use;      /* when malloc was last asked */
    uint64_t sweeps, major_sweeps;
    double asked_at, asking_took;
    int64_t seen;        /* bytes at the last look */
} knowledge;

static struct {
    _Atomic uint64_t looks, counts;
    _Atomic int64_t told, freed;
} totals;

#define ADD(field, value) atomic_fetch_add_explicit(&totals.field, value, memory_order_relaxed)
#define LOAD(field) atomic_load_explicit(&totals.field, memory_order_relaxed)

static bool may_ask(const knowledge *state, double now)
{
    return now - state->asked_at >= state->asking_took / ASKING;
}

static rbloat_malloc_counts ask_malloc(knowledge *state, double now)
{
    /* CPU time: where it has to wait for a CPU, as on a busy machine, asking is no dearer. */
    double started = rbloat_thread_cpu();
    rbloat_malloc_counts counts = rbloat_count_malloc();
    state->asked_at = now;
    state->asking_took = rbloat_thread_cpu() - started;
    ADD(counts, 1);
    return counts;
}

/* After a sweep: what is in use no more of that which was told is given back to Ruby's account. */
static void tell_freed(knowledge *state, const rbloat_gc_counts *gc, double now)
{
    bool swept = gc->sweeps != state->sweeps;
    bool major = gc->major_sweeps != state->major_sweeps;
    /* A sweep whose turn is not yet is told with the next ones. */
    if (swept && state->outstanding > 0 && !may_ask(state, now)) return;
    state->sweeps = gc->sweeps;
    state->major_sweeps = gc->major_sweeps;
    if (!swept || state->outstanding <= 0) return;
    int64_t in_use = ask_malloc(state, now).in_use, freed = state->in_use - in_use;
    if (freed > state->outstanding) freed = state->outstanding;
    if (freed >= LEAST) {
        rbloat_inform_gc(freed, 0);
        ADD(freed, freed);
        state->outstanding -= freed;
    }
    state->in_use = in_use;
    /* Ruby's count of what old objects hold begins anew with each major GC. */
    if (major) state->outstanding = 0;
}

static void begin_collection(knowledge *state, size_t collection, int64_t anonymous)
{
    state->collection = collection;
    state->anonymous = anonymous;
    state->has_base = false;
    state->told_before = state->tells;
    state->tells = false;
    state->told = 0;
}

/* Counts from here on. */
static void set_base(knowledge *state, int64_t anonymous, const rbloat_malloc_counts *counts, int64_t increase, int64_t told,
                     int64_t pages)
{
    state->has_base = true;
    state->base_anonymous = anonymous;
    state->base_in_use = counts->in_use;
    state->base_free = counts->free;
    state->base_increase = increase;
    state->base_applied = told;
    state->base_pages = pages;
    state->told = 0;
}

/* By how much what is in use grew since the base. Memory that was malloc'ed and never touched weighs nothing: what grew
   is resident only as far as the process grew, or free memory became less. */
static int64_t growth(const knowledge *state, int64_t anonymous, const rbloat_malloc_counts *counts, int64_t pages)
{
    int64_t grown = counts->in_use - state->base_in_use, resident = anonymous - state->base_anonymous;
    if (counts->free < state->base_free) resident += state->base_free - counts->free;
    if (pages > state->base_pages) resident -= pages - state->base_pages;
    return grown < resident ? grown : resident;
}

/* How much of what grew does Ruby not know of? */
static void compare(knowledge *state, int64_t anonymous, const rbloat_gc_counts *gc, double now)
{
    rbloat_malloc_counts counts = ask_malloc(state, now);
    int64_t told = rbloat_informed_bytes();
    int64_t increase, pages = (int64_t)gc->heap_pages * state->context->page_of_ruby;
    if (!rbloat_ask_malloc_increase(&state->context->thread, &increase)) return;
    /* What was told meanwhile may be a part of it or not. */
    if (rbloat_informed_bytes() != told) return;
    state->anonymous = anonymous;
    state->in_use = counts.in_use;
    /* A collection that began just now has set Ruby's count back. */
    if (rb_gc_count() != state->collection) return;
    if (!state->has_base || counts.in_use < state->base_in_use) {
        set_base(state, anonymous, &counts, increase, told, pages);
        return;
    }
    int64_t known = (increase - state->base_increase) - (told - state->base_applied);
    int64_t unknown = growth(state, anonymous, &counts, pages) - known - (known > 0 ? known / 2 : 0);
    if (unknown < SLACK || unknown - state->told < LEAST) return;
    int64_t more = unknown - state->told;
    rbloat_inform_gc(0, more);
    ADD(told, more);
    state->told += more;
    state->tells = true;
    state->outstanding += more;
}

/* Returns whether anything changed. */
static bool look(knowledge *state, double now)
{
    rbloat_resident resident;
    if (!rbloat_read_resident(&resident)) return false;
    rbloat_gc_counts gc = rbloat_count_gc();
    size_t collection = rb_gc_count();
    ADD(looks, 1);
    bool changed = collection != state->collection || resident.anonymous != state->seen;
    state->seen = resident.anonymous;
    tell_freed(state, &gc, now);
    if (collection != state->collection) begin_collection(state, collection, resident.anonymous);
    /* Whoever gave memory back: growth counts from there. */
    if (resident.anonymous < state->anonymous) state->anonymous = resident.anonymous;
    int64_t share = state->anonymous / STEP_SHARE, step = share > STEP ? share : STEP;
    bool due = state->tells || state->told_before || resident.anonymous - state->anonymous >= step;
    if (due && may_ask(state, now)) compare(state, resident.anonymous, &gc, now);
    return changed;
}

static void run(rbloat_native_thread *thread)
{
    rbloat_gc_counts gc = rbloat_count_gc();
    knowledge state = {.context = (context *)thread, .sweeps = gc.sweeps, .major_sweeps = gc.major_sweeps};
    double wait = TICK;
    while (!atomic_load(&thread->stopping)) {
        uint32_t seen = atomic_load(&thread->wakes);
        if (atomic_load(&thread->stopping)) break;
        rbloat_wait(thread, seen, wait);
        if (atomic_load(&thread->stopping)) break;
        if (look(&state, rbloat_monotonic())) {
            wait = state.tells || state.told_before ? CLOSE_TICK : TICK;
        } else if (wait < LAST_TICK) {
            wait *= 1.5;
        }
    }
    rbloat_end_informing();
}

static void forked(void)
{
    memset(&totals, 0, sizeof(totals));
}

static const rbloat_service service = {
    .name = "rbloat-pressure", .size = sizeof(context), .run = run, .started = rbloat_park_informer, .forked = forked,
};

static VALUE native_start(VALUE self, VALUE page)
{
    if (!rbloat_glibc_malloc()) return Qfalse;
    context context = {.thread = {.service = &service}, .page_of_ruby = NUM2LL(page)};
    rbloat_watch_gc();
    rbloat_prepare_asking(&service);
    rbloat_prepare_informing(&service);
    rbloat_start_thread(&context.thread);
    return Qtrue;
}

static VALUE stop(VALUE self)
{
    rbloat_stop_service(&service);
    return Qnil;
}

static VALUE running_p(VALUE self)
{
    return rbloat_service_runs(&service) ? Qtrue : Qfalse;
}

static VALUE stats(VALUE self)
{
    VALUE hash = rb_hash_new();
    rb_hash_aset(hash, ID2SYM(rb_intern("looks")), ULL2NUM(LOAD(looks)));
    rb_hash_aset(hash, ID2SYM(rb_intern("counts")), ULL2NUM(LOAD(counts)));
    rb_hash_aset(hash, ID2SYM(rb_intern("told_bytes")), LL2NUM(LOAD(told)));
    rb_hash_aset(hash, ID2SYM(rb_intern("freed_bytes")), LL2NUM(LOAD(freed)));
    return hash;
}

static void define(VALUE module)
{
    rb_define_singleton_method(module, "native_start", native_start, 1);
    rb_define_singleton_method(module, "stop", stop, 0);
    rb_define_singleton_method(module, "running?", running_p, 0);
    rb_define_singleton_method(module, "stats", stats, 0);
}

#else

static void define(VALUE module)
{
    rbloat_define_no_service(module);
}

#endif

void rbloat_init_native_pressure(VALUE rbloat)
{
    define(rb_define_module_under(rbloat, "NativePressure"));
}
