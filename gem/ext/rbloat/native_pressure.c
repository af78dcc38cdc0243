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
#include "native_thread.h"
#include "process.h"
#include "rbloat.h"

#include <ruby/debug.h>
#include <ruby/version.h>
#include <string.h>

#if RBLOAT_WATCHES && defined(HAVE_RB_GC_ADJUST_MEMORY_USAGE)

/* Seconds between two looks while there is something to tell, while memory changes, and at most. */
static const double CLOSE_TICK = 0.005, TICK = 0.01, LAST_TICK = 0.1;

/* Malloc is asked when the memory grew by so much, and by this share. */
static const int64_t STEP = 4 * 1024 * 1024;
static const int64_t STEP_SHARE = 16;

/* It is asked so seldom that this takes at most this share of the time. */
static const double ASKING = 0.02;

/* What is unknown to Ruby counts from here on, above the half of what is known: headers of chunks, and what lies in
   caches of malloc, are in use as well. */
static const int64_t SLACK = 4 * 1024 * 1024;

/* Changes below this are not worth telling. */
static const int64_t LEAST = 1024 * 1024;

/* What the thread knows. Only the thread itself touches it. */
static struct {
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
} state;

static int64_t page_of_ruby;

static struct {
    uint64_t looks, counts;
    int64_t told, freed;
} totals;

#define ADD(field, value) __atomic_add_fetch(&totals.field, value, __ATOMIC_RELAXED)

static void run(void);

static void forked(void)
{
    memset(&totals, 0, sizeof(totals));
}

static rbloat_native_thread thread = {.name = "rbloat-pressure", .run = run, .forked = forked};

/* Bytes that Ruby has been told and has added to malloc_increase: a job may be late. */
static int64_t applied;

/* What was freed is taken off from what Ruby knows of old objects alone. It counts the other, malloc_increase, from the
   last GC on, and what was told before that is no part of it any more. */
static void adjust(int64_t freed, int64_t grown)
{
    int64_t before = rbloat_malloc_increase();
    if (freed > 0) rb_gc_adjust_memory_usage((ssize_t)-freed);
    int64_t lost = before - rbloat_malloc_increase(), again = freed > 0 && lost > 0 ? lost : 0;
    if (grown + again > 0) rb_gc_adjust_memory_usage((ssize_t)(grown + again));
    __atomic_add_fetch(&applied, grown, __ATOMIC_SEQ_CST);
}

/* From Ruby 3.1 on any thread may ask for a job, which then runs with the GVL. */
#if defined(HAVE_RB_POSTPONED_JOB_PREREGISTER) || (RUBY_API_VERSION_MAJOR == 3 && RUBY_API_VERSION_MINOR >= 1)

static int64_t pending, freed_pending;

static void tell_with_gvl(void *unused)
{
    adjust(__atomic_exchange_n(&freed_pending, 0, __ATOMIC_SEQ_CST), __atomic_exchange_n(&pending, 0, __ATOMIC_SEQ_CST));
    /* Ruby looks at the limit when it allocates, which the program itself may not do for a while. */
    size_t collection = rb_gc_count();
    ruby_xfree(ruby_xmalloc(1));
    /* A sweep goes on as slots are needed, which small objects with large memory seldom do; disabling ends it. */
    if (rb_gc_count() != collection && !RTEST(rb_gc_disable())) rb_gc_enable();
}

#ifdef HAVE_RB_POSTPONED_JOB_PREREGISTER

static rb_postponed_job_handle_t job;

static void prepare_telling(void)
{
    static bool prepared;
    if (!prepared) job = rb_postponed_job_preregister(0, tell_with_gvl, NULL);
    prepared = true;
}

static void ask_for_job(void)
{
    rb_postponed_job_trigger(job);
}

#else

static void prepare_telling(void)
{
}

static void ask_for_job(void)
{
    rb_postponed_job_register_one(0, tell_with_gvl, NULL);
}

#endif

static void tell(int64_t freed, int64_t grown)
{
    __atomic_add_fetch(&freed_pending, freed, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&pending, grown, __ATOMIC_SEQ_CST);
    ask_for_job();
}

#else

static void prepare_telling(void)
{
}

/* Here this does nothing but add to two counters, atomically, so no GVL is needed; there would be no way to come by it.
   Ruby looks at the limit at the program's next malloc by Ruby. */
static void tell(int64_t freed, int64_t grown)
{
    adjust(freed, grown);
}

#endif

static rbloat_malloc_counts ask_malloc(double now)
{
    /* CPU time: where it has to wait for a CPU, as on a busy machine, asking is no dearer. */
    double started = rbloat_thread_cpu();
    rbloat_malloc_counts counts = rbloat_count_malloc();
    state.asked_at = now;
    state.asking_took = rbloat_thread_cpu() - started;
    ADD(counts, 1);
    return counts;
}

/* After a sweep: what is in use no more of that which was told is given back to Ruby's account. */
static void tell_freed(const rbloat_gc_counts *gc, double now)
{
    bool swept = gc->sweeps != state.sweeps;
    bool major = gc->major_sweeps != state.major_sweeps;
    state.sweeps = gc->sweeps;
    state.major_sweeps = gc->major_sweeps;
    if (!swept || state.outstanding <= 0) return;
    int64_t in_use = ask_malloc(now).in_use, freed = state.in_use - in_use;
    if (freed > state.outstanding) freed = state.outstanding;
    if (freed >= LEAST) {
        tell(freed, 0);
        ADD(freed, freed);
        state.outstanding -= freed;
    }
    state.in_use = in_use;
    /* Ruby's count of what old objects hold begins anew with each major GC. */
    if (major) state.outstanding = 0;
}

