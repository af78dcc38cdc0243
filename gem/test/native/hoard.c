/* Hoard.new(bytes): an object that holds resident memory of malloc and does not report it to Ruby. */
#include <ruby.h>
#include <string.h>

static const rb_data_type_t hoard_type = {"Hoard", {NULL, free, NULL}, NULL, NULL, RUBY_TYPED_FREE_IMMEDIATELY};

static VALUE hoard_new(VALUE class, VALUE bytes)
{
    size_t size = NUM2SIZET(bytes);
    char *memory = malloc(size);
    if (!memory) rb_memerror();
    memset(memory, 0x5A, size);
    return TypedData_Wrap_Struct(class, &hoard_type, memory);
}

void Init_hoard(void)
{
#ifdef RUBY_TYPED_FROZEN_SHAREABLE
    rb_ext_ractor_safe(true);
#endif
    VALUE class = rb_define_class("Hoard", rb_cObject);
    rb_undef_alloc_func(class);
    rb_define_singleton_method(class, "new", hoard_new, 1);
}
