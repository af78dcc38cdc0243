/*
 * Rbloat::AutoTrim: a native thread that gives free memory of malloc back to the kernel when that is worth it.
 *
 * How much a trim will bring is known cheaply from the part of the anonymous memory that neither malloc has in use nor
 * Ruby's heap pages are: the *rest*. After a trim only what cannot be given back is left of it, so whatever the rest is
 * above its lowest value since is free memory. Whoever else trims, as Process.warmup does, lowers the rest alike.
 */
#include "gc_counts.h"
#include "allocator.h"
#include "native_thread.h"
#include "process.h"
#include "ration.h"
#include "rbloat.h"

#include <ruby/thread.h>
#include <string.h>
#include <unistd.h>

#if RBLOAT_WATCHES

/* Seconds between two looks while the process runs, and while it is quiet and nothing is expected. */
static const double TICK = 0.1, IDLE = 5.0, IDLE_NEAR_A_LIMIT = 1.0;

/* Seconds between two glances at the count of sweeps in longer waits, which the end of a sweep ends. */
static const double GLANCE = 0.25;

/* A look at malloc's lists is taken only when RSS grew by so much, or the GC gave reason to. */
static const int64_t GROWTH_WORTH_A_LOOK = 8 * 1024 * 1024;

/* Seconds between two trims under pressure, which are worth it for less. */
static const double PRESSING = 0.05;
static const int64_t LEAST_UNDER_PRESSURE = 1024 * 1024;

enum { PATH_BYTES = 512 };

static struct {
    double share;
    int64_t least;         /* bytes */
    double least_of_rss;   /* share of RSS */
    double pressure;       /* share of the limit at which it counts as near */
    int64_t limit;         /* bytes, or 0 for none */
    int64_t page_of_ruby;  /* bytes of a heap page that are not malloc's */
    char usage[PATH_BYTES], cache[PATH_BYTES], cache_word[32];
} settings;

/* What the thread knows. Only the thread itself touches it. */
static struct {
    rbloat_ration ration;
    bool has_floor; /* a forked process has that of its parent, whose memory it has */
    int64_t floor;
    double looked_at, trimmed_at, counted_at, look_took, process_cpu, own_cpu;
    int64_t faults, rss_counted, rss_trimmed, expected;
    rbloat_gc_counts counted, trimmed;
} state;

static struct {
    uint64_t trims, useless, looks, under_pressure;
    int64_t returned, last_returned, expected;
    double trim_seconds, longest, look_seconds, credit, fault_cost, comeback;
} totals;

static pthread_mutex_t totals_lock = PTHREAD_MUTEX_INITIALIZER;

static volatile bool quiet_was_announced;

static void run(void);

static void forked(void)
{
    pthread_mutex_init(&totals_lock, NULL);
    memset(&totals, 0, sizeof(totals));
}

static rbloat_native_thread thread = {.name = "rbloat-trim", .run = run, .forked = forked};

static int64_t rest_of(const rbloat_resident *resident, const rbloat_malloc_counts *counts, const rbloat_gc_counts *gc)
{
    return resident->anonymous - counts->in_use - (int64_t)gc->heap_pages * settings.page_of_ruby;
}

static bool near_limit(void)
{
    if (settings.limit <= 0) return false;
    double near = settings.pressure * (double)settings.limit;
    int64_t used = rbloat_read_number(settings.usage, NULL);
    if ((double)used < near) return false;
    /* The kernel drops what it caches of files by itself. */
    int64_t cache = settings.cache[0] ? rbloat_read_number(settings.cache, settings.cache_word) : 0;
    return (double)(used - (cache > 0 ? cache : 0)) >= near;
}

