/* Facts that the kernel reports about this process. Nothing here allocates or needs the GVL. */
#ifndef RBLOAT_PROCESS_H
#define RBLOAT_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t rss;       /* resident bytes */
    int64_t anonymous; /* resident bytes that are neither file-backed nor shared */
} rbloat_resident;

/* Returns false if /proc cannot be read. */
bool rbloat_read_resident(rbloat_resident *resident);

/* Minor page faults of all threads so far. */
int64_t rbloat_minor_faults(void);

/* Seconds: of a monotonic clock, of the process's CPU time, and of the calling thread's CPU time. */
double rbloat_monotonic(void);
double rbloat_process_cpu(void);
double rbloat_thread_cpu(void);

/* Returns true if the process was idle: if its threads used little CPU time, and not because they got no CPU (then one of
   them, besides the calling one, is ready to run). Returns false if the time was too short to decide.
     seconds: the time
     cpu: the seconds of CPU time that the threads used in it */
bool rbloat_was_quiet(double seconds, double cpu);

/* Seconds of CPU time of one page fault, measured by causing one. A fault takes three times as long with cold caches as it
   does in a loop, so it is called now and then while the program runs. Only one thread may call it. */
double rbloat_measure_fault(void);

/* The number at the beginning of a file of the kernel, or after a word that begins a line. Returns -1 if there is none. */
int64_t rbloat_read_number(const char *path, const char *word);

#endif
