/*
 * For LD_PRELOAD: makes mallinfo as slow as with millions of free chunks.
 *   RBLOAT_TEST_MALLINFO_MS: milliseconds of CPU time that each call takes
 *   RBLOAT_TEST_MALLINFO_HOLD: no call returns while this file exists. It is removed after 120 s, so that a test fails
 *   instead of hanging.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void be_slow(void)
{
    const char *cost = getenv("RBLOAT_TEST_MALLINFO_MS"), *hold = getenv("RBLOAT_TEST_MALLINFO_HOLD");
    double until = seconds(CLOCK_THREAD_CPUTIME_ID) + (cost ? atof(cost) / 1e3 : 0);
    while (seconds(CLOCK_THREAD_CPUTIME_ID) < until) continue;
    double limit = seconds(CLOCK_MONOTONIC) + 120;
    while (hold && access(hold, F_OK) == 0) {
        if (seconds(CLOCK_MONOTONIC) > limit) unlink(hold);
        usleep(1000);
    }
}

#if __GLIBC_PREREQ(2, 33)
struct mallinfo2 mallinfo2(void)
{
    struct mallinfo2 (*real)(void) = (struct mallinfo2(*)(void))dlsym(RTLD_NEXT, "mallinfo2");
    be_slow();
    return real();
}
#endif

struct mallinfo mallinfo(void)
{
    struct mallinfo (*real)(void) = (struct mallinfo(*)(void))dlsym(RTLD_NEXT, "mallinfo");
    be_slow();
    return real();
}
