/* A process under mimalloc that writes its live pointers to a file.
 *
 *   mimalloc still|unaligned THREADS ROUNDS FILE
 *   mimalloc busy THREADS
 *
 * THREADS threads allocate at random, free their own blocks, and exchange blocks that another thread then frees. A third of them
 * end, the others wait. Then it writes FILE, one "address usable-size" for each live pointer, and prints "ready {...}" with what
 * mimalloc says of the main thread's heap: the number and the bytes of its blocks in use. From then on nothing allocates.
 * Only "still" asks for alignment: Debian's 3.0.1 crashes then. "busy" allocates and frees for ever.
 *
 * At the line "collect" it makes mimalloc return what it can, and prints its RSS before and after. */

#define _GNU_SOURCE
#include <dlfcn.h>

#include "churn.h"

static size_t visited, visited_bytes;

static bool visit(const void *heap, const void *area, void *block, size_t bytes, void *argument)
{
    if (block) {
        visited++;
        visited_bytes += bytes;
    }
    return true;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    thread_count = atoi(arguments[2]);
    with_alignment = !strcmp(arguments[1], "still");
    if (count == 3)
        churn_busily();
    rounds = atoi(arguments[3]);
    bool (*visit_blocks)(const void *, bool, void *, void *) = dlsym(RTLD_DEFAULT, "mi_heap_visit_blocks");
    void *(*heap)(void) = dlsym(RTLD_DEFAULT, "mi_heap_main");
    if (!heap)
        heap = dlsym(RTLD_DEFAULT, "mi_heap_get_default");
    void (*collect)(bool) = dlsym(RTLD_DEFAULT, "mi_collect");
    int (*version)(void) = dlsym(RTLD_DEFAULT, "mi_version");
    if (!visit_blocks || !heap || !collect || !version)
        return 3;
    FILE *file = open_without_malloc(arguments[4]);
    churn_in_threads();
    write_live(file);
    visit_blocks(heap(), true, visit, NULL);
    printf("ready {\"version\": %d, \"visited\": %zu, \"visited_bytes\": %zu}\n", version(), visited, visited_bytes);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        size_t before = resident_kb();
        collect(true);
        printf("ready {\"before_kb\": %zu, \"after_kb\": %zu}\n", before, resident_kb());
        fflush(stdout);
    }
    return 0;
}
