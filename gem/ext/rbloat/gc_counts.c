#include "gc_counts.h"
#include "rbloat.h"

static VALUE major_gc_count, heap_allocated_pages, malloc_increase_bytes;
static VALUE state, none, major_by;

rbloat_gc_counts rbloat_count_gc(void)
{
    uint64_t starts = rb_gc_count(), majors = rb_gc_stat(major_gc_count);
    bool over = rb_gc_latest_gc_info(state) == none, major = !NIL_P(rb_gc_latest_gc_info(major_by));
    /* One that began meanwhile is not over, whatever was read of the one before. */
    if (rb_gc_count() != starts) over = false;
    return (rbloat_gc_counts){
        .starts = starts,
        .sweeps = over || starts == 0 ? starts : starts - 1,
        .major_sweeps = over || !major || majors == 0 ? majors : majors - 1,
        .heap_pages = rb_gc_stat(heap_allocated_pages),
    };
}

int64_t rbloat_malloc_increase(void)
{
    return (int64_t)rb_gc_stat(malloc_increase_bytes);
}

void rbloat_init_gc_counts(void)
{
    major_gc_count = ID2SYM(rb_intern("major_gc_count"));
    heap_allocated_pages = ID2SYM(rb_intern("heap_allocated_pages"));
    malloc_increase_bytes = ID2SYM(rb_intern("malloc_increase_bytes"));
    state = ID2SYM(rb_intern("state"));
    none = ID2SYM(rb_intern("none"));
    major_by = ID2SYM(rb_intern("major_by"));
    /* The first call makes the symbols of all that can be asked for, which needs the GVL, and would inside of the GC be
       a "[BUG] object allocation during garbage collection phase". */
    rb_gc_stat(major_gc_count);
    rb_gc_latest_gc_info(state);
}
