/* What the kernel says of this process. Nothing here allocates or needs the GVL. */
#ifndef RBLOAT_PROCESS_H
#define RBLOAT_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t rss;       /* bytes resident */
    int64_t anonymous; /* of these, bytes that belong to no file and are not shared */
} rbloat_resident;

/* False where /proc cannot be read. */
bool rbloat_read_resident(rbloat_resident *resident);

/* Page faults of all threads so far that needed no disk. */
int64_t rbloat_minor_faults(void);

/* Seconds on a clock that never jumps; of CPU time of the process; of CPU time of the calling thread. */
double rbloat_monotonic(void);
double rbloat_process_cpu(void);
double rbloat_thread_cpu(void);

/* Whether the process was quiet for so many seconds, in which its threads used so many seconds of CPU time: used little of
   it, and not because it got no CPU, as where others are busy, or a quota is used up: then a thread of it, besides the
   calling one, is ready to run. A time too short tells nothing, so that is not quiet. */
bool rbloat_was_quiet(double seconds, double cpu);

/* Seconds of CPU time that one page fault costs here, measured by causing some. */
double rbloat_measure_fault(void);

/* The number at the beginning of a file of the kernel, or after the word in it; -1 where there is none. */
int64_t rbloat_read_number(const char *path, const char *word);

#endif
