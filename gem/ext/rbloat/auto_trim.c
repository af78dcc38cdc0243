/*
 * Rbloat::AutoTrim: a native thread that returns free memory of malloc to the kernel when the saving is worth the cost.
 *
 * The yield of a trim is estimated from the *rest*: the anonymous memory that is neither in use by malloc nor in Ruby's
 * heap pages. After a trim the rest is memory that cannot be returned. So a trim will return about as much as the rest
 * has risen above its lowest value, the *floor*. Trims by others, such as Process.warmup, lower the rest as well.
 */
#include "gc_counts.h"
#include "allocator.h"
#include "native_thread.h"
#include "process.h"
#include "ration.h"
#include "rbloat.h"

#include <string.h>
#include <unistd.h>

#if RBLOAT_WATCHES

/* Seconds between two looks: while the process is busy, while it is idle, and while it is idle and has a memory limit. */
static const double TICK = 0.1, IDLE = 5.0, IDLE_WITH_A_LIMIT = 1.0;

/* Seconds between two checks for the end of a sweep, which ends a longer wait. */
static const double GLANCE = 0.25;

/* malloc's lists are counted only after RSS grew by this much, or after a GC. */
static const int64_t GROWTH_WORTH_A_LOOK = 8 * 1024 * 1024;

/* While the process is busy, the part of the share that counting malloc's lists may take. */
static const double LOOKING = 0.25;

/* Near the limit, looks are more frequent, and smaller trims are worth it: those of this share of the room that is left.
   Smaller ones make no difference to whether the limit is reached. */
static const double PRESSING = 0.05, LEAST_OF_ROOM = 0.05;
static const int64_t LEAST_UNDER_PRESSURE = 1024 * 1024;

enum { PATH_BYTES = 512 };

typedef struct {
    double share;
    int64_t least;         /* bytes */
    double least_of_rss;   /* share of RSS */
    double pressure;       /* share of the limit above which the limit is near */
    int64_t limit;         /* bytes, or 0 for none */
    int64_t page_of_ruby;  /* bytes of a heap page of Ruby that are not malloc's */
    char usage[PATH_BYTES], cache[PATH_BYTES], cache_word[32];
} trim_settings;

typedef struct {
    rbloat_native_thread thread;
    trim_settings settings;
} context;

/* The state of a thread, on its own stack. */
typedef struct {
    rbloat_native_thread *thread;
    const trim_settings *settings;
    rbloat_ration ration;
    int64_t floor;
    double looked_at, counted_at, look_took;
    double program_cpu; /* CPU time of all other threads at the last look */
    double own_cpu;     /* CPU time of this thread that is booked */
    int64_t faults, rss_counted, in_use, expected;
    rbloat_gc_counts counted, trimmed;
} trimmer;

/* The floor and the account of the process, by this thread or an earlier one. So a restart forgets no debts. A forked
   process inherits them together with the memory. The lock guards them, and the totals. */
static bool has_floor, has_ration;
static int64_t last_floor;
static rbloat_ration last_ration;

static struct {
    uint64_t trims, useless, looks, under_pressure;
    int64_t returned, last_returned, expected;
    double trim_seconds, longest, look_seconds, credit, fault_cost, comeback;
} totals;

static atomic_bool quiet_was_announced;

static int64_t rest_of(const trimmer *state, const rbloat_resident *resident, int64_t in_use, const rbloat_gc_counts *gc)
{
    return resident->anonymous - in_use - (int64_t)gc->heap_pages * state->settings->page_of_ruby;
}

/* The distance to the memory limit. The urgency is 0 where the limit begins to be near, 1 where it is reached, and negative
   if it is not near. */
typedef struct {
    double urgency;
    int64_t room; /* bytes up to the limit */
} closeness;

static closeness find_closeness(const trim_settings *settings)
{
    const closeness far = {.urgency = -1};
    if (settings->limit <= 0) return far;
    double limit = (double)settings->limit, near = settings->pressure * limit;
    int64_t used = rbloat_read_number(settings->usage, NULL);
    if ((double)used < near) return far;
    /* The kernel drops cached files by itself. */
    int64_t cache = settings->cache[0] ? rbloat_read_number(settings->cache, settings->cache_word) : 0;
    if (cache > 0) used -= cache;
    if ((double)used < near) return far;
    if (used >= settings->limit) return (closeness){.urgency = 1};
    return (closeness){.urgency = ((double)used - near) / (limit - near), .room = settings->limit - used};
}

