/* Objects with memory of malloc(3), which the GC is told of. `Bitmap.make(bytes, true)` allocates the structure with Ruby's malloc. */
#include <ruby.h>
#include <stdlib.h>

struct bitmap {
    char *pixels;
    size_t bytes;
    int is_rubys;
};

static void free_bitmap(void *data)
{
    struct bitmap *bitmap = data;
    free(bitmap->pixels);
    rb_gc_adjust_memory_usage(-(ssize_t)bitmap->bytes);
    if (bitmap->is_rubys) xfree(bitmap);
    else free(bitmap);
}

static const rb_data_type_t type = {"Bitmap", {NULL, free_bitmap, NULL}, NULL, NULL, RUBY_TYPED_FREE_IMMEDIATELY};

static VALUE make(VALUE class, VALUE bytes, VALUE is_rubys)
{
    struct bitmap *bitmap = RTEST(is_rubys) ? xmalloc(sizeof *bitmap) : malloc(sizeof *bitmap);
    bitmap->bytes = NUM2SIZET(bytes);
    bitmap->is_rubys = RTEST(is_rubys);
    bitmap->pixels = malloc(bitmap->bytes);
    VALUE object = TypedData_Wrap_Struct(class, &type, bitmap);
    rb_gc_adjust_memory_usage((ssize_t)bitmap->bytes);
    return object;
}

void Init_bitmap(void)
{
    VALUE class = rb_define_class("Bitmap", rb_cObject);
    rb_undef_alloc_func(class);
    rb_define_singleton_method(class, "make", make, 2);
}
