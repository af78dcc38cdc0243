#include "native_thread.h"
#include "allocator.h"
#include "rbloat.h"

#include <ruby/thread.h>
#include <ruby/version.h>

#if RBLOAT_WATCHES

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* All contexts, the newest first. */
static rbloat_native_thread *contexts;
static uint64_t last_number;

/* Changes when a thread ends, and when a wait for that is interrupted. */
static _Atomic uint32_t ends;

void rbloat_lock(void)
{
    pthread_mutex_lock(&lock);
}

void rbloat_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void rbloat_wait_for_change(_Atomic uint32_t *word, uint32_t seen, double seconds)
{
    struct timespec timeout = {.tv_sec = (time_t)seconds};
    timeout.tv_nsec = (long)((seconds - (double)timeout.tv_sec) * 1e9);
    /* All callers check the word in a loop, so spurious wakeups do no harm. */
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, seconds < 0 ? NULL : &timeout, NULL, 0);
}

void rbloat_change(_Atomic uint32_t *word)
{
    atomic_fetch_add(word, 1);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void rbloat_wait(rbloat_native_thread *thread, uint32_t seen, double seconds)
{
    rbloat_wait_for_change(&thread->wakes, seen, seconds);
}

static void *main_of_thread(void *argument)
{
    rbloat_native_thread *thread = argument;
#ifdef HAVE_PTHREAD_SETNAME_NP
    pthread_setname_np(pthread_self(), thread->service->name);
#endif
    thread->service->run(thread);
    rbloat_lock();
    thread->state = RBLOAT_ENDED;
    rbloat_unlock();
    /* From here on the context may be freed. */
    rbloat_change(&ends);
    return NULL;
}

/* The thread blocks all signals, which only threads of Ruby can handle. Called with the lock. */
static int create(rbloat_native_thread *thread)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread->thread, &attributes, main_of_thread, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    thread->state = error ? RBLOAT_LEFT_BEHIND : RBLOAT_LIVES;
    return error;
}

static bool runs(const rbloat_native_thread *thread)
{
    return thread->state == RBLOAT_LIVES && !atomic_load(&thread->stopping);
}

static bool any_runs(const rbloat_service *service)
{
    for (rbloat_native_thread *thread = contexts; thread; thread = thread->next) {
        if (thread->service == service && runs(thread)) return true;
    }
    return false;
}

bool rbloat_service_runs(const rbloat_service *service)
{
    rbloat_lock();
    bool any = any_runs(service);
    rbloat_unlock();
    return any;
}

void rbloat_wake_service(const rbloat_service *service)
{
    rbloat_lock();
    for (rbloat_native_thread *thread = contexts; thread; thread = thread->next) {
        if (thread->service == service && thread->state == RBLOAT_LIVES) rbloat_change(&thread->wakes);
    }
    rbloat_unlock();
}

/* Removes the contexts in this state from the list and returns them. Called with the lock. */
static rbloat_native_thread *take(const rbloat_service *service, enum rbloat_thread_state state)
{
    rbloat_native_thread *taken = NULL, **at = &contexts;
    while (*at) {
        rbloat_native_thread *thread = *at;
        if (thread->state != state || (service && thread->service != service)) {
            at = &thread->next;
            continue;
        }
        *at = thread->next;
        thread->next = taken;
        taken = thread;
    }
    return taken;
}

static void free_all(rbloat_native_thread *taken)
{
    while (taken) {
        rbloat_native_thread *next = taken->next;
        free(taken);
        taken = next;
    }
}

/* Joins the threads that have ended. This does not block: such a thread has at most to return from its main function. */
static void reap(void)
{
    rbloat_lock();
    rbloat_native_thread *ended = take(NULL, RBLOAT_ENDED);
    rbloat_unlock();
    for (rbloat_native_thread *thread = ended; thread; thread = thread->next) pthread_join(thread->thread, NULL);
    free_all(ended);
}

/* Restarts one of the threads that ran in the parent, and returns its service. If no thread can be created, the service
   stays off. Called with the lock. */
static const rbloat_service *resume_one(void)
{
    rbloat_native_thread *thread = contexts;
    while (thread && thread->state != RBLOAT_LEFT_BEHIND) thread = thread->next;
    if (!thread) return NULL;
    const rbloat_service *service = thread->service;
    if (create(thread)) free_all(take(service, RBLOAT_LEFT_BEHIND));
    return service;
}

/* Only the thread that forked exists in the child. glibc has reset its own locks by now. */
static void after_fork_in_child(void)
{
    free_all(take(NULL, RBLOAT_ENDED));
    for (rbloat_native_thread *thread = contexts; thread; thread = thread->next) {
        thread->state = atomic_load(&thread->stopping) ? RBLOAT_ENDED : RBLOAT_LEFT_BEHIND;
        if (thread->service->forked) thread->service->forked();
    }
    free_all(take(NULL, RBLOAT_ENDED));
    /* From Ruby 3.1 on lib/rbloat/fork.rb restarts threads, and only in children that do not run another program. */
    while (RUBY_API_VERSION_CODE < 30100 && resume_one()) continue;
    rbloat_unlock();
}

typedef struct {
    const rbloat_service *service; /* NULL for all services */
    uint64_t last;                 /* number of the newest context to wait for */
    atomic_bool interrupted;
} ending;

