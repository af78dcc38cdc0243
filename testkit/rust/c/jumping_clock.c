// Preloaded, it makes the wall clock jump to 2001 and back, at every second call on average.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static atomic_uint calls;
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    // Without a period: a program may read the clock twice each time.
    if (clock == CLOCK_REALTIME && atomic_fetch_add(&calls, 2654435761) >> 31) time->tv_sec = 1000000000;
    return result;
}