static void begin_collection(size_t collection, int64_t anonymous)
{
    state.collection = collection;
    state.anonymous = anonymous;
    state.has_base = false;
    state.told_before = state.tells;
    state.tells = false;
    state.told = 0;
}

/* Counts from here on. */
static void set_base(int64_t anonymous, const rbloat_malloc_counts *counts, int64_t increase, int64_t told, int64_t pages)
{
    state.has_base = true;
    state.base_anonymous = anonymous;
    state.base_in_use = counts->in_use;
    state.base_free = counts->free;
    state.base_increase = increase;
    state.base_applied = told;
    state.base_pages = pages;
    state.told = 0;
}

/* By how much what is in use grew since the base. Memory that was malloc'ed and never touched weighs nothing: what grew
   is resident only as far as the process grew, or free memory became less. */
static int64_t growth(int64_t anonymous, const rbloat_malloc_counts *counts, int64_t pages)
{
    int64_t grown = counts->in_use - state.base_in_use, resident = anonymous - state.base_anonymous;
    if (counts->free < state.base_free) resident += state.base_free - counts->free;
    if (pages > state.base_pages) resident -= pages - state.base_pages;
    return grown < resident ? grown : resident;
}

/* How much of what grew does Ruby not know of? */
static void compare(int64_t anonymous, const rbloat_gc_counts *gc, double now)
{
    rbloat_malloc_counts counts = ask_malloc(now);
    int64_t told = __atomic_load_n(&applied, __ATOMIC_SEQ_CST);
    int64_t increase, pages = (int64_t)gc->heap_pages * page_of_ruby;
    if (!rbloat_ask_malloc_increase(&increase)) return;
    /* What was told meanwhile may be a part of it or not. */
    if (__atomic_load_n(&applied, __ATOMIC_SEQ_CST) != told) return;
    state.anonymous = anonymous;
    state.in_use = counts.in_use;
    /* A collection that began just now has set Ruby's count back. */
    if (rb_gc_count() != state.collection) return;
    if (!state.has_base || counts.in_use < state.base_in_use) {
        set_base(anonymous, &counts, increase, told, pages);
        return;
    }
    int64_t known = (increase - state.base_increase) - (told - state.base_applied);
    int64_t unknown = growth(anonymous, &counts, pages) - known - (known > 0 ? known / 2 : 0);
    if (unknown < SLACK || unknown - state.told < LEAST) return;
    int64_t more = unknown - state.told;
    tell(0, more);
    ADD(told, more);
    state.told += more;
    state.tells = true;
    state.outstanding += more;
}

/* Returns whether anything changed. */
static bool look(double now)
{
    rbloat_resident resident;
    if (!rbloat_read_resident(&resident)) return false;
    rbloat_gc_counts gc = rbloat_count_gc();
    size_t collection = rb_gc_count();
    ADD(looks, 1);
    bool changed = collection != state.collection || resident.anonymous != state.seen;
    state.seen = resident.anonymous;
    tell_freed(&gc, now);
    if (collection != state.collection) begin_collection(collection, resident.anonymous);
    /* Whoever gave memory back: growth counts from there. */
    if (resident.anonymous < state.anonymous) state.anonymous = resident.anonymous;
    int64_t share = state.anonymous / STEP_SHARE, step = share > STEP ? share : STEP;
    bool due = state.tells || state.told_before || resident.anonymous - state.anonymous >= step;
    if (due && now - state.asked_at >= state.asking_took / ASKING) {
        compare(resident.anonymous, &gc, now);
    }
    return changed;
}

static void run(void)
{
    memset(&state, 0, sizeof(state));
    rbloat_gc_counts gc = rbloat_count_gc();
    state.sweeps = gc.sweeps;
    state.major_sweeps = gc.major_sweeps;
    double wait = TICK;
    while (!thread.stopping) {
        uint32_t seen = __atomic_load_n(&thread.wakes, __ATOMIC_SEQ_CST);
        if (thread.stopping) break;
        rbloat_wait(&thread, seen, wait);
        if (thread.stopping) break;
        if (look(rbloat_monotonic())) {
            wait = state.tells || state.told_before ? CLOSE_TICK : TICK;
        } else if (wait < LAST_TICK) {
            wait *= 1.5;
        }
    }
}

static VALUE native_start(VALUE self, VALUE page)
{
    if (!rbloat_glibc_malloc()) return Qfalse;
    page_of_ruby = NUM2LL(page);
    prepare_telling();
    rbloat_watch_gc();
    rbloat_prepare_asking(&thread);
    rbloat_start_thread(&thread);
    return Qtrue;
}

static VALUE stats(VALUE self)
{
    VALUE hash = rb_hash_new();
    rb_hash_aset(hash, ID2SYM(rb_intern("looks")), ULL2NUM(__atomic_load_n(&totals.looks, __ATOMIC_RELAXED)));
    rb_hash_aset(hash, ID2SYM(rb_intern("counts")), ULL2NUM(__atomic_load_n(&totals.counts, __ATOMIC_RELAXED)));
    rb_hash_aset(hash, ID2SYM(rb_intern("told_bytes")), LL2NUM(__atomic_load_n(&totals.told, __ATOMIC_RELAXED)));
    rb_hash_aset(hash, ID2SYM(rb_intern("freed_bytes")), LL2NUM(__atomic_load_n(&totals.freed, __ATOMIC_RELAXED)));
    return hash;
}

static void define(VALUE module)
{
    rbloat_define_thread(module, &thread);
    rb_define_singleton_method(module, "native_start", native_start, 1);
    rb_define_singleton_method(module, "stats", stats, 0);
}

#else

static void define(VALUE module)
{
    rbloat_define_no_thread(module);
}

#endif

void rbloat_init_native_pressure(VALUE rbloat)
{
    define(rb_define_module_under(rbloat, "NativePressure"));
}
