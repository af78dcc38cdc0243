/*
 * When a trim is worth it. Pure arithmetic: no clock, no system call, no Ruby.
 *
 * Trimming is paid from an account that a small share of the time flows into. A trim costs what it took, what it took to
 * see that it was worth it (but in quiet times), and afterwards each page fault up to the number of pages that it gave back: so a program that
 * wants its memory again soon pays for that, and is trimmed less often. In quiet times the account may be overdrawn,
 * since nobody waits; it must be filled again before the next trim.
 *
 * Near the memory limit survival beats speed, so trims do not wait for the account to be filled. Yet looks and trims hold
 * the locks of malloc, and a program that is stopped by them all the time does not survive either: they get a share of
 * the time there that grows as the limit comes nearer, and shrinks as they turn out to be useless.
 */
#ifndef RBLOAT_RATION_H
#define RBLOAT_RATION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    /* Set once. */
    double share;      /* of the time that trimming may cost */
    double fault_cost; /* seconds for a page fault */
    int64_t page;      /* bytes of a page */

    /* The account, in seconds. */
    double credit;
    int64_t outstanding; /* pages given back that were not faulted in again yet */

    /* What was learned from trims so far. */
    double comeback;       /* share of the pages given back that is wanted again, 0 to 1 */
    double cost_per_byte;  /* seconds of a trim for each byte that it gives back */
    double accuracy;       /* yield of a trim for each byte expected, 0 to 1 */
    int64_t last_pages;    /* pages that the last trim gave back, and how many of them came back since */
    int64_t last_comeback;

    /* Until when there is no looking, and for how long the next useless trim puts it off. */
    double not_before;
    double backoff;

    /* The same near the limit. */
    double pressing_not_before;
    double pressing_backoff;
} rbloat_ration;

typedef struct {
    bool quiet;    /* the process hardly runs */
    bool swept;    /* a sweep ended since the last trim, and none is under way */
    bool pressure; /* the memory limit is near */
    int64_t rss;
    int64_t expected; /* bytes that a trim will presumably give back */
    int64_t least;    /* bytes that are worth a trim at all */
} rbloat_outlook;

rbloat_ration rbloat_new_ration(double share, double fault_cost, int64_t page);

/* Time passed, and so many page faults happened in it. */
void rbloat_ration_passed(rbloat_ration *ration, double seconds, int64_t faults);

/* Looking took so long. */
void rbloat_ration_looked(rbloat_ration *ration, double seconds);

/* Near the limit: a look, and the trim after it if there was one, took so long. The urgency goes from 0, where the limit
   counts as near, to 1, where it is reached. */
void rbloat_ration_pressed(rbloat_ration *ration, double urgency, double now, double seconds, bool useful);

bool rbloat_ration_allows(const rbloat_ration *ration, const rbloat_outlook *outlook);

/* Seconds that a trim of what is expected costs, with the faults that will follow. */
double rbloat_ration_cost(const rbloat_ration *ration, int64_t expected);

/* A trim took so long and gave so many bytes back. */
void rbloat_ration_trimmed(rbloat_ration *ration, const rbloat_outlook *outlook, double now, double seconds, int64_t bytes);

#endif
