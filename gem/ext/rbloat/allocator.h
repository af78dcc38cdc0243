/* The allocator of this process: which one it is, what it has in use, and giving its free memory back. */
#ifndef RBLOAT_ALLOCATOR_H
#define RBLOAT_ALLOCATOR_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t in_use; /* bytes of chunks in use, those with a mapping of their own and those in tcaches included */
    int64_t free;   /* bytes of free chunks, resident or not */
} rbloat_malloc_counts;

/* Whether malloc is glibc's own, and not jemalloc's or another that was loaded in its place. */
bool rbloat_glibc_malloc(void);

/* What the allocator is called: "glibc", "jemalloc", "tcmalloc", "mimalloc", "other". */
const char *rbloat_allocator_name(void);

/* The four below are for glibc's malloc only. They take its locks one after the other, and need no GVL. */

/* Walks the lists of free chunks, so the time that it takes grows with their number. */
rbloat_malloc_counts rbloat_count_malloc(void);

/* As in_use above, but for what lies in the calling thread's tcache. */
int64_t rbloat_exact_in_use(void);

/* malloc_trim(0). */
void rbloat_trim_malloc(void);

#endif
