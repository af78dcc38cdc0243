/* Tests of the arithmetic alone, run by native_test.rb: each line that is printed is a failure. */
#include "expect.h"
#include "ration.h"

static const int64_t MB = 1024 * 1024;

static rbloat_ration fresh(void)
{
    return rbloat_new_ration(0.01, 1e-6, 4096);
}

static rbloat_outlook outlook(bool quiet, int64_t expected)
{
    return (rbloat_outlook){.quiet = quiet, .swept = true, .rss = 2 * expected, .expected = expected, .least = 8 * MB};
}

/* A program that wants back at once all that is trimmed, busy for an hour. */
static void costs_stay_within_the_share(void)
{
    rbloat_ration ration = fresh();
    double spent = 0, at = 0;
    for (; at < 3600; at += 0.1) {
        rbloat_outlook now = outlook(false, 512 * MB);
        if (at >= ration.not_before && rbloat_ration_allows(&ration, &now)) {
            rbloat_ration_trimmed(&ration, &now, at, 0.05, now.expected);
            spent += 0.05 + 512.0 * 256 * 1e-6;
        }
        rbloat_ration_passed(&ration, 0.1, 1000000);
    }
    EXPECT(spent > 0.008 * at);
    EXPECT(spent < 0.011 * at);
}

static void memory_that_stays_away_makes_trims_cheap(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook now = outlook(true, 512 * MB);
    double first = rbloat_ration_cost(&ration, now.expected);
    for (int round = 0; round < 20; round++) rbloat_ration_trimmed(&ration, &now, round, 0.05, now.expected);
    EXPECT(rbloat_ration_cost(&ration, now.expected) < first / 2);
}

static void quiet_times_may_overdraw_once(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook busy = outlook(false, 512 * MB), quiet = outlook(true, 512 * MB);
    EXPECT(!rbloat_ration_allows(&ration, &busy));
    EXPECT(rbloat_ration_allows(&ration, &quiet));
    rbloat_ration_trimmed(&ration, &quiet, 0, 0.05, quiet.expected);
    EXPECT(!rbloat_ration_allows(&ration, &quiet));
    rbloat_ration_passed(&ration, 5.1, 0);
    EXPECT(rbloat_ration_allows(&ration, &quiet));
}

static void useless_trims_are_put_off_longer_and_longer(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook now = outlook(true, 512 * MB);
    double last = 0;
    for (int round = 0; round < 20; round++) {
        double at = ration.not_before;
        rbloat_ration_trimmed(&ration, &now, at, 0.01, 0);
        EXPECT(ration.not_before - at >= last);
        last = ration.not_before - at;
    }
    EXPECT(last == 600);
    rbloat_ration_trimmed(&ration, &now, 0, 0.01, 512 * MB);
    EXPECT(ration.not_before <= 1);
}

static void too_little_is_left_alone(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook now = outlook(true, 7 * MB);
    EXPECT(!rbloat_ration_allows(&ration, &now));
}

static void a_busy_process_is_not_trimmed_between_mark_and_sweep(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook now = outlook(false, 16 * MB);
    rbloat_ration_passed(&ration, 100, 0);
    EXPECT(rbloat_ration_allows(&ration, &now));
    now.swept = false;
    EXPECT(!rbloat_ration_allows(&ration, &now));
}

static void pressure_asks_for_no_credit(void)
{
    rbloat_ration ration = fresh();
    rbloat_outlook now = outlook(false, 16 * MB);
    rbloat_ration_looked(&ration, 10);
    EXPECT(!rbloat_ration_allows(&ration, &now));
    now.pressure = true;
    EXPECT(rbloat_ration_allows(&ration, &now));
}

int main(void)
{
    costs_stay_within_the_share();
    memory_that_stays_away_makes_trims_cheap();
    quiet_times_may_overdraw_once();
    useless_trims_are_put_off_longer_and_longer();
    too_little_is_left_alone();
    a_busy_process_is_not_trimmed_between_mark_and_sweep();
    pressure_asks_for_no_credit();
    return failures != 0;
}