/* Takes the time and the faults since the last look into account, and tells whether the process was quiet in it. */
static bool pass_time(double now)
{
    double span = now - state.looked_at, cpu = rbloat_process_cpu(), own = rbloat_thread_cpu();
    int64_t faults = rbloat_minor_faults();
    double busy = (cpu - state.process_cpu) - (own - state.own_cpu);
    rbloat_ration_passed(&state.ration, span, faults - state.faults);
    state.looked_at = now;
    state.process_cpu = cpu;
    state.own_cpu = own;
    state.faults = faults;
    bool announced = quiet_was_announced;
    quiet_was_announced = false;
    return announced || rbloat_was_quiet(span, busy);
}

static bool worth_a_look(const rbloat_outlook *outlook, const rbloat_gc_counts *gc, double now)
{
    if (outlook->pressure) return now - state.trimmed_at >= PRESSING;
    if (now < state.ration.not_before || state.ration.credit < 0) return false;
    if (!outlook->quiet) {
        /* While the process is busy, looks are paid from what a trim of all that RSS grew by would leave. */
        int64_t most = outlook->rss - state.rss_trimmed;
        if (!outlook->swept || state.ration.credit < rbloat_ration_cost(&state.ration, most > 0 ? most : 0)) return false;
        if (now - state.counted_at < state.look_took / settings.share) return false;
    }
    return gc->major_sweeps != state.counted.major_sweeps || outlook->rss >= state.rss_counted + GROWTH_WORTH_A_LOOK ||
           (outlook->quiet && (gc->starts != state.counted.starts || state.expected >= outlook->least));
}

static int64_t expect(const rbloat_resident *resident, const rbloat_gc_counts *gc)
{
    double started = rbloat_thread_cpu();
    rbloat_malloc_counts counts = rbloat_count_malloc();
    double took = rbloat_thread_cpu() - started;
    state.counted_at = rbloat_monotonic();
    state.look_took = took;
    int64_t rest = rest_of(resident, &counts, gc);
    if (rest < state.floor) state.floor = rest;
    state.counted = *gc;
    state.rss_counted = resident->rss;
    state.expected = rest - state.floor < counts.free ? rest - state.floor : counts.free;

    pthread_mutex_lock(&totals_lock);
    totals.looks++;
    totals.look_seconds += took;
    totals.expected = state.expected;
    pthread_mutex_unlock(&totals_lock);
    return state.expected;
}

static void trim(const rbloat_outlook *outlook, const rbloat_gc_counts *gc, double now)
{
    rbloat_resident before, after;
    if (!rbloat_read_resident(&before)) return;
    double started = rbloat_monotonic(), cpu = rbloat_thread_cpu();
    rbloat_trim_malloc();
    double took = rbloat_monotonic() - started, cost = rbloat_thread_cpu() - cpu;
    if (!rbloat_read_resident(&after)) return;
    int64_t returned = before.rss > after.rss ? before.rss - after.rss : 0;
    rbloat_ration_trimmed(&state.ration, outlook, now, cost, returned);
    rbloat_malloc_counts counts = rbloat_count_malloc();
    state.floor = rest_of(&after, &counts, gc);
    state.trimmed_at = rbloat_monotonic();
    state.trimmed = *gc;
    state.expected = 0;
    state.rss_trimmed = after.rss;
    state.rss_counted = after.rss;
    state.faults = rbloat_minor_faults();

    pthread_mutex_lock(&totals_lock);
    totals.trims++;
    if (returned < outlook->least / 2) totals.useless++;
    if (outlook->pressure) totals.under_pressure++;
    totals.returned += returned;
    totals.last_returned = returned;
    totals.trim_seconds += took;
    if (took > totals.longest) totals.longest = took;
    totals.comeback = state.ration.comeback;
    totals.expected = 0;
    pthread_mutex_unlock(&totals_lock);
}

