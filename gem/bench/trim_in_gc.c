/* An alternative to AutoTrim: malloc_trim inside the GC, at the end of the mark or the sweep of each major GC.
   TrimInGC.start("mark" or "sweep"), TrimInGC.stop */
#include <malloc.h>
#include <ruby.h>
#include <ruby/debug.h>
#include <string.h>

static VALUE major_gc_count, tracepoint;

static void trim(VALUE unused, void *unused_too)
{
    static size_t last;
    size_t majors = rb_gc_stat(major_gc_count);
    if (majors != last) malloc_trim(0);
    last = majors;
}

static VALUE start(VALUE self, VALUE place)
{
    rb_event_flag_t event = strcmp(StringValueCStr(place), "mark") == 0 ? RUBY_INTERNAL_EVENT_GC_END_MARK
                                                                        : RUBY_INTERNAL_EVENT_GC_END_SWEEP;
    tracepoint = rb_tracepoint_new(0, event, trim, NULL);
    rb_tracepoint_enable(tracepoint);
    return Qnil;
}

static VALUE stop(VALUE self)
{
    rb_tracepoint_disable(tracepoint);
    return Qnil;
}

void Init_trim_in_gc(void)
{
    VALUE module = rb_define_module("TrimInGC");
    rb_gc_register_address(&tracepoint);
    major_gc_count = ID2SYM(rb_intern("major_gc_count"));
    rb_gc_stat(major_gc_count);
    rb_define_singleton_method(module, "start", start, 1);
    rb_define_singleton_method(module, "stop", stop, 0);
}