/* The bytes that a trim must bring to be worth it. */
static int64_t least_of(const trim_settings *settings, const closeness *close, int64_t rss)
{
    if (close->urgency >= 0) {
        int64_t part = (int64_t)(LEAST_OF_ROOM * (double)close->room);
        return part > LEAST_UNDER_PRESSURE ? part : LEAST_UNDER_PRESSURE;
    }
    int64_t part = (int64_t)(settings->least_of_rss * (double)rss);
    return part > settings->least ? part : settings->least;
}

/* Returns the CPU time of this thread since the last call. */
static double own_time(trimmer *state)
{
    double before = state->own_cpu;
    state->own_cpu = rbloat_thread_cpu();
    return state->own_cpu - before;
}

/* Books the time and the page faults since the last look. Returns true if the process was idle in that time. */
static bool pass_time(trimmer *state, double now)
{
    double program_cpu = rbloat_process_cpu() - rbloat_thread_cpu();
    int64_t faults = rbloat_minor_faults();
    rbloat_span span = {.seconds = now - state->looked_at, .cpu = program_cpu - state->program_cpu,
                        .faults = faults - state->faults};
    span.quiet = rbloat_was_quiet(span.seconds, span.cpu);
    rbloat_ration_faulted(&state->ration, rbloat_measure_fault());
    rbloat_ration_passed(&state->ration, &span);
    rbloat_ration_spent_on_pass(&state->ration, own_time(state));
    state->looked_at = now;
    state->program_cpu = program_cpu;
    state->faults = faults;
    return atomic_exchange(&quiet_was_announced, false) || span.quiet;
}

static bool worth_a_look(const trimmer *state, const rbloat_outlook *outlook, const rbloat_gc_counts *gc, double now)
{
    if (outlook->pressure) return now >= state->ration.pressing_not_before;
    if (now < state->ration.not_before || state->ration.credit < 0) return false;
    int64_t waiting = state->expected >= outlook->least ? state->expected : 0;
    if (!outlook->quiet) {
        double pause = state->look_took / (LOOKING * state->settings->share);
        if (!outlook->swept || now - state->counted_at < pause) return false;
        /* The last look may have found more than the credit allowed. */
        if (!rbloat_ration_affords(&state->ration, waiting ? waiting : outlook->least)) return false;
    }
    return gc->sweeps != state->counted.sweeps || outlook->rss >= state->rss_counted + GROWTH_WORTH_A_LOOK || waiting > 0 ||
           (outlook->quiet && gc->starts != state->counted.starts);
}

static int64_t expect(trimmer *state, const rbloat_resident *resident, const rbloat_gc_counts *gc)
{
    double started = rbloat_thread_cpu();
    rbloat_malloc_counts counts = rbloat_count_malloc();
    double took = rbloat_thread_cpu() - started;
    state->counted_at = rbloat_monotonic();
    state->look_took = took;
    int64_t rest = rest_of(state, resident, counts.in_use, gc);
    if (rest < state->floor) state->floor = rest;
    state->counted = *gc;
    state->rss_counted = resident->rss;
    state->in_use = counts.in_use;
    state->expected = rest - state->floor < counts.free ? rest - state->floor : counts.free;

    rbloat_lock();
    last_floor = state->floor;
    totals.looks++;
    totals.look_seconds += took;
    totals.expected = state->expected;
    rbloat_unlock();
    return state->expected;
}

