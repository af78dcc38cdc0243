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
    if (clock != CLOCK_REALTIME) return result;
    // Scattered: a program that reads the clock so many times in each round must not always meet the same state.
    unsigned mixed = atomic_fetch_add(&calls, 1) * 2654435761;
    mixed = (mixed ^ mixed >> 15) * 2246822519;
    mixed = (mixed ^ mixed >> 13) * 3266489917;
    if ((mixed ^ mixed >> 16) & 1) time->tv_sec = 1000000000;
    return result;
}
