/* An allocator that rbloat cannot read, for LD_PRELOAD: it lets glibc do the work. */
#include <errno.h>
#include <stddef.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

void *malloc(size_t bytes) { return __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return __libc_calloc(count, bytes); }
void *realloc(void *pointer, size_t bytes) { return __libc_realloc(pointer, bytes); }
void free(void *pointer) { __libc_free(pointer); }
void *memalign(size_t alignment, size_t bytes) { return __libc_memalign(alignment, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void **pointer, size_t alignment, size_t bytes) {
    *pointer = memalign(alignment, bytes);
    return *pointer ? 0 : ENOMEM;
}
