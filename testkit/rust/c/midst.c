/* A library for Ruby programs: objects whose callbacks stop the process in the midst of a garbage
   collection. Which of them does is set by midst_at; each stops it once. Where it is preloaded, it
   can stop the process while GC.compact forbids all access to some of Ruby's heap pages.

   The structure is that of include/ruby/internal/core/rtypeddata.h (RTypedData), the same from
   Ruby 2.7 on; no header of Ruby's is needed. */
#define _GNU_SOURCE
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOWHERE, MARK, FREE, COMPACT, FORBID };

static volatile int at = NOWHERE;

static void stop_if(int here) {
    if (at == here) {
        at = NOWHERE;
        raise(SIGSTOP);
    }
}

/* In the place of glibc's. */
int mprotect(void *start, size_t length, int protection) {
    int done = syscall(SYS_mprotect, start, length, protection);
    if (protection == PROT_NONE)
        stop_if(FORBID);
    return done;
}

static void mark(void *unused) { (void)unused, stop_if(MARK); }
static void free_(void *unused) { (void)unused, stop_if(FREE); }
static size_t size(const void *unused) { return (void)unused, 0; }
static void compact(void *unused) { (void)unused, stop_if(COMPACT); }

static const struct {
    const char *name;
    void (*mark)(void *), (*free)(void *);
    size_t (*size)(const void *);
    void (*compact)(void *);
    void *reserved[1];
    const void *parent;
    void *data;
    unsigned long flags;
    /* From 4.1 on there are more functions before these words, which are all zero. */
    void *later[16];
} type = {"midst", mark, free_, size, compact, {NULL}, NULL, NULL, 0, {NULL}};

extern unsigned long rb_data_typed_object_wrap(unsigned long, void *, const void *);

unsigned long midst_new(unsigned long class) {
    static char data;
    return rb_data_typed_object_wrap(class, &data, &type);
}

void midst_at(int here) { at = here; }
