/*
 * Rbloat::NativePressure: reports memory to the GC that extensions allocate with malloc and do not report.
 *
 * A native thread watches the anonymous memory of the process. When it grows, the thread counts how much more memory
 * malloc has in use, subtracts Ruby's own count (malloc_increase), and reports the rest with rb_gc_adjust_memory_usage, as
 * the extension should have done. Ruby's limits, which adapt, decide when the GC runs. Memory that the GC frees is
 * reported as freed.
 *
 * Like Ruby's count, everything is counted from one collection to the next. A program that allocates only with Ruby's
 * malloc costs one read of /proc each tick. After a report, the next collection is watched more closely: new allocations
 * then use the memory that was just freed, so the process does not grow although the GC again knows nothing.
 */
#include "allocator.h"
#include "gc_counts.h"
#include "gc_informer.h"
#include "native_thread.h"
#include "process.h"
#include "rbloat.h"

#if RBLOAT_WATCHES && defined(HAVE_RB_GC_ADJUST_MEMORY_USAGE)

/* Seconds between two looks: after a report, while memory changes, and otherwise. */
static const double CLOSE_TICK = 0.005, TICK = 0.01, MAX_TICK = 0.1;

/* malloc's memory is counted after the process grew by this many bytes, and by this fraction (1/16). */
static const int64_t STEP = 4 * 1024 * 1024;
static const int64_t STEP_FRACTION = 16;

/* The share of the time that counting malloc's memory may take: it walks all free chunks with the locks of the arenas
   held. */
static const double COUNTING_SHARE = 0.02;

/* Unreported memory below this plus half of the reported memory is ignored: headers of chunks and malloc's caches count as
   in use as well. */
static const int64_t SLACK = 4 * 1024 * 1024;

/* Smaller changes are not reported. */
static const int64_t MIN_CHANGE = 1024 * 1024;

typedef struct {
    rbloat_native_thread thread;
    int64_t page_of_ruby; /* bytes of a heap page of Ruby that are not malloc's */
} context;

/* The state of a thread, on its own stack. */
typedef struct {
    context *context;
    size_t collection; /* the number of the current collection */
    int64_t anonymous; /* anonymous bytes when the collection began, or at the last count of malloc's memory */
    bool has_base;     /* the counts below were taken in this collection */
    int64_t base_anonymous, base_in_use, base_free, base_increase, base_applied, base_pages;
    int64_t told;            /* bytes that were reported since the base */
    bool tells, told_before; /* something was reported in this collection, and in the previous one */
    int64_t outstanding;     /* reported bytes that were neither freed nor forgotten by Ruby in a major GC */
    int64_t in_use;          /* bytes in use at the last count of malloc's memory */
    uint64_t sweeps, major_sweeps;
    double counted_at, counting_took;
    int64_t seen; /* anonymous bytes at the last look */
} knowledge;

static struct {
    _Atomic uint64_t looks, counts;
    _Atomic int64_t told, freed;
} totals;

#define ADD(field, value) atomic_fetch_add_explicit(&totals.field, value, memory_order_relaxed)
#define LOAD(field) atomic_load_explicit(&totals.field, memory_order_relaxed)

static bool may_count(const knowledge *state, double now)
{
    return now - state->counted_at >= state->counting_took / COUNTING_SHARE;
}

static rbloat_malloc_counts count_malloc(knowledge *state, double now)
{
    /* CPU time, since waiting for a CPU on a busy machine does not make the count more expensive. */
    double started = rbloat_thread_cpu();
    rbloat_malloc_counts counts = rbloat_count_malloc();
    state->counted_at = now;
    state->counting_took = rbloat_thread_cpu() - started;
    ADD(counts, 1);
    return counts;
}

/* After a sweep, reports the memory as freed that was reported before and is no longer in use. */
static void tell_freed(knowledge *state, const rbloat_gc_counts *gc, double now)
{
    bool swept = gc->sweeps != state->sweeps;
    bool major = gc->major_sweeps != state->major_sweeps;
    /* If it is too early to count, the next look reports this sweep. */
    if (swept && state->outstanding > 0 && !may_count(state, now)) return;
    state->sweeps = gc->sweeps;
    state->major_sweeps = gc->major_sweeps;
    if (!swept || state->outstanding <= 0) return;
    int64_t in_use = count_malloc(state, now).in_use, freed = state->in_use - in_use;
    if (freed > state->outstanding) freed = state->outstanding;
    if (freed >= MIN_CHANGE) {
        rbloat_inform_gc(freed, 0);
        ADD(freed, freed);
        state->outstanding -= freed;
    }
    state->in_use = in_use;
    /* A major GC resets Ruby's count of memory of old objects. */
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

/* The growth of memory in use since the base. Memory that was allocated and never touched does not count: the growth is
   resident only if the process grew, or free memory shrank. */
static int64_t growth(const knowledge *state, int64_t anonymous, const rbloat_malloc_counts *counts, int64_t pages)
{
    int64_t grown = counts->in_use - state->base_in_use, resident = anonymous - state->base_anonymous;
    if (counts->free < state->base_free) resident += state->base_free - counts->free;
    if (pages > state->base_pages) resident -= pages - state->base_pages;
    return grown < resident ? grown : resident;
}

/* Reports the growth that Ruby does not know about. */
static void compare(knowledge *state, int64_t anonymous, const rbloat_gc_counts *gc, double now)
{
    rbloat_malloc_counts counts = count_malloc(state, now);
    int64_t told = rbloat_informed_bytes();
    int64_t increase, pages = (int64_t)gc->heap_pages * state->context->page_of_ruby;
    if (!rbloat_ask_malloc_increase(&state->context->thread, &increase)) return;
    /* A report that was applied meanwhile may be in that count or not. */
    if (rbloat_informed_bytes() != told) return;
    state->anonymous = anonymous;
    state->in_use = counts.in_use;
    /* A collection that began meanwhile has reset Ruby's count. */
    if (rb_gc_count() != state->collection) return;
    if (!state->has_base || counts.in_use < state->base_in_use) {
        set_base(state, anonymous, &counts, increase, told, pages);
        return;
    }
    int64_t known = (increase - state->base_increase) - (told - state->base_applied);
    int64_t unknown = growth(state, anonymous, &counts, pages) - known - (known > 0 ? known / 2 : 0);
    if (unknown < SLACK || unknown - state->told < MIN_CHANGE) return;
    int64_t more = unknown - state->told;
    rbloat_inform_gc(0, more);
    ADD(told, more);
    state->told += more;
    state->tells = true;
    state->outstanding += more;
}

/* Returns true if memory changed, or a collection began. */
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
    /* Growth counts from the lowest size, whoever returned memory. */
    if (resident.anonymous < state->anonymous) state->anonymous = resident.anonymous;
    int64_t share = state->anonymous / STEP_FRACTION, step = share > STEP ? share : STEP;
    bool due = state->tells || state->told_before || resident.anonymous - state->anonymous >= step;
    if (due && may_count(state, now)) compare(state, resident.anonymous, &gc, now);
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
        } else if (wait < MAX_TICK) {
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
