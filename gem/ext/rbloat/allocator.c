#include "allocator.h"
#include "process.h"
#include "rbloat.h"

#include <ruby/thread.h>
#include <stdatomic.h>

#ifdef HAVE_MALLOC_H
#include <malloc.h>
#endif
#ifdef HAVE_DLFCN_H
#include <dlfcn.h>
#endif

#ifdef HAVE_DLFCN_H
static bool loaded(const char *symbol)
{
    return dlsym(RTLD_DEFAULT, symbol) != NULL;
}
#endif

bool rbloat_glibc_malloc(void)
{
#if RBLOAT_WATCHES && (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
    /* A sanitizer replaces malloc. Calls of glibc's functions still work, and the tests should check them. */
    return true;
#elif RBLOAT_WATCHES && defined(HAVE_DLFCN_H)
    /* Most replacements of malloc have no malloc_trim. */
    Dl_info ours, theirs;
    void *allocate = dlsym(RTLD_DEFAULT, "malloc"), *trim = dlsym(RTLD_DEFAULT, "malloc_trim");
    if (!allocate || !trim || loaded("mallctl") || loaded("tc_malloc") || loaded("mi_version")) return false;
    return dladdr(allocate, &ours) && dladdr(trim, &theirs) && ours.dli_fbase == theirs.dli_fbase;
#else
    return false;
#endif
}

const char *rbloat_allocator_name(void)
{
    if (rbloat_glibc_malloc()) return "glibc";
#ifdef HAVE_DLFCN_H
    if (loaded("mallctl")) return "jemalloc";
    if (loaded("tc_malloc")) return "tcmalloc";
    if (loaded("mi_version")) return "mimalloc";
#endif
    return "other";
}

static int call_mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size)
{
#ifdef HAVE_DLFCN_H
    int (*mallctl)(const char *, void *, size_t *, void *, size_t);
    *(void **)&mallctl = dlsym(RTLD_DEFAULT, "mallctl");
    if (mallctl) return mallctl(name, old, old_size, new, new_size);
#endif
    return -1;
}

/* Ractors may start it at the same time, which is the same as starting it twice. */
static atomic_bool jemalloc_started, jemalloc_ran_before;

static bool set_jemalloc_thread(bool on, bool *before)
{
    size_t size = sizeof(*before);
    return call_mallctl("background_thread", before, &size, &on, sizeof(on)) == 0;
}

bool rbloat_start_jemalloc_thread(void)
{
    bool before = false;
    if (!jemalloc_started && set_jemalloc_thread(true, &before)) {
        jemalloc_ran_before = before;
        jemalloc_started = true;
    }
    return jemalloc_started;
}

void rbloat_stop_jemalloc_thread(void)
{
    bool before;
    if (jemalloc_started && !jemalloc_ran_before) set_jemalloc_thread(false, &before);
    jemalloc_started = false;
}

bool rbloat_jemalloc_thread_started(void)
{
    return jemalloc_started;
}

void rbloat_resume_jemalloc_thread(void)
{
    bool before;
    if (jemalloc_started) set_jemalloc_thread(true, &before);
}

/* Returns the free pages of all arenas. */
static void purge_jemalloc(void)
{
    /* MALLCTL_ARENAS_ALL of jemalloc 5. */
    call_mallctl("arena.4096.purge", NULL, NULL, NULL, 0);
}

#if RBLOAT_WATCHES

#ifndef HAVE_MALLINFO2
/* Since glibc 2.33. The extension of a platform gem is compiled with an older glibc than it runs with. */
struct mallinfo2 {
    size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};
__attribute__((weak)) struct mallinfo2 mallinfo2(void);

/* Each count is modulo 4 GiB. */
static rbloat_malloc_counts count_modulo(void)
{
    struct mallinfo info = mallinfo();
    return (rbloat_malloc_counts){
        .in_use = (int64_t)(uint32_t)info.uordblks + (int64_t)(uint32_t)info.hblkhd,
        .free = (int64_t)(uint32_t)info.fordblks,
    };
}
#endif

rbloat_malloc_counts rbloat_count_malloc(void)
{
#ifndef HAVE_MALLINFO2
    if (!mallinfo2) return count_modulo();
#endif
    struct mallinfo2 info = mallinfo2();
    return (rbloat_malloc_counts){
        .in_use = (int64_t)(info.uordblks + info.hblkhd),
        .free = (int64_t)info.fordblks,
    };
}

