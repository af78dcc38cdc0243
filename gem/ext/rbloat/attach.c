#include "rbloat.h"

#include <errno.h>

#ifdef HAVE_SYS_PRCTL_H
#include <sys/prctl.h>
#endif

/* Lets a process trace this one although Yama forbids it: 0 for none any more, -1 for any. */
static VALUE native_allow_attach(VALUE self, VALUE pid)
{
#if defined(HAVE_SYS_PRCTL_H) && defined(PR_SET_PTRACER)
    if (prctl(PR_SET_PTRACER, (unsigned long)NUM2LONG(pid), 0, 0, 0) == 0) return Qtrue;
    /* A kernel without Yama does not know the call, and does not forbid anything either. */
    if (errno != EINVAL) rb_sys_fail("prctl(PR_SET_PTRACER)");
#endif
    return Qfalse;
}

void rbloat_init_attach(VALUE rbloat)
{
    rb_define_private_method(rb_singleton_class(rbloat), "native_allow_attach", native_allow_attach, 1);
}
