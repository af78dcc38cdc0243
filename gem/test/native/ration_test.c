/* Tests of ration.c, run by native_test.rb. Prints one line for each failure. */
#include "expect.h"
#include "ration.h"

static const int64_t MIB = 1024 * 1024;

static rbloat_ration fresh(void)
{
    return rbloat_new_ration(0.01, 1e-6, 4096);
}

/* The process is busy with one thread, which has a processor of its own. */
static void pass(rbloat_ration *ration, double seconds, int64_t faults)
{
    rbloat_span span = {.seconds = seconds, .cpu = seconds, .faults = faults};
    rbloat_ration_passed(ration, &span);
}

static rbloat_outlook outlook(bool quiet, int64_t expected)
{
    return (rbloat_outlook){.quiet = quiet, .swept = true, .rss = 2 * expected, .expected = expected, .least = 8 * MIB};
}

/* A program that is busy for an hour and uses all returned memory again at once. */
static void costs_stay_within_the_share(void)
{
    rbloat_ration ration = fresh();
    double spent = 0, at = 0;
    for (; at < 3600; at += 0.1) {
        rbloat_outlook now = outlook(false, 512 * MIB);
        if (at >= ration.not_before && rbloat_ration_allows(&ration, &now)) {
            rbloat_ration_trimmed(&ration, &now, at, 0.05, now.expected);
            rbloat_ration_spent(&ration, 0.05);
            spent += 0.05 + 512.0 * 256 * 1e-6;
        }
        pass(&ration, 0.1, 1000000);
    }
    EXPECT(spent > 0.008 * at);
    EXPECT(spent < 0.011 * at);
}

/* It earned its share of the time that passed. So eight busy workers on two processors cost four times their share. */
static void a_busy_process_earns_by_its_cpu_time(void)
{
    rbloat_ration ration = fresh();
    rbloat_span span = {.seconds = 100, .cpu = 25};
    rbloat_ration_passed(&ration, &span);
    EXPECT(ration.credit == 0.25);
    span.quiet = true;
    rbloat_ration_passed(&ration, &span);
    EXPECT(ration.credit == 1.25);
}

/* The thread waited until its debt was paid, and the pass after that made a new one. So on a slow machine it never looked. */
static void expensive_passes_leave_credit_for_trims(void)
{
    for (int quiet = 0; quiet < 2; quiet++) {
        for (double cost = 1e-6; cost < 0.01; cost *= 3) {
            rbloat_ration ration = fresh();
            double now = 0, wait = 0.1;
            rbloat_outlook later = outlook(quiet, 64 * MIB);
            do {
                rbloat_span span = {.seconds = wait, .cpu = quiet ? 0 : wait, .quiet = quiet};
                now += wait;
                rbloat_ration_passed(&ration, &span);
                rbloat_ration_spent_on_pass(&ration, cost);
                wait = rbloat_ration_wait(&ration, quiet, now, 0.1, 5);
            } while (now < 60 && !rbloat_ration_allows(&ration, &later));
            EXPECT(now < (quiet ? 7 : 20));
        }
    }
}

static void a_wait_ends_when_the_next_look_is_possible(void)
{
    rbloat_ration ration = fresh();
    EXPECT(rbloat_ration_wait(&ration, true, 0, 0.1, 5) == 5);
    EXPECT(rbloat_ration_wait(&ration, false, 0, 0.1, 5) == 0.1);
    rbloat_ration_spent_on_pass(&ration, 0.01);
    EXPECT(rbloat_ration_wait(&ration, false, 0, 0.1, 5) == 4);
    EXPECT(rbloat_ration_wait(&ration, true, 0, 0.1, 5) == 2 + 0.1 / 10);
    rbloat_ration_spent_on_pass(&ration, 0.1);
    EXPECT(rbloat_ration_wait(&ration, true, 0, 0.1, 5) == 5);
    ration = fresh();
    ration.not_before = 13;
    EXPECT(rbloat_ration_wait(&ration, true, 10, 0.1, 5) == 3 + 0.1 / 10);
}

static void memory_that_stays_away_makes_trims_cheap(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook now = outlook(true, 512 * MIB);
    double first = rbloat_ration_cost(&ration, now.expected);
    for (int round = 0; round < 20; round++) rbloat_ration_trimmed(&ration, &now, round, 0.05, now.expected);
    EXPECT(rbloat_ration_cost(&ration, now.expected) < first / 2);
}

static void faults_are_booked_at_their_average(void)
{
    rbloat_ration ration = fresh();
    for (int round = 0; round < 1000; round++) rbloat_ration_faulted(&ration, round % 2 ? 6e-6 : 4e-6);
    EXPECT(ration.fault_cost > 4.9e-6 && ration.fault_cost < 5.1e-6);
    /* One slow fault hardly changes it. */
    rbloat_ration_faulted(&ration, 20e-6);
    EXPECT(ration.fault_cost < 5.5e-6);
    /* Another thread continues with what was learned. */
    rbloat_ration next = fresh();
    rbloat_ration_continue(&next, &ration);
    EXPECT(next.fault_cost == ration.fault_cost);
}