/* Looks, trims if that is worth it, and returns the seconds until the next look. */
static double look(void)
{
    double now = rbloat_monotonic();
    rbloat_resident resident;
    if (!rbloat_read_resident(&resident)) return IDLE;
    rbloat_gc_counts gc = rbloat_count_gc();
    rbloat_outlook outlook = {.rss = resident.rss};
    outlook.quiet = pass_time(now);
    outlook.swept = gc.sweeps != state.trimmed.sweeps && gc.sweeps >= gc.starts;
    outlook.pressure = near_limit();
    int64_t share = (int64_t)(settings.least_of_rss * (double)resident.rss);
    outlook.least = outlook.pressure ? LEAST_UNDER_PRESSURE : share > settings.least ? share : settings.least;
    /* Whoever else trimmed lowered RSS: growth counts from there. */
    if (resident.rss < state.rss_counted) state.rss_counted = resident.rss;
    if (resident.rss < state.rss_trimmed) state.rss_trimmed = resident.rss;

    if (worth_a_look(&outlook, &gc, now)) {
        outlook.expected = expect(&resident, &gc);
        if (rbloat_ration_allows(&state.ration, &outlook)) trim(&outlook, &gc, now);
        if (!outlook.quiet) rbloat_ration_looked(&state.ration, state.look_took);
    }
    pthread_mutex_lock(&totals_lock);
    totals.credit = state.ration.credit;
    pthread_mutex_unlock(&totals_lock);
    if (outlook.pressure) return PRESSING;
    if (!outlook.quiet) return TICK;
    double wait = settings.limit > 0 ? IDLE_NEAR_A_LIMIT : IDLE;
    /* What is due when the account is filled again, or a pause over, must not wait for the next GC. */
    double overdrawn = state.ration.credit < 0 ? -state.ration.credit / state.ration.share : 0;
    double paused = state.ration.not_before > now ? state.ration.not_before - now : 0;
    double due = overdrawn > paused ? overdrawn : paused;
    return due > 0 && due < wait ? due + TICK / 10 : wait;
}

/* Until something was trimmed, all that is free now may be there to be given back, but nothing of what is free later and
   was given back by others: as a warmup does it. */
static void find_first_floor(void)
{
    rbloat_resident resident;
    if (state.has_floor || !rbloat_read_resident(&resident)) return;
    rbloat_gc_counts gc = rbloat_count_gc();
    rbloat_malloc_counts counts = rbloat_count_malloc();
    state.floor = rest_of(&resident, &counts, &gc) - counts.free;
    state.has_floor = true;
}

/* Waits for as long at most: the end of a sweep ends a longer wait, and a wake any. */
static void wait_for(double seconds)
{
    uint32_t seen = __atomic_load_n(&thread.wakes, __ATOMIC_SEQ_CST);
    uint64_t sweeps = rbloat_count_gc().sweeps;
    double until = rbloat_monotonic() + seconds;
    for (double left = seconds; left > 0 && !thread.stopping; left = until - rbloat_monotonic()) {
        rbloat_wait(&thread, seen, left < GLANCE ? left : GLANCE);
        if (__atomic_load_n(&thread.wakes, __ATOMIC_SEQ_CST) != seen) return;
        if (seconds > TICK && rbloat_count_gc().sweeps != sweeps) return;
    }
}

static void run(void)
{
    bool has_floor = state.has_floor;
    int64_t floor = state.floor;
    memset(&state, 0, sizeof(state));
    state.has_floor = has_floor;
    state.floor = floor;
    find_first_floor();
    state.ration = rbloat_new_ration(settings.share, rbloat_measure_fault(), sysconf(_SC_PAGESIZE));
    state.looked_at = rbloat_monotonic();
    state.process_cpu = rbloat_process_cpu();
    state.own_cpu = rbloat_thread_cpu();
    state.faults = rbloat_minor_faults();
    pthread_mutex_lock(&totals_lock);
    totals.fault_cost = state.ration.fault_cost;
    totals.comeback = state.ration.comeback;
    pthread_mutex_unlock(&totals_lock);

    double wait = TICK;
    while (!thread.stopping) {
        wait_for(wait);
        if (!thread.stopping) wait = look();
    }
}