/* Returns true if the trim returned enough memory to be useful. */
static bool trim(trimmer *state, const rbloat_outlook *outlook, const rbloat_gc_counts *gc, double now)
{
    rbloat_resident before, after;
    if (!rbloat_read_resident(&before)) return false;
    double started = rbloat_monotonic(), cpu = rbloat_thread_cpu();
    rbloat_trim_malloc();
    double took = rbloat_monotonic() - started;
    if (!rbloat_read_resident(&after)) return false;
    int64_t returned = before.rss > after.rss ? before.rss - after.rss : 0;
    rbloat_ration_trimmed(&state->ration, outlook, now, rbloat_thread_cpu() - cpu, returned);
    /* Counting again would take as long as the look before, and during a trim other threads can hardly allocate. */
    state->floor = rest_of(state, &after, state->in_use, gc);
    state->trimmed = *gc;
    state->expected = 0;
    state->rss_counted = after.rss;
    state->faults = rbloat_minor_faults();

    rbloat_lock();
    last_floor = state->floor;
    totals.trims++;
    bool useful = returned >= outlook->least / 2;
    if (!useful) totals.useless++;
    if (outlook->pressure) totals.under_pressure++;
    totals.returned += returned;
    totals.last_returned = returned;
    totals.trim_seconds += took;
    if (took > totals.longest) totals.longest = took;
    totals.comeback = state->ration.comeback;
    totals.expected = 0;
    rbloat_unlock();
    return useful;
}

/* Looks, trims if it is worth it, and returns the seconds until the next look. */
static double look(trimmer *state)
{
    double now = rbloat_monotonic(), cpu = rbloat_thread_cpu();
    closeness close = find_closeness(state->settings);
    rbloat_resident resident;
    if (!rbloat_read_resident(&resident)) return IDLE;
    rbloat_gc_counts gc = rbloat_count_gc();
    rbloat_outlook outlook = {.rss = resident.rss};
    outlook.quiet = pass_time(state, now);
    outlook.swept = gc.sweeps != state->trimmed.sweeps;
    outlook.pressure = close.urgency >= 0;
    outlook.least = least_of(state->settings, &close, resident.rss);
    /* Growth counts from the lowest RSS, which someone else's trim may have caused. */
    if (resident.rss < state->rss_counted) state->rss_counted = resident.rss;

    if (worth_a_look(state, &outlook, &gc, now)) {
        outlook.expected = expect(state, &resident, &gc);
        bool useful = rbloat_ration_allows(&state->ration, &outlook) && trim(state, &outlook, &gc, now);
        rbloat_ration_spent(&state->ration, own_time(state));
        if (outlook.pressure) {
            rbloat_ration_pressed(&state->ration, close.urgency, rbloat_monotonic(), rbloat_thread_cpu() - cpu, useful);
        }
    }
    rbloat_lock();
    last_ration = state->ration;
    has_ration = true;
    totals.credit = state->ration.credit;
    totals.fault_cost = state->ration.fault_cost;
    rbloat_unlock();
    if (outlook.pressure) return PRESSING;
    double idle = state->settings->limit > 0 ? IDLE_WITH_A_LIMIT : IDLE;
    return rbloat_ration_wait(&state->ration, outlook.quiet, now, TICK, idle);
}

/* Before the first trim, all memory that is free now counts as returnable. */
static void find_first_floor(trimmer *state)
{
    rbloat_resident resident;
    rbloat_lock();
    bool found = has_floor;
    state->floor = last_floor;
    rbloat_unlock();
    if (found || !rbloat_read_resident(&resident)) return;
    rbloat_gc_counts gc = rbloat_count_gc();
    rbloat_malloc_counts counts = rbloat_count_malloc();
    state->floor = rest_of(state, &resident, counts.in_use, &gc) - counts.free;
    rbloat_lock();
    has_floor = true;
    last_floor = state->floor;
    rbloat_unlock();
}

/* Waits for at most this many seconds. The end of a sweep ends a wait longer than TICK, and a wake-up ends any wait. */
static void wait_for(rbloat_native_thread *thread, double seconds)
{
    uint32_t seen = atomic_load(&thread->wakes);
    uint64_t sweeps = rbloat_count_gc().sweeps;
    double until = rbloat_monotonic() + seconds;
    for (double left = seconds; left > 0 && !atomic_load(&thread->stopping); left = until - rbloat_monotonic()) {
        rbloat_wait(thread, seen, left < GLANCE ? left : GLANCE);
        if (atomic_load(&thread->wakes) != seen) return;
        if (seconds > TICK && rbloat_count_gc().sweeps != sweeps) return;
    }
}

/* Continues the account of an earlier thread. Page faults since its end are forgotten. */
static void find_ration(trimmer *state)
{
    state->ration = rbloat_new_ration(state->settings->share, rbloat_measure_fault(), sysconf(_SC_PAGESIZE));
    rbloat_lock();
    if (has_ration) rbloat_ration_continue(&state->ration, &last_ration);
    rbloat_unlock();
}

