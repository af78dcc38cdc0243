/* Threads that allocate and free at random, for programs whose live pointers are compared with the walk of their heap. */
#ifndef CHURN_H
#define CHURN_H

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "random.h"

#define MAX_THREADS 64
#define SLOTS 4000
#define SHARED 500

static void *slots[MAX_THREADS][SLOTS];
static _Atomic(void *) shared[SHARED];
static pthread_barrier_t done, never;
static size_t thread_count, rounds;
static bool with_alignment = true;

/* Mostly small, some of every size class, a few of megabytes. */
static size_t random_size(uint64_t *state)
{
    uint64_t random = next_random(state);
    switch (random % 2048) {
    case 0: return 1 + (random >> 11) % 40000000;
    case 1 ... 8: return 1 + (random >> 11) % 2000000;
    case 9 ... 60: return 1 + (random >> 11) % 200000;
    case 61 ... 500: return 1 + (random >> 11) % 14336;
    default: return 1 + (random >> 11) % 512;
    }
}

static void *allocate(uint64_t *seed)
{
    size_t size = random_size(seed);
    char *memory;
    switch (next_random(seed) % 30 + (with_alignment ? 0 : 2)) {
    case 0: memory = aligned_alloc(256, (size + 255) & ~(size_t)255); break;
    case 1: memory = aligned_alloc(4096, (size + 4095) & ~(size_t)4095); break;
    case 2 ... 5: memory = calloc(1, size); break;
    default: memory = malloc(size);
    }
    if (!memory)
        abort();
    memset(memory, 0x5a, size < 100000 ? size : 100000);
    return memory;
}

static void churn(void **mine, uint64_t seed)
{
    for (size_t round = 0; round < rounds; round++) {
        void **slot = mine + next_random(&seed) % SLOTS;
        uint64_t random = next_random(&seed);
        if (*slot && random % 8 == 0) {
            *slot = realloc(*slot, random_size(&seed));
            if (!*slot)
                abort();
        } else if (random % 8 == 1) {
            *slot = atomic_exchange(&shared[random / 8 % SHARED], *slot);
        } else {
            free(*slot);
            *slot = random / 8 % 3 ? allocate(&seed) : NULL;
        }
    }
}

static void *busy_worker(void *number)
{
    for (uint64_t seed = 99 + (uintptr_t)number;; seed++)
        churn(slots[(size_t)number], seed);
    return NULL;
}

static void *worker(void *number)
{
    size_t index = (size_t)number;
    churn(slots[index], 1000 + index);
    pthread_barrier_wait(&done);
    if (index % 3 != 2)
        pthread_barrier_wait(&never);
    return NULL;
}

static size_t resident_kb(void)
{
    size_t kb = 0;
    int file = open("/proc/self/smaps_rollup", O_RDONLY);
    static char text[4096];
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    char *rss = strstr(text, "Rss:");
    if (rss)
        sscanf(rss, "Rss: %zu", &kb);
    return kb;
}

/* Lets threads churn until all stand still. A third of them end. */
static void churn_in_threads(void)
{
    static pthread_t threads[MAX_THREADS];
    pthread_barrier_init(&done, NULL, thread_count);
    pthread_barrier_init(&never, NULL, 2 * MAX_THREADS);
    for (size_t index = 1; index < thread_count; index++)
        if (pthread_create(threads + index, NULL, worker, (void *)index))
            abort();
    churn(slots[0], 1000);
    pthread_barrier_wait(&done);
    for (size_t index = 1; index < thread_count; index++)
        if (index % 3 == 2)
            pthread_join(threads[index], NULL);
    /* Blocks of other threads that this one frees. */
    for (size_t index = 0; index < SHARED; index += 2)
        free(atomic_exchange(&shared[index], NULL));
}

/* Churns for ever. */
static void churn_busily(void)
{
    static pthread_t threads[MAX_THREADS];
    rounds = 1000;
    for (size_t index = 1; index < thread_count; index++)
        if (pthread_create(threads + index, NULL, busy_worker, (void *)index))
            abort();
    puts("ready {}");
    fflush(stdout);
    busy_worker(0);
}

static char input[4096], output[4096], buffer[1 << 16];

/* Lets the standard streams use no memory of malloc, and opens a file for the live pointers. */
static FILE *open_without_malloc(const char *path)
{
    setvbuf(stdin, input, _IOFBF, sizeof input);
    setvbuf(stdout, output, _IOFBF, sizeof output);
    FILE *file = fopen(path, "w");
    if (!file)
        abort();
    setvbuf(file, buffer, _IOFBF, sizeof buffer);
    return file;
}

/* Writes one "address usable-size" for each live pointer. */
static void write_live(FILE *file)
{
    for (size_t index = 0; index < thread_count; index++)
        for (size_t slot = 0; slot < SLOTS; slot++)
            if (slots[index][slot])
                fprintf(file, "%zu %zu\n", (size_t)slots[index][slot], malloc_usable_size(slots[index][slot]));
    for (size_t index = 0; index < SHARED; index++)
        if (shared[index])
            fprintf(file, "%zu %zu\n", (size_t)shared[index], malloc_usable_size(shared[index]));
    fflush(file);
}

#endif
