/* A process under jemalloc that writes jemalloc's own figures and all its live pointers to files.
 *
 *   jemalloc still THREADS ROUNDS FILE
 *   jemalloc busy THREADS
 *
 * "still" allocates at random in THREADS threads. A third of them end, the others wait. Then it writes
 * FILE.figures, one "name value" for each figure of mallctl(3), and FILE.live, one "address usable-size"
 * for each live pointer. "busy" allocates and frees for ever.
 *
 * It prints "ready {...}" and reads its standard input. At the line "purge" it purges all arenas and
 * prints its RSS before and after. From the first "ready" on, nothing allocates: all buffers are static,
 * and whatever is prepared on first use was used before. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "random.h"

#define MAX_THREADS 64
#define SLOTS 4000

static int (*ctl)(const char *, void *, size_t *, void *, size_t);
static void *slots[MAX_THREADS][SLOTS];
static pthread_barrier_t done, never;
static size_t thread_count, rounds;

/* --- Pseudorandom allocation ------------------------------------------------------------------ */

/* Mostly small, some of every slab class, some larger than any slab's regions, a few of megabytes. */
static size_t random_size(uint64_t *state)
{
    uint64_t random = next_random(state);
    switch (random % 2048) {
    case 0: return 1 + (random >> 11) % 4000000;
    case 1 ... 60: return 1 + (random >> 11) % 200000;
    case 61 ... 500: return 1 + (random >> 11) % 14336;
    default: return 1 + (random >> 11) % 512;
    }
}

static void *allocate(uint64_t *seed)
{
    size_t size = random_size(seed);
    char *memory;
    switch (next_random(seed) % 32) {
    case 0: memory = aligned_alloc(256, (size + 255) & ~(size_t)255); break;
    case 1: memory = aligned_alloc(65536, (size + 65535) & ~(size_t)65535); break;
    case 2 ... 5: memory = calloc(1, size); break;
    default: memory = malloc(size);
    }
    if (!memory)
        abort();
    memset(memory, 0x5a, size);
    return memory;
}

static void churn(void **mine, size_t count, uint64_t seed)
{
    for (size_t round = 0; round < count; round++) {
        void **slot = mine + next_random(&seed) % SLOTS;
        if (*slot && next_random(&seed) % 8 == 0) {
            *slot = realloc(*slot, random_size(&seed));
            if (!*slot)
                abort();
        } else {
            free(*slot);
            *slot = next_random(&seed) % 3 ? allocate(&seed) : NULL;
        }
    }
}

static void *worker(void *number)
{
    size_t index = (size_t)number;
    churn(slots[index], rounds, 1000 + index);
    pthread_barrier_wait(&done);
    if (index % 3 != 2)
        pthread_barrier_wait(&never);
    return NULL;
}

static void *busy_worker(void *number)
{
    uint64_t seed = 99 + (uintptr_t)number;
    for (;;)
        churn(slots[(size_t)number], 1000, next_random(&seed));
    return NULL;
}

static void start_threads(void *(*run)(void *), pthread_t *threads)
{
    for (size_t index = 1; index < thread_count; index++)
        if (pthread_create(threads + index, NULL, run, (void *)index))
            abort();
}

/* --- Figures ---------------------------------------------------------------------------------- */

static char text[8 << 20];
static size_t length;

/* The value of a figure; -1 if this release has none of that name. mallctl(3) succeeds only for its exact width. */
static ssize_t figure(const char *name)
{
    static const size_t widths[] = {sizeof(uint64_t), sizeof(uint32_t), sizeof(uint8_t)};
    for (size_t index = 0; index < 3; index++) {
        uint64_t value = 0;
        size_t bytes = widths[index];
        if (!ctl(name, &value, &bytes, NULL, 0))
            return value;
    }
    return -1;
}

static const char *version(void)
{
    const char *value = "";
    size_t bytes = sizeof value;
    ctl("version", &value, &bytes, NULL, 0);
    return value;
}

