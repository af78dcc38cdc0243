#include "rbloat.h"

__attribute__((visibility("default"))) void Init_rbloat(void)
{
#ifdef HAVE_RB_EXT_RACTOR_SAFE
    rb_ext_ractor_safe(true);
#endif
    VALUE rbloat = rb_define_module("Rbloat");
    rbloat_init_allocator(rbloat);
    rbloat_init_native_threads(rbloat);
    rbloat_init_gc_counts();
    rbloat_init_auto_trim(rbloat);
    rbloat_init_native_pressure(rbloat);
    rbloat_init_attach(rbloat);
}
