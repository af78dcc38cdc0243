/* A library that exports an allocator of its own, for whoever prefers it by the order of libraries or asks for it. */
#include <stddef.h>

void *malloc(size_t bytes) {
    (void)bytes;
    return NULL;
}

void *mi_malloc(size_t bytes) { return malloc(bytes); }