int64_t rbloat_exact_in_use(void)
{
    /* Takes more chunks of each size than a tcache list holds in any glibc up to 2.43. This empties the tcache, so all
       other chunks in use are the program's. */
    enum { CACHED = 16, FIRST = 24, LAST = 1032, STEP = 16, LISTS = (LAST - FIRST) / STEP + 1 };
    static const size_t HEADER = sizeof(size_t);
    void *taken[LISTS * CACHED];
    int64_t ours = 0;
    for (int index = 0; index < LISTS * CACHED; index++) {
        taken[index] = malloc((size_t)(FIRST + index / CACHED * STEP));
        if (taken[index]) ours += (int64_t)(malloc_usable_size(taken[index]) + HEADER);
    }
    int64_t in_use = rbloat_count_malloc().in_use - ours;
    for (int index = 0; index < LISTS * CACHED; index++) free(taken[index]);
    return in_use;
}

void rbloat_trim_malloc(void)
{
    malloc_trim(0);
}

#else

rbloat_malloc_counts rbloat_count_malloc(void)
{
    return (rbloat_malloc_counts){0, 0};
}

int64_t rbloat_exact_in_use(void)
{
    return 0;
}

void rbloat_trim_malloc(void)
{
}

#endif

/* Stores the resident memory before and after the trim. */
static void *trim_without_gvl(void *argument)
{
    rbloat_resident *resident = argument;
    rbloat_read_resident(&resident[0]);
    if (rbloat_glibc_malloc()) {
        rbloat_trim_malloc();
    } else {
        purge_jemalloc();
    }
    rbloat_read_resident(&resident[1]);
    return NULL;
}

/*
 * Returns free memory of malloc to the kernel. Other threads run meanwhile.
 * @return [Integer] the bytes by which RSS fell; 0 if malloc is neither glibc's nor jemalloc's
 */
static VALUE trim(VALUE self)
{
    rbloat_resident resident[2] = {{0, 0}, {0, 0}};
    rb_thread_call_without_gvl(trim_without_gvl, resident, NULL, NULL);
    int64_t returned = resident[0].rss - resident[1].rss;
    return LL2NUM(returned > 0 ? returned : 0);
}

static VALUE allocator(VALUE self)
{
    return rb_str_new_cstr(rbloat_allocator_name());
}

static VALUE rss_bytes(VALUE self)
{
    rbloat_resident resident;
    return rbloat_read_resident(&resident) ? LL2NUM(resident.rss) : Qnil;
}

/* The part of RSS that is neither file-backed nor shared. */
static VALUE anonymous_bytes(VALUE self)
{
    rbloat_resident resident;
    return rbloat_read_resident(&resident) ? LL2NUM(resident.anonymous) : INT2FIX(0);
}

/* Threads that have an arena keep it. glibc looks at the limit for the last time when there are more than eight arenas. */
static VALUE native_limit_arenas(VALUE self, VALUE count)
{
#ifdef M_ARENA_MAX
    return rbloat_glibc_malloc() && mallopt(M_ARENA_MAX, NUM2INT(count)) == 1 ? Qtrue : Qfalse;
#else
    return Qfalse;
#endif
}

static void *count_without_gvl(void *argument)
{
    *(rbloat_malloc_counts *)argument = rbloat_count_malloc();
    return NULL;
}

static VALUE malloc_counts(VALUE self)
{
    if (!rbloat_glibc_malloc()) return Qnil;
    rbloat_malloc_counts counts;
    rb_thread_call_without_gvl(count_without_gvl, &counts, NULL, NULL);
    return rb_assoc_new(LL2NUM(counts.in_use), LL2NUM(counts.free));
}

/* Keeps the GVL, so that no other Ruby thread allocates meanwhile. */
static VALUE exact_malloc_in_use(VALUE self)
{
    return rbloat_glibc_malloc() ? LL2NUM(rbloat_exact_in_use()) : Qnil;
}

void rbloat_init_allocator(VALUE rbloat)
{
    rb_define_singleton_method(rbloat, "trim", trim, 0);
    rb_define_singleton_method(rbloat, "allocator", allocator, 0);
    rb_define_singleton_method(rbloat, "rss_bytes", rss_bytes, 0);
    rb_define_private_method(rb_singleton_class(rbloat), "anonymous_bytes", anonymous_bytes, 0);
    VALUE native = rb_define_module_under(rbloat, "Malloc");
    rb_define_singleton_method(native, "counts", malloc_counts, 0);
    rb_define_singleton_method(native, "exact_in_use", exact_malloc_in_use, 0);
    rb_define_private_method(rb_singleton_class(native), "native_limit_arenas", native_limit_arenas, 1);
}