static void copy_text(char *to, size_t size, VALUE from)
{
    const char *text = NIL_P(from) ? "" : StringValueCStr(from);
    if (strlen(text) >= size) rb_raise(rb_eArgError, "too long: %s", text);
    strcpy(to, text);
}

static VALUE native_start(VALUE self, VALUE share, VALUE least, VALUE least_of_rss, VALUE page_of_ruby)
{
    if (!rbloat_glibc_malloc()) return Qfalse;
    settings.share = NUM2DBL(share);
    settings.least = NUM2LL(least);
    settings.least_of_rss = NUM2DBL(least_of_rss);
    settings.page_of_ruby = NUM2LL(page_of_ruby);
    rbloat_watch_gc();
    rbloat_start_thread(&thread);
    return Qtrue;
}

/* Called before native_start, while no thread reads it. */
static VALUE native_limit(VALUE self, VALUE limit, VALUE pressure, VALUE usage, VALUE cache, VALUE cache_word)
{
    settings.limit = NIL_P(limit) ? 0 : NUM2LL(limit);
    settings.pressure = NUM2DBL(pressure);
    copy_text(settings.usage, sizeof(settings.usage), usage);
    copy_text(settings.cache, sizeof(settings.cache), cache);
    copy_text(settings.cache_word, sizeof(settings.cache_word), cache_word);
    return Qnil;
}

/*
 * Tells that nothing is being worked on right now, so that this is a good time for a trim. Returns at once.
 * @return [nil]
 */
static VALUE quiet(VALUE self)
{
    quiet_was_announced = true;
    if (thread.wanted) rbloat_wake_thread(&thread);
    return Qnil;
}

#define PUT(name, value) rb_hash_aset(hash, ID2SYM(rb_intern(name)), value)

/*
 * @return [Hash{Symbol => Numeric}] what was done in this process so far; counts begin anew after a fork
 */
static VALUE stats(VALUE self)
{
    VALUE hash = rb_hash_new();
    pthread_mutex_lock(&totals_lock);
    __typeof__(totals) now = totals;
    pthread_mutex_unlock(&totals_lock);
    PUT("trims", ULL2NUM(now.trims));
    PUT("useless_trims", ULL2NUM(now.useless));
    PUT("trims_under_pressure", ULL2NUM(now.under_pressure));
    PUT("returned_bytes", LL2NUM(now.returned));
    PUT("last_returned_bytes", LL2NUM(now.last_returned));
    PUT("expected_bytes", LL2NUM(now.expected));
    PUT("trim_seconds", DBL2NUM(now.trim_seconds));
    PUT("longest_trim_seconds", DBL2NUM(now.longest));
    PUT("looks", ULL2NUM(now.looks));
    PUT("look_seconds", DBL2NUM(now.look_seconds));
    PUT("credit_seconds", DBL2NUM(now.credit));
    PUT("fault_seconds", DBL2NUM(now.fault_cost));
    PUT("comeback", DBL2NUM(now.comeback));
    return hash;
}

static void define(VALUE module)
{
    rbloat_define_thread(module, &thread);
    rb_define_singleton_method(module, "native_start", native_start, 4);
    rb_define_singleton_method(module, "native_limit", native_limit, 5);
    rb_define_singleton_method(module, "quiet!", quiet, 0);
    rb_define_singleton_method(module, "stats", stats, 0);
}

#else

static VALUE native_limit(VALUE self, VALUE limit, VALUE pressure, VALUE usage, VALUE cache, VALUE cache_word)
{
    return Qnil;
}

static VALUE quiet(VALUE self)
{
    return Qnil;
}

static void define(VALUE module)
{
    rbloat_define_no_thread(module);
    rb_define_singleton_method(module, "native_limit", native_limit, 5);
    rb_define_singleton_method(module, "quiet!", quiet, 0);
}

#endif

void rbloat_init_auto_trim(VALUE rbloat)
{
    define(rb_define_module_under(rbloat, "AutoTrim"));
}