static void put(const char *name)
{
    ssize_t value = figure(name);
    /* Decay times are -1 if nothing decays. */
    if (value >= 0 || strstr(name, "decay_ms"))
        length += sprintf(text + length, "%s %zd\n", name, value);
}

static void put_all(const char *format, size_t index, const char *const *names)
{
    char name[128];
    for (; *names; names++) {
        sprintf(name, format, index, *names);
        put(name);
    }
}

static void refresh(void)
{
    uint64_t epoch = 1;
    size_t bytes = sizeof epoch;
    if (ctl("epoch", &epoch, &bytes, &epoch, sizeof epoch))
        abort();
}

static int is_initialized(size_t arena)
{
    char name[64];
    sprintf(name, "arena.%zu.initialized", arena);
    return figure(name) == 1;
}

static void take_figures(void)
{
    static const char *const totals[] = {"allocated", "active", "metadata", "resident", "mapped", "retained", NULL};
    static const char *const of_arenas[] = {
        "pactive",      "pdirty",   "pmuzzy",         "mapped",         "retained",        "base",           "internal",
        "tcache_bytes", "nthreads", "dirty_decay_ms", "muzzy_decay_ms", "small.allocated", "large.allocated", NULL};
    static const char *const of_bins[] = {"size", "slab_size", "nregs", NULL};
    char name[128];
    refresh();
    length = 0;
    size_t arenas = figure("arenas.narenas"), bins = figure("arenas.nbins"), larges = figure("arenas.nlextents");
    length += sprintf(text, "narenas %zu\n", arenas);
    put("background_thread");
    put("arenas.page");
    put_all("stats.%2$s", 0, totals);
    for (size_t bin = 0; bin < bins; bin++)
        put_all("arenas.bin.%zu.%s", bin, of_bins);
    for (size_t large = 0; large < larges; large++) {
        sprintf(name, "arenas.lextent.%zu.size", large);
        put(name);
    }
    for (size_t arena = 0; arena < arenas; arena++) {
        if (!is_initialized(arena))
            continue;
        put_all("stats.arenas.%zu.%s", arena, of_arenas);
        for (size_t bin = 0; bin < bins; bin++) {
            sprintf(name, "stats.arenas.%zu.bins.%zu.curregs", arena, bin);
            put(name);
            sprintf(name, "stats.arenas.%zu.bins.%zu.curslabs", arena, bin);
            put(name);
        }
        for (size_t large = 0; large < larges; large++) {
            sprintf(name, "stats.arenas.%zu.lextents.%zu.curlextents", arena, large);
            put(name);
        }
    }
}

static void take_live(void)
{
    length = 0;
    for (size_t thread = 0; thread < thread_count; thread++)
        for (size_t slot = 0; slot < SLOTS; slot++)
            if (slots[thread][slot])
                length += sprintf(text + length, "%zu %zu\n", (size_t)slots[thread][slot],
                                  malloc_usable_size(slots[thread][slot]));
}

static void write_text(const char *path, const char *suffix)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.%s", path, suffix);
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || write(file, text, length) != (ssize_t)length)
        abort();
    close(file);
}

/* --- Pages ------------------------------------------------------------------------------------ */

static void purge(void)
{
    /* All arenas: MALLCTL_ARENAS_ALL. */
    if (ctl("arena.4096.purge", NULL, NULL, NULL, 0))
        abort();
}

/* If muzzy pages are kept, makes all dirty pages of every other arena muzzy. */
static void make_muzzy(void)
{
    if (figure("arenas.muzzy_decay_ms") == 0)
        return;
    for (size_t arena = 0; arena < (size_t)figure("arenas.narenas"); arena += 2) {
        char name[64];
        sprintf(name, "arena.%zu.dirty_decay_ms", arena);
        ssize_t before = figure(name), none = 0;
        if (is_initialized(arena) && (ctl(name, NULL, NULL, &none, sizeof none) ||
                                      ctl(name, NULL, NULL, &before, sizeof before)))
            abort();
    }
}

/* Frees a quarter of all memory of all threads, into this thread's cache and into the arenas. */
static void free_quarter(size_t which)
{
    for (size_t thread = 0; thread < thread_count; thread++)
        for (size_t slot = which; slot < SLOTS; slot += 4) {
            free(slots[thread][slot]);
            slots[thread][slot] = NULL;
        }
}

