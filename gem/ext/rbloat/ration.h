/*
 * Decides when a trim is worth it. Pure arithmetic: no clock, no system call, no Ruby.
 *
 * Trims are paid from an account, which earns a small share of the CPU time of the program, and of idle time. Everything
 * that the thread does is paid from it, and a page fault for each returned page that the program uses again. So a program
 * that soon needs its memory again is trimmed less often. While the process is idle, the account may be overdrawn once; it
 * must be positive again before the next trim.
 *
 * Near the memory limit trims do not wait for credit. But looks and trims hold the locks of malloc, so they have a limit
 * of their own: a share of the time that grows with the urgency, and shrinks while trims are useless.
 */
#ifndef RBLOAT_RATION_H
#define RBLOAT_RATION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    /* Constants. */
    double share; /* share of the program's time that trimming may cost */
    int64_t page; /* bytes of a page */

    /* The account, in seconds. */
    double credit;
    int64_t outstanding; /* returned pages that were not faulted in again yet */

    double fault_cost; /* seconds for a page fault, averaged */
    double pass_cost;  /* seconds of CPU time of the last pass: all that the thread does but looks and trims */

    /* Averages over past trims. */
    double comeback;       /* share of the returned pages that is used again, 0 to 1 */
    double cost_per_byte;  /* seconds of a trim for each returned byte */
    double accuracy;       /* returned bytes for each expected byte, 0 to 1 */
    int64_t last_pages;    /* pages that the last trim returned */
    int64_t last_comeback; /* pages of these that were used again */

    /* The time before which there is no look, and the delay that the next useless trim adds. */
    double not_before;
    double backoff;

    /* The same near the limit. Here the backoff is a factor. */
    double pressing_not_before;
    double pressing_backoff;
} rbloat_ration;

typedef struct {
    bool quiet;    /* the process is idle */
    bool swept;    /* a sweep ended since the last trim. Another one may be in progress: sweeps are lazy, so in a busy
                      program nearly always one is */
    bool pressure; /* the memory limit is near */
    int64_t rss;
    int64_t expected; /* bytes that a trim will probably return */
    int64_t least;    /* bytes that a trim must return to be worth it */
} rbloat_outlook;

rbloat_ration rbloat_new_ration(double share, double fault_cost, int64_t page);

/* Takes over the account of an earlier one, and what it has learned. Page faults since then are forgotten. */
void rbloat_ration_continue(rbloat_ration *ration, const rbloat_ration *earlier);

/* Learns from a page fault that took this many seconds of CPU time. */
void rbloat_ration_faulted(rbloat_ration *ration, double seconds);

/* Time that passed. */
typedef struct {
    double seconds;
    double cpu;     /* CPU time of the program, without that of this thread */
    bool quiet;     /* the process was idle */
    int64_t faults; /* page faults */
} rbloat_span;

/* Books time that passed, and the page faults in it. */
void rbloat_ration_passed(rbloat_ration *ration, const rbloat_span *span);

/* Books CPU time of the thread. */
void rbloat_ration_spent(rbloat_ration *ration, double seconds);

/* Books the CPU time of a pass. */
void rbloat_ration_spent_on_pass(rbloat_ration *ration, double seconds);

/* Returns the seconds until the next pass: `tick` while the process is busy and `idle` while it is not. Where passes are
   expensive, they are rarer while it is busy, so that most of the credit is left for trims. `idle` is the maximum. */
double rbloat_ration_wait(const rbloat_ration *ration, bool quiet, double now, double tick, double idle);

/* Books the time of a look near the limit, together with its trim if there was one. The urgency is 0 where the limit
   begins to be near, and 1 where it is reached. */
void rbloat_ration_pressed(rbloat_ration *ration, double urgency, double now, double seconds, bool useful);

bool rbloat_ration_allows(const rbloat_ration *ration, const rbloat_outlook *outlook);

/* Seconds that a trim costs, including later page faults, if it returns the expected bytes. */
double rbloat_ration_cost(const rbloat_ration *ration, int64_t expected);

/* Returns true if the credit suffices for a trim of this many bytes. */
bool rbloat_ration_affords(const rbloat_ration *ration, int64_t expected);

/* Learns from a trim: its CPU time, and the bytes that it returned. */
void rbloat_ration_trimmed(rbloat_ration *ration, const rbloat_outlook *outlook, double now, double seconds, int64_t bytes);

#endif