static void run(rbloat_native_thread *thread)
{
    /* The first trim needs no sweep: from Ruby 3.3 on, sweeps before the start are not counted. */
    trimmer state = {.thread = thread, .settings = &((context *)thread)->settings, .trimmed = {.sweeps = UINT64_MAX}};
    find_first_floor(&state);
    find_ration(&state);
    state.looked_at = rbloat_monotonic();
    state.own_cpu = rbloat_thread_cpu();
    state.program_cpu = rbloat_process_cpu() - state.own_cpu;
    state.faults = rbloat_minor_faults();
    rbloat_lock();
    totals.fault_cost = state.ration.fault_cost;
    totals.comeback = state.ration.comeback;
    rbloat_unlock();

    double wait = TICK;
    while (!atomic_load(&thread->stopping)) {
        wait_for(thread, wait);
        if (!atomic_load(&thread->stopping)) wait = look(&state);
    }
}

static void forked(void)
{
    memset(&totals, 0, sizeof(totals));
}

static const rbloat_service service = {.name = "rbloat-trim", .size = sizeof(context), .run = run, .forked = forked};

static void copy_text(char *to, size_t size, VALUE from)
{
    const char *text = NIL_P(from) ? "" : StringValueCStr(from);
    if (strlen(text) >= size) rb_raise(rb_eArgError, "too long: %s", text);
    strcpy(to, text);
}

/* The group is nil, or an array of the attributes of a Cgroup. */
static VALUE native_start(VALUE self, VALUE share, VALUE least, VALUE least_of_rss, VALUE page_of_ruby, VALUE pressure,
                          VALUE group)
{
    if (!rbloat_glibc_malloc()) return rbloat_start_jemalloc_thread() ? Qtrue : Qfalse;
    context context = {
        .thread = {.service = &service},
        .settings =
            {
                .share = NUM2DBL(share),
                .least = NUM2LL(least),
                .least_of_rss = NUM2DBL(least_of_rss),
                .page_of_ruby = NUM2LL(page_of_ruby),
                .pressure = NUM2DBL(pressure),
            },
    };
    trim_settings *settings = &context.settings;
    if (!NIL_P(group)) {
        Check_Type(group, T_ARRAY);
        settings->limit = NUM2LL(rb_ary_entry(group, 0));
        copy_text(settings->usage, sizeof(settings->usage), rb_ary_entry(group, 1));
        copy_text(settings->cache, sizeof(settings->cache), rb_ary_entry(group, 2));
        copy_text(settings->cache_word, sizeof(settings->cache_word), rb_ary_entry(group, 3));
    }
    rbloat_watch_gc();
    rbloat_start_thread(&context.thread);
    return Qtrue;
}

static VALUE stop(VALUE self)
{
    rbloat_stop_jemalloc_thread();
    rbloat_stop_service(&service);
    return Qnil;
}

static VALUE running_p(VALUE self)
{
    return rbloat_service_runs(&service) || rbloat_jemalloc_thread_started() ? Qtrue : Qfalse;
}

static VALUE quiet(VALUE self)
{
    atomic_store(&quiet_was_announced, true);
    rbloat_wake_service(&service);
    return Qnil;
}

#define PUT(name, value) rb_hash_aset(hash, ID2SYM(rb_intern(name)), value)

static VALUE stats(VALUE self)
{
    VALUE hash = rb_hash_new();
    rbloat_lock();
    __typeof__(totals) now = totals;
    rbloat_unlock();
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
    rb_define_singleton_method(module, "native_start", native_start, 6);
    rb_define_singleton_method(module, "stop", stop, 0);
    rb_define_singleton_method(module, "running?", running_p, 0);
    rb_define_singleton_method(module, "quiet!", quiet, 0);
    rb_define_singleton_method(module, "stats", stats, 0);
}

#else

static VALUE quiet(VALUE self)
{
    return Qnil;
}

static void define(VALUE module)
{
    rbloat_define_no_service(module);
    rb_define_singleton_method(module, "quiet!", quiet, 0);
}

#endif

void rbloat_init_auto_trim(VALUE rbloat)
{
    define(rb_define_module_under(rbloat, "AutoTrim"));
}
