/* Functions that make a process very large in one respect, or damage its structures, for a Ruby that calls them with one
 * number. After the latter, the process must not allocate. */

#define _GNU_SOURCE
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "random.h"

enum { PAGE = 4096, HEAP = 64 << 20 };

/* Makes `count` mappings of one resident page each. Neighbours differ in protection, so the kernel cannot merge them. */
int many_mappings(int count)
{
    char *start = mmap(NULL, (size_t)count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return -1;
    memset(start, 1, (size_t)count * PAGE);
    for (int page = 0; page < count; page += 2)
        if (mprotect(start + (size_t)page * PAGE, PAGE, PROT_READ) != 0)
            return page;
    return count;
}

static pthread_barrier_t allocated;

static void *allocate_and_stay(void *stay)
{
    void *volatile memory = malloc(2000);
    memset(memory, 1, 2000);
    pthread_barrier_wait(&allocated);
    if (stay)
        for (;;)
            pause();
    return NULL;
}

/* Starts `count` threads with small stacks. Each has an arena if malloc permits `arenas` of them. If not `stay`, they
 * end, but their arenas remain. */
static int start_threads(int count, int arenas, int stay)
{
    mallopt(M_ARENA_MAX, arenas);
    pthread_t *threads = calloc(count, sizeof *threads);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 32 << 10);
    pthread_attr_setguardsize(&attributes, 0);
    pthread_barrier_init(&allocated, NULL, count + 1);
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], &attributes, allocate_and_stay, stay ? &allocated : NULL) != 0)
            return i;
    pthread_barrier_wait(&allocated);
    for (int i = 0; i < count && !stay; i++)
        pthread_join(threads[i], NULL);
    return count;
}

int many_threads(int count)
{
    return start_threads(count, 1, 1);
}

int many_arenas(int count)
{
    return start_threads(count, count + 8, 0);
}

/* The `next` of an arena has the same distance from the end of its structure in all releases since glibc 2.26:
 * next, next_free, attached_threads, system_mem, max_system_mem. */
static uint64_t *next_of(char *arena)
{
    static const size_t state = 2200;
    return (uint64_t *)(arena + state - 5 * 8);
}

static void *allocate(void *memory)
{
    *(void **)memory = malloc(2000);
    pthread_barrier_wait(&allocated);
    for (;;)
        pause();
    return NULL;
}

/* Makes the ring of arenas loop without a way back to the main arena. */
int loop_arenas(int unused)
{
    (void)unused;
    void *memory = NULL;
    pthread_t thread;
    pthread_barrier_init(&allocated, NULL, 2);
    mallopt(M_ARENA_MAX, 64);
    pthread_create(&thread, NULL, allocate, &memory);
    pthread_barrier_wait(&allocated);
    char *heap = (char *)((uintptr_t)memory & ~(uintptr_t)(HEAP - 1));
    char *arena = *(char **)heap;
    uint64_t *next = next_of(arena);
    *next = (uint64_t)arena;
    return 1;
}

/* Makes free chunks of `bytes` bytes in the lists of tcache and fastbins their own successors, and one of the unsorted
 * bin, too. The links of glibc 2.32 and later are mangled with their own address. */
int loop_free_lists(int bytes)
{
    enum { CHUNKS = 40 };
    void *chunks[CHUNKS], *large[4];
    for (int i = 0; i < CHUNKS; i++)
        chunks[i] = malloc(bytes);
    for (int i = 0; i < 4; i++)
        large[i] = malloc(3000 + 16 * (i & 1));
    for (int i = 0; i < CHUNKS; i++)
        free(chunks[i]);
    free(large[0]);
    free(large[2]);
    for (int i = 1; i < CHUNKS; i++) {
        /* Chunks of tcache link their data, chunks of a fastbin their headers. */
        uint64_t *link = chunks[i];
        uint64_t target = (uint64_t)chunks[i] - (i < 7 ? 0 : 16);
        *link = target ^ ((uint64_t)link >> 12);
    }
    ((uint64_t *)large[0])[0] = (uint64_t)large[0] - 16;
    return CHUNKS;
}

/* Replaces the list of loaded modules behind its second entry by `count` entries, or by a loop if `count` is 0. */
int long_link_map(int count)
{
    struct link_map *second = _r_debug.r_map->l_next;
    if (count == 0) {
        second->l_next = second;
        return 0;
    }
    struct link_map *entries = calloc(count, sizeof *entries);
    for (int i = 0; i < count; i++) {
        entries[i].l_ld = (void *)(uintptr_t)(4096 * (i + 1));
        entries[i].l_next = i + 1 < count ? &entries[i + 1] : entries;
    }
    second->l_next = entries;
    return count;
}

extern uintptr_t rb_cObject;

/* Points rb_cObject to memory in which every word is: 0: its own address; 1: the address of the memory; 2: a
 * pseudorandom address in there; 3: zero, 4: a small number; 5: pseudorandom bits. The process never goes on. */
int fake_object(int kind)
{
    size_t count = (16 << 20) / 8;
    uintptr_t *words = mmap(NULL, count * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t state = 1;
    for (size_t i = 0; i < count; i++) {
        uint64_t random = next_random(&state);
        uintptr_t other = (uintptr_t)&words[random % (count / 5) * 5];
        uintptr_t contents[] = {(uintptr_t)&words[i], (uintptr_t)words, other, 0, 5, random};
        words[i] = contents[kind];
    }
    rb_cObject = (uintptr_t)&words[count / 2];
    if (write(1, "ready {}\n", 9) == 9)
        for (;;)
            pause();
    return 0;
}
