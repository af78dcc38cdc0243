/* The allocator of this process: its name, the memory it has in use, and trims. */
#ifndef RBLOAT_ALLOCATOR_H
#define RBLOAT_ALLOCATOR_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t in_use; /* bytes of chunks in use, including mmapped chunks and chunks in tcaches */
    int64_t free;   /* bytes of other free chunks, resident or not */
} rbloat_malloc_counts;

/* Returns false if jemalloc or another allocator replaces glibc's malloc. */
bool rbloat_glibc_malloc(void);

/* Returns "glibc", "jemalloc", "tcmalloc", "mimalloc" or "other". */
const char *rbloat_allocator_name(void);

/* The functions below are for glibc's malloc only. They take the locks of its arenas, one after the other, and need no
   GVL. */

/* Walks the lists of free chunks, so it takes longer the more free chunks there are. */
rbloat_malloc_counts rbloat_count_malloc(void);

/* The bytes in use, without chunks in the tcache of the calling thread. */
int64_t rbloat_exact_in_use(void);

/* malloc_trim(0). */
void rbloat_trim_malloc(void);

/* The counterpart of AutoTrim under jemalloc: its background thread, which returns free memory also of arenas that no
   thread uses any more. Returns true if the thread runs then; false if it cannot, or malloc is not jemalloc's. */
bool rbloat_start_jemalloc_thread(void);

/* Switches the background thread off, unless it ran before the start. */
void rbloat_stop_jemalloc_thread(void);

/* Returns true between a successful start and the stop. */
bool rbloat_jemalloc_thread_started(void);

/* To be called in a forked process, where jemalloc has switched its thread off. */
void rbloat_resume_jemalloc_thread(void);

#endif