/* True if all these threads have ended. */
static bool over(const ending *ending)
{
    bool over = true;
    rbloat_lock();
    for (rbloat_native_thread *thread = contexts; thread; thread = thread->next) {
        bool meant = thread->number <= ending->last && (!ending->service || thread->service == ending->service);
        if (meant && thread->state == RBLOAT_LIVES) over = false;
    }
    rbloat_unlock();
    return over;
}

static void *wait_for_end(void *argument)
{
    ending *ending = argument;
    for (;;) {
        uint32_t seen = atomic_load(&ends);
        if (atomic_load(&ending->interrupted) || over(ending)) return NULL;
        rbloat_wait_for_change(&ends, seen, -1);
    }
}

static void interrupt(void *argument)
{
    atomic_store(&((ending *)argument)->interrupted, true);
    rbloat_change(&ends);
}

/* Raises if a pending interrupt raises. A handled signal does not end the wait. */
static VALUE wait_interruptibly(VALUE argument)
{
    ending *ending = (void *)argument;
    while (!over(ending)) {
        atomic_store(&ending->interrupted, false);
        rb_thread_call_without_gvl(wait_for_end, ending, interrupt, ending);
    }
    return Qnil;
}

static ending ask_to_stop(const rbloat_service *service)
{
    rbloat_lock();
    for (rbloat_native_thread *thread = contexts; thread; thread = thread->next) {
        if (service && thread->service != service) continue;
        atomic_store(&thread->stopping, true);
        rbloat_change(&thread->wakes);
    }
    free_all(take(service, RBLOAT_LEFT_BEHIND));
    ending ending = {.service = service, .last = last_number};
    rbloat_unlock();
    return ending;
}

void rbloat_stop_service(const rbloat_service *service)
{
    ending ending = ask_to_stop(service);
    wait_interruptibly((VALUE)&ending);
    reap();
}

static bool ends_with_ruby;

/* Threads read data of the VM, which is about to be destroyed. So an interrupt does not end this wait. */
static void stop_all(VALUE unused)
{
    int state = 0, last = 0;
    rbloat_lock();
    ends_with_ruby = false;
    rbloat_unlock();
    ending ending = ask_to_stop(NULL);
    do {
        rb_protect(wait_interruptibly, (VALUE)&ending, &last);
        if (last) state = last;
    } while (!over(&ending));
    reap();
    if (state) rb_jump_tag(state);
}

static VALUE call_started(VALUE started)
{
    ((void (*)(void))started)();
    return Qnil;
}

/* Calls `started`. Its errors are ignored: the service also works without, if less well. */
static void call_started_of(const rbloat_service *service)
{
    int state = 0;
    if (!service->started) return;
    VALUE error = rb_errinfo();
    rb_protect(call_started, (VALUE)service->started, &state);
    if (state) rb_set_errinfo(error);
}

/* Returns an error number, or 0. */
static int start(const rbloat_native_thread *context, bool *first)
{
    rbloat_native_thread *thread = malloc(context->service->size);
    if (!thread) return ENOMEM;
    memcpy(thread, context, context->service->size);
    rbloat_lock();
    free_all(take(context->service, RBLOAT_LEFT_BEHIND));
    bool needed = !any_runs(context->service);
    thread->number = ++last_number;
    int error = needed ? create(thread) : 0;
    if (needed && !error) {
        thread->next = contexts;
        contexts = thread;
        *first = !ends_with_ruby;
        ends_with_ruby = true;
    }
    rbloat_unlock();
    if (!needed || error) free(thread);
    return error;
}

void rbloat_start_thread(const rbloat_native_thread *context)
{
    bool first = false;
    reap();
    int error = start(context, &first);
    if (error) rb_syserr_fail_str(error, rb_sprintf("cannot start the thread %s", context->service->name));
    if (first) rb_set_end_proc(stop_all, Qnil);
    call_started_of(context->service);
}

/* Called by lib/rbloat/fork.rb in a forked process. */
static VALUE resume_threads(VALUE self)
{
    const rbloat_service *service;
    do {
        rbloat_lock();
        service = resume_one();
        rbloat_unlock();
        if (service) call_started_of(service);
    } while (service);
    rbloat_resume_jemalloc_thread();
    return Qnil;
}

void rbloat_init_native_threads(VALUE rbloat)
{
    pthread_atfork(rbloat_lock, rbloat_unlock, after_fork_in_child);
    rb_define_private_method(rb_singleton_class(rbloat), "resume_threads", resume_threads, 0);
}

#else

static VALUE resume_threads(VALUE self)
{
    return Qnil;
}

void rbloat_init_native_threads(VALUE rbloat)
{
    rb_define_private_method(rb_singleton_class(rbloat), "resume_threads", resume_threads, 0);
}

#endif

static VALUE return_false(int count, VALUE *arguments, VALUE self)
{
    return Qfalse;
}

static VALUE return_nil(VALUE self)
{
    return Qnil;
}

static VALUE return_nothing(VALUE self)
{
    return rb_hash_new();
}

void rbloat_define_no_service(VALUE module)
{
    rb_define_singleton_method(module, "native_start", return_false, -1);
    rb_define_singleton_method(module, "stop", return_nil, 0);
    rb_define_singleton_method(module, "running?", return_false, -1);
    rb_define_singleton_method(module, "stats", return_nothing, 0);
}
