#include "ration.h"

/* The weight of a new measurement in an average: of a trim, and of a page fault. */
static const double WEIGHT = 0.3, FAULT_WEIGHT = 0.02;

/* Seconds of credit that may be saved: enough for a trim of some GiB. */
static const double MAX_CREDIT = 2.0;

/* A trim was useless if it returned less than this share of `least`. */
static const double USEFUL = 0.5;

static const double MIN_BACKOFF = 1.0, MAX_BACKOFF = 600.0;

/* While the process is busy, the time between two trims is at least this multiple of their cost, even if there is more
   credit. */
static const double APART = 20.0;

/* While the process is busy, the part of the credit that passes may take. */
static const double PASSING = 0.25;

/* Near the limit: the share of the time for looks and trims at urgency 0 and 1, and the minimum of seconds between two
   looks. */
static const double MIN_PRESSING_SHARE = 0.05, MAX_PRESSING_SHARE = 0.5, PRESSING = 0.05;

/* The factor by which useless looks near the limit become rarer, at most. */
static const double MAX_PRESSING_BACKOFF = 32;

static double learn(double before, double now)
{
    return before + WEIGHT * (now - before);
}

static double within(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

rbloat_ration rbloat_new_ration(double share, double fault_cost, int64_t page)
{
    return (rbloat_ration){
        .share = share,
        .fault_cost = fault_cost,
        .page = page,
        .comeback = 1.0,
        /* A guess, until the first trim: 100 ms for 1 GiB. */
        .cost_per_byte = 0.1 / (1024.0 * 1024 * 1024),
        .accuracy = 1.0,
        .backoff = MIN_BACKOFF,
        .pressing_backoff = 1,
    };
}

void rbloat_ration_continue(rbloat_ration *ration, const rbloat_ration *earlier)
{
    double share = ration->share;
    *ration = *earlier;
    ration->share = share;
    ration->outstanding = 0;
}

void rbloat_ration_faulted(rbloat_ration *ration, double seconds)
{
    ration->fault_cost += FAULT_WEIGHT * (seconds - ration->fault_cost);
}

void rbloat_ration_passed(rbloat_ration *ration, const rbloat_span *span)
{
    int64_t again = span->faults < ration->outstanding ? span->faults : ration->outstanding;
    ration->outstanding -= again;
    ration->last_comeback += again;
    /* On a full machine a busy process gets little CPU time, and is slowed in proportion to that. */
    double earning = span->quiet ? span->seconds : span->cpu;
    ration->credit += ration->share * earning - (double)again * ration->fault_cost;
    if (ration->credit > MAX_CREDIT) ration->credit = MAX_CREDIT;
}

void rbloat_ration_spent(rbloat_ration *ration, double seconds)
{
    ration->credit -= seconds;
}

void rbloat_ration_spent_on_pass(rbloat_ration *ration, double seconds)
{
    rbloat_ration_spent(ration, seconds);
    ration->pass_cost = seconds;
}

double rbloat_ration_wait(const rbloat_ration *ration, bool quiet, double now, double tick, double idle)
{
    if (!quiet) return within(ration->pass_cost / (PASSING * ration->share), tick, idle);
    /* A trim that only waits for credit, or for the end of a backoff, must not wait for the next GC as well. The next pass
       has to be paid, too: without its cost, each pass found the credit that it had just used up. */
    double overdrawn = ration->credit < 0 ? (ration->pass_cost - ration->credit) / ration->share : 0;
    double paused = ration->not_before > now ? ration->not_before - now : 0;
    double due = overdrawn > paused ? overdrawn : paused;
    return due > 0 && due < idle ? due + tick / 10 : idle;
}

void rbloat_ration_pressed(rbloat_ration *ration, double urgency, double now, double seconds, bool useful)
{
    double share = MIN_PRESSING_SHARE + within(urgency, 0, 1) * (MAX_PRESSING_SHARE - MIN_PRESSING_SHARE);
    ration->pressing_backoff = useful ? 1 : within(ration->pressing_backoff * 2, 1, MAX_PRESSING_BACKOFF);
    double pause = seconds / share * ration->pressing_backoff;
    ration->pressing_not_before = now + (pause > PRESSING ? pause : PRESSING);
    /* Debts from the time near the limit are capped, so that they are paid back in minutes. */
    if (ration->credit < -MAX_CREDIT) ration->credit = -MAX_CREDIT;
}

double rbloat_ration_cost(const rbloat_ration *ration, int64_t expected)
{
    double pages = (double)expected / (double)ration->page;
    return (double)expected * ration->cost_per_byte + pages * ration->fault_cost * ration->comeback;
}

bool rbloat_ration_affords(const rbloat_ration *ration, int64_t expected)
{
    return ration->credit >= within(rbloat_ration_cost(ration, expected), 0, MAX_CREDIT);
}

bool rbloat_ration_allows(const rbloat_ration *ration, const rbloat_outlook *outlook)
{
    double expected = (double)outlook->expected * ration->accuracy;
    if (outlook->pressure) return expected >= (double)outlook->least;
    if (expected < (double)outlook->least || ration->credit < 0) return false;
    if (outlook->quiet) return true;
    return outlook->swept && rbloat_ration_affords(ration, outlook->expected);
}

void rbloat_ration_trimmed(rbloat_ration *ration, const rbloat_outlook *outlook, double now, double seconds, int64_t bytes)
{
    if (ration->last_pages > 0) {
        double share = (double)ration->last_comeback / (double)ration->last_pages;
        ration->comeback = learn(ration->comeback, within(share, 0, 1));
    }
    if (bytes > 0) {
        ration->cost_per_byte = learn(ration->cost_per_byte, seconds / (double)bytes);
    }
    if (outlook->expected > 0) {
        /* At least 0.1, so that it can recover. */
        double share = within((double)bytes / (double)outlook->expected, 0.1, 1);
        ration->accuracy = learn(ration->accuracy, share);
    }
    ration->last_pages = bytes / ration->page;
    ration->last_comeback = 0;
    ration->outstanding += ration->last_pages;
    if ((double)bytes < USEFUL * (double)outlook->least) {
        ration->not_before = now + ration->backoff;
        ration->backoff = within(ration->backoff * 2, MIN_BACKOFF, MAX_BACKOFF);
    } else {
        ration->not_before = now + (outlook->quiet ? 0 : APART * seconds);
        ration->backoff = MIN_BACKOFF;
    }
}
