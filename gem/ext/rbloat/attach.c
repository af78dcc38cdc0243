/*
 * The permission to attach to this process under Yama. The kernel has one setting for each process, so all threads and
 * Ractors share it.
 */
#include "rbloat.h"

#ifdef HAVE_SYS_PRCTL_H
#include <sys/prctl.h>
#endif

#ifdef PR_SET_PTRACER
#include <errno.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long allowed = 0; /* the process that the program allows: a process id, 0 for none, -1 for any */
static long reports = 0; /* reports in progress, during which any process is allowed */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* A child does not inherit the kernel's setting, nor the threads that wait for reports. */
static void after_fork_in_child(void)
{
    allowed = 0;
    reports = 0;
    pthread_mutex_unlock(&lock);
}

/* Returns false if the kernel has no Yama. Then no permission is needed. */
static VALUE update(const long *pid, long more_reports)
{
    pthread_mutex_lock(&lock);
    if (pid) allowed = *pid;
    if (reports + more_reports >= 0) reports += more_reports;
    int failure = prctl(PR_SET_PTRACER, (unsigned long)(reports > 0 ? -1 : allowed), 0, 0, 0) == 0 ? 0 : errno;
    pthread_mutex_unlock(&lock);
    if (failure != 0 && failure != EINVAL) rb_syserr_fail(failure, "prctl(PR_SET_PTRACER)");
    return failure == 0 ? Qtrue : Qfalse;
}

static VALUE native_allow_attach(VALUE self, VALUE pid)
{
    long number = NUM2LONG(pid);
    return update(&number, 0);
}

static VALUE make_report(VALUE unused)
{
    update(NULL, 1);
    return rb_yield(Qnil);
}

static VALUE end_report(VALUE unused)
{
    return update(NULL, -1);
}

/* native_allow_report { ... }: allows any process to attach during the block. */
static VALUE native_allow_report(VALUE self)
{
    return rb_ensure(make_report, Qnil, end_report, Qnil);
}

#else

static VALUE native_allow_attach(VALUE self, VALUE pid)
{
    NUM2LONG(pid);
    return Qfalse;
}

static VALUE native_allow_report(VALUE self)
{
    return rb_yield(Qnil);
}

#endif

void rbloat_init_attach(VALUE rbloat)
{
#ifdef PR_SET_PTRACER
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
#endif
    rb_define_private_method(rb_singleton_class(rbloat), "native_allow_attach", native_allow_attach, 1);
    rb_define_private_method(rb_singleton_class(rbloat), "native_allow_report", native_allow_report, 0);
}