static void quiet_times_may_overdraw_once(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook busy = outlook(false, 512 * MIB), quiet = outlook(true, 512 * MIB);
    EXPECT(!rbloat_ration_allows(&ration, &busy));
    EXPECT(rbloat_ration_allows(&ration, &quiet));
    rbloat_ration_trimmed(&ration, &quiet, 0, 0.05, quiet.expected);
    rbloat_ration_spent(&ration, 0.05);
    EXPECT(!rbloat_ration_allows(&ration, &quiet));
    pass(&ration, 5.1, 0);
    EXPECT(rbloat_ration_allows(&ration, &quiet));
}

static void useless_trims_are_put_off_longer_and_longer(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook now = outlook(true, 512 * MIB);
    double last = 0;
    for (int round = 0; round < 20; round++) {
        double at = ration.not_before;
        rbloat_ration_trimmed(&ration, &now, at, 0.01, 0);
        EXPECT(ration.not_before - at >= last);
        last = ration.not_before - at;
    }
    EXPECT(last == 600);
    rbloat_ration_trimmed(&ration, &now, 0, 0.01, 512 * MIB);
    EXPECT(ration.not_before <= 1);
}

static void too_little_is_left_alone(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook now = outlook(true, 7 * MIB);
    EXPECT(!rbloat_ration_allows(&ration, &now));
}

static void a_busy_process_is_not_trimmed_twice_between_two_sweeps(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook now = outlook(false, 16 * MIB);
    pass(&ration, 100, 0);
    EXPECT(rbloat_ration_allows(&ration, &now));
    now.swept = false;
    EXPECT(!rbloat_ration_allows(&ration, &now));
}

static void pressure_asks_for_no_credit(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook now = outlook(false, 16 * MIB);
    rbloat_ration_spent(&ration, 10);
    EXPECT(!rbloat_ration_allows(&ration, &now));
    now.pressure = true;
    EXPECT(rbloat_ration_allows(&ration, &now));
}

/* The seconds that looks take in this time near the limit. Each look is followed by a trim with the same cost. */
static double pressed_for(double seconds, double cost, double urgency, bool useful)
{
    rbloat_ration ration = fresh();
    double spent = 0, at = 0;
    while (at < seconds) {
        if (at >= ration.pressing_not_before) {
            rbloat_outlook now = {.swept = true, .pressure = true, .expected = 16 * MIB, .least = MIB};
            EXPECT(rbloat_ration_allows(&ration, &now));
            rbloat_ration_trimmed(&ration, &now, at, cost, useful ? 16 * MIB : 0);
            rbloat_ration_spent(&ration, 2 * cost);
            at += 2 * cost;
            spent += 2 * cost;
            rbloat_ration_pressed(&ration, urgency, at, 2 * cost, useful);
        }
        at += 0.05;
    }
    return spent;
}

/* Looks at 2 million free chunks took 84 ms, 20 times a second, with the locks of the arenas held. */
static void looks_near_the_limit_stay_within_a_share(void)
{
    EXPECT(pressed_for(3600, 0.084, 0, true) < 0.055 * 3600);
    EXPECT(pressed_for(3600, 0.084, 1, true) < 0.55 * 3600);
    EXPECT(pressed_for(3600, 0.084, 1, true) > 0.3 * 3600);
    EXPECT(pressed_for(3600, 0.084, 0.5, true) < 0.31 * 3600);
}

static void useless_looks_near_the_limit_become_rare(void)
{
    EXPECT(pressed_for(3600, 0.084, 0, false) < 0.003 * 3600);
    EXPECT(pressed_for(3600, 0.084, 1, false) < 0.02 * 3600);
}

/* Cheap looks are taken every 50 ms. */
static void cheap_looks_near_the_limit_stay_frequent(void)
{
    EXPECT(pressed_for(60, 10e-6, 0, false) > 60 / 0.05 / 3 * 20e-6);
}

static void what_survival_cost_is_not_paid_back_for_hours(void)
{
    rbloat_ration ration = fresh();
    for (int round = 0; round < 1000; round++) {
        rbloat_ration_spent(&ration, 1);
        rbloat_ration_pressed(&ration, 1, round, 1, true);
    }
    pass(&ration, 300, 0);
    EXPECT(ration.credit >= 0);
}

int main(void)
{
    costs_stay_within_the_share();
    a_busy_process_earns_by_its_cpu_time();
    expensive_passes_leave_credit_for_trims();
    a_wait_ends_when_the_next_look_is_possible();
    memory_that_stays_away_makes_trims_cheap();
    faults_are_booked_at_their_average();
    quiet_times_may_overdraw_once();
    useless_trims_are_put_off_longer_and_longer();
    too_little_is_left_alone();
    a_busy_process_is_not_trimmed_twice_between_two_sweeps();
    pressure_asks_for_no_credit();
    looks_near_the_limit_stay_within_a_share();
    useless_looks_near_the_limit_become_rare();
    cheap_looks_near_the_limit_stay_frequent();
    what_survival_cost_is_not_paid_back_for_hours();
    return failures != 0;
}