/* The free pages that background threads still have to purge, but for those that they are purging. */
static size_t pages_to_purge(void)
{
    size_t pages = 0;
    refresh();
    for (size_t arena = 0; arena < (size_t)figure("arenas.narenas"); arena++) {
        char name[64];
        if (!is_initialized(arena))
            continue;
        sprintf(name, "stats.arenas.%zu.pdirty", arena);
        pages += figure(name);
        sprintf(name, "stats.arenas.%zu.pmuzzy", arena);
        pages += figure(name);
    }
    return pages;
}

/* With background threads: returns when they have nothing left to purge. */
static void wait_for_background_threads(void)
{
    if (figure("background_thread") != 1)
        return;
    for (bool is_done = false; !is_done;) {
        while (pages_to_purge() > 0)
            usleep(10000);
        /* Pages that are being purged are in no figure. Threads that are switched off finish their work first. */
        bool on = false;
        if (ctl("background_thread", NULL, NULL, &on, sizeof on) != 0)
            abort();
        is_done = pages_to_purge() == 0;
        on = true;
        if (ctl("background_thread", NULL, NULL, &on, sizeof on) != 0)
            abort();
    }
}

static size_t rss_kb(void)
{
    static char smaps[1 << 14];
    int file = open("/proc/self/smaps_rollup", O_RDONLY);
    ssize_t got = read(file, smaps, sizeof smaps - 1);
    close(file);
    smaps[got > 0 ? got : 0] = 0;
    const char *line = strstr(smaps, "Rss:");
    return line ? strtoull(line + 4, NULL, 10) : 0;
}

static void print_purge(void)
{
    size_t before = rss_kb();
    purge();
    size_t after = rss_kb();
    length = sprintf(text, "ready {\"before_kb\":%zu,\"after_kb\":%zu}\n", before, after);
    if (write(1, text, length) < 0)
        abort();
}

/* ---------------------------------------------------------------------------------------------- */

static void still(const char *path)
{
    pthread_t threads[MAX_THREADS];
    pthread_barrier_init(&done, NULL, thread_count);
    pthread_barrier_init(&never, NULL, thread_count + 1);
    start_threads(worker, threads);
    churn(slots[0], rounds, 7);
    pthread_barrier_wait(&done);
    for (size_t index = 2; index < thread_count; index += 3)
        pthread_join(threads[index], NULL);
    /* An arena's first purge writes to pages of its structures that were not resident. */
    purge();
    free_quarter(0);
    make_muzzy();
    free_quarter(1);
    wait_for_background_threads();
    take_live();
    write_text(path, "live");
    take_figures();
    write_text(path, "figures");
}

int main(int argc, char **argv)
{
    ctl = dlsym(RTLD_DEFAULT, "mallctl");
    if (argc < 3 || !ctl) {
        fprintf(stderr, "usage: jemalloc still THREADS ROUNDS FILE, or jemalloc busy THREADS, under jemalloc\n");
        return 2;
    }
    thread_count = strtoull(argv[2], NULL, 10);
    if (thread_count == 0 || thread_count > MAX_THREADS)
        return 2;
    take_figures();
    void *volatile memory = malloc(1 << 20);
    memset(memory, 1, 1 << 20);
    free(memory);
    purge();
    rss_kb();

    if (argc > 4 && !strcmp(argv[1], "still")) {
        rounds = strtoull(argv[3], NULL, 10);
        still(argv[4]);
    } else {
        pthread_t threads[MAX_THREADS];
        start_threads(busy_worker, threads);
        churn(slots[0], 1000, 7);
    }
    memset(text, 0, sizeof text);
    length = sprintf(text, "ready {\"version\":\"%s\"}\n", version());
    if (write(1, text, length) < 0)
        abort();
    char line[16];
    while (read(0, line, sizeof line) > 0)
        if (!strncmp(line, "purge", 5))
            print_purge();
    _exit(0);
}
