/* A process under tcmalloc that writes its live pointers to a file.
 *
 *   tcmalloc still|forked THREADS ROUNDS FILE
 *   tcmalloc busy THREADS
 *
 * THREADS threads allocate at random, free their own blocks, and exchange blocks that another thread then frees. A third of them
 * end, the others wait. Then it returns a part of the free pages, writes FILE, one "address usable-size" for each live pointer, and prints
 * "ready {...}" with tcmalloc's own statistics. From then on nothing allocates. "forked" prints them in a
 * child, which has the main thread only. "busy" allocates and frees for ever.
 *
 * At the line "release" it makes tcmalloc return what it can, and prints its RSS before and after. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/wait.h>

#include "churn.h"

static int (*property)(const char *, size_t *);

static size_t of(const char *name)
{
    size_t value = 0;
    if (!property(name, &value))
        abort();
    return value;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    thread_count = atoi(arguments[2]);
    if (count == 3)
        churn_busily();
    rounds = atoi(arguments[3]);
    property = (int (*)(const char *, size_t *))dlsym(RTLD_DEFAULT, "MallocExtension_GetNumericProperty");
    void (*release)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory");
    void (*release_bytes)(size_t) = (void (*)(size_t))dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseToSystem");
    void (*statistics)(char *, int) = (void (*)(char *, int))dlsym(RTLD_DEFAULT, "MallocExtension_GetStats");
    size_t (*own_cache)(void) = (size_t (*)(void))dlsym(RTLD_DEFAULT, "MallocExtension_GetThreadCacheSize");
    if (!property || !release || !release_bytes || !statistics || !own_cache)
        return 3;
    FILE *file = open_without_malloc(arguments[4]);
    churn_in_threads();
    release_bytes(of("tcmalloc.pageheap_free_bytes") / 2);
    write_live(file);
    pid_t child = strcmp(arguments[1], "forked") ? 0 : fork();
    if (child)
        return waitpid(child, NULL, 0) == child ? 0 : 1;
    static char text[8192];
    statistics(text, sizeof text);
    size_t metadata = 0;
    char *line_of = strstr(text, "Bytes in malloc metadata");
    while (line_of && line_of > text && *line_of != '+')
        line_of--;
    if (line_of)
        sscanf(line_of, "+ %zu", &metadata);
    printf("ready {\"in_use\": %zu, \"system\": %zu, \"normal\": %zu, \"returned\": %zu, \"central\": %zu, \"transfer\": %zu, "
           "\"caches\": %zu, \"own_cache\": %zu, \"metadata\": %zu, \"pid\": %d}\n",
           of("generic.current_allocated_bytes"), of("generic.heap_size"), of("tcmalloc.pageheap_free_bytes"),
           of("tcmalloc.pageheap_unmapped_bytes"), of("tcmalloc.central_cache_free_bytes"),
           of("tcmalloc.transfer_cache_free_bytes"), of("tcmalloc.current_total_thread_cache_bytes"), own_cache(), metadata,
           getpid());
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        size_t before = resident_kb();
        release();
        printf("ready {\"before_kb\": %zu, \"after_kb\": %zu}\n", before, resident_kb());
        fflush(stdout);
    }
    return 0;
}
