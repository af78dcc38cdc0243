/* Tests of process.c, run by native_test.rb. Prints one line for each failure. */
#include "expect.h"
#include "process.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_bool spins, ends;

static void *spin(void *unused)
{
    spins = true;
    while (!ends) continue;
    return NULL;
}

static void *wait_for_a_byte(void *descriptor)
{
    char byte;
    EXPECT(read(*(int *)descriptor, &byte, 1) == 1);
    return NULL;
}

/* A thread needs a moment to fall asleep or to end. */
static bool becomes_quiet(void)
{
    double limit = rbloat_monotonic() + 60;
    while (!rbloat_was_quiet(1, 0)) {
        if (rbloat_monotonic() > limit) return false;
        sched_yield();
    }
    return true;
}

static void little_cpu_time_is_quiet(void)
{
    EXPECT(rbloat_was_quiet(1, 0));
    EXPECT(rbloat_was_quiet(1, 0.05));
    EXPECT(!rbloat_was_quiet(1, 0.5));
}

static void a_short_time_tells_nothing(void)
{
    EXPECT(!rbloat_was_quiet(0.001, 0));
}

/* It used no CPU time in a second because it got no CPU. */
static void a_process_that_waits_for_a_cpu_is_not_quiet(void)
{
    pthread_t thread;
    bool made = pthread_create(&thread, NULL, spin, NULL) == 0;
    EXPECT(made);
    if (!made) return;
    while (!spins) sched_yield();
    EXPECT(!rbloat_was_quiet(1, 0));
    ends = true;
    pthread_join(thread, NULL);
    EXPECT(becomes_quiet());
}

static void a_thread_that_sleeps_is_quiet(void)
{
    int pipes[2];
    pthread_t thread;
    bool made = pipe(pipes) == 0 && pthread_create(&thread, NULL, wait_for_a_byte, &pipes[0]) == 0;
    EXPECT(made);
    if (!made) return;
    EXPECT(becomes_quiet());
    EXPECT(write(pipes[1], "", 1) == 1);
    pthread_join(thread, NULL);
}

/* Page faults were measured in a loop, once. With the cold caches of a running program each takes three times as long. */
static void each_measurement_is_of_a_fault_at_that_moment(void)
{
    for (int round = 0; round < 3; round++) {
        int64_t before = rbloat_minor_faults();
        double seconds = rbloat_measure_fault();
        EXPECT(rbloat_minor_faults() > before);
        EXPECT(seconds > 0 && seconds < 20e-6);
    }
}

int main(void)
{
    each_measurement_is_of_a_fault_at_that_moment();
    little_cpu_time_is_quiet();
    a_short_time_tells_nothing();
    a_process_that_waits_for_a_cpu_is_not_quiet();
    a_thread_that_sleeps_is_quiet();
    return failures != 0;
}
