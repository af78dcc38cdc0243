/* A process whose heap is of a known kind, and which says itself what malloc_info(3) and mallinfo(3) say.
 *
 *   heaps SCENARIO [NUMBER [NUMBER]]
 *
 * It prints "ready {...}" and then reads its standard input: at each line it trims its heap and
 * prints what its RSS was before and after; the end of input ends it. From the first "ready" on nothing
 * allocates but what was asked for: all buffers are static, and all that the C library prepares on
 * first use is prepared before. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "random.h"

#define MOST_THREADS 64
#define MOST_SLOTS 2000000

#if __GLIBC_PREREQ(2, 33)
#define MALLINFO struct mallinfo2
#define mallinfo_now mallinfo2
#else
#define MALLINFO struct mallinfo
#define mallinfo_now mallinfo
#endif

/* --- Pseudorandom allocation ------------------------------------------------------------------ */

/* Mostly small, some up to 60 KB, and now and then one that gets a mapping of its own. */
static size_t random_size(uint64_t *state)
{
    uint64_t random = next_random(state);
    switch (random % 1024) {
    case 0: return 100000 + (random >> 10) % 400000;
    case 1 ... 20: return 1000 + (random >> 10) % 60000;
    case 21 ... 300: return 200 + (random >> 10) % 2000;
    default: return (random >> 10) % 200;
    }
}

static void *allocate(size_t size)
{
    char *memory = malloc(size);
    if (!memory)
        abort();
    memset(memory, 0x5a, size);
    return memory;
}

static void churn(void **slots, size_t count, size_t rounds, uint64_t seed)
{
    for (size_t round = 0; round < rounds; round++) {
        size_t slot = next_random(&seed) % count;
        if (slots[slot] && next_random(&seed) % 8 == 0)
            slots[slot] = realloc(slots[slot], random_size(&seed) + 1);
        else {
            free(slots[slot]);
            slots[slot] = next_random(&seed) % 3 ? allocate(random_size(&seed)) : NULL;
        }
    }
}

/* Leaves every list of this thread's cache full, and chunks of each fast size in fastbins; the latter
 * come last, since larger requests empty the fastbins. It takes many chunks of a size, for some come
 * out one step too large: those that fill a hole of that size. */
static void fill_caches(void)
{
    enum { CHUNKS = 200 };
    static __thread void *chunks[CHUNKS];
    static const size_t largest[] = {1032, 120};
    for (size_t turn = 0; turn < 2; turn++)
        for (size_t usable = 24; usable <= largest[turn]; usable += 16) {
            for (size_t i = 0; i < CHUNKS; i++)
                chunks[i] = allocate(usable);
            for (size_t i = 0; i < CHUNKS; i++)
                free(chunks[i]);
        }
}

/* --- Scenarios -------------------------------------------------------------------------------- */

static void *main_slots[MOST_SLOTS];
static pthread_barrier_t done, never;
static volatile int stopping;
static size_t slots_of_thread, rounds_of_thread;

static void single(size_t slots, size_t rounds)
{
    churn(main_slots, slots ? slots : 20000, rounds ? rounds : 200000, 42);
    fill_caches();
}

static void *worker(void *number)
{
    void **slots = calloc(slots_of_thread, sizeof *slots);
    churn(slots, slots_of_thread, rounds_of_thread, 1000 + (uintptr_t)number);
    fill_caches();
    pthread_barrier_wait(&done);
    pthread_barrier_wait(&never);
    return NULL;
}

static void start_threads(size_t count, void *(*run)(void *))
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    for (size_t i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, run, (void *)i))
            abort();
    }
}

static void threads(size_t count, size_t slots)
{
    count = count ? count : 12;
    slots_of_thread = slots ? slots : 20000;
    rounds_of_thread = slots_of_thread * 5;
    pthread_barrier_init(&done, NULL, count + 1);
    pthread_barrier_init(&never, NULL, count + 1);
    start_threads(count, worker);
    churn(main_slots, slots_of_thread, rounds_of_thread, 7);
    pthread_barrier_wait(&done);
    fill_caches();
}

static void *busy_worker(void *number)
{
    uint64_t seed = 99 + (uintptr_t)number;
    void **slots = calloc(3000, sizeof *slots);
    while (!stopping)
        churn(slots, 3000, 1000, next_random(&seed));
    return NULL;
}

static void busy(size_t count, size_t unused)
{
    (void)unused;
    start_threads(count ? count : 6, busy_worker);
    usleep(200000);
}

/* Somebody else moves the break between our own requests, by whole pages and by odd bytes. */
static void foreign(size_t unused, size_t also_unused)
{
    (void)unused, (void)also_unused;
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    /* Otherwise freeing the old top trims the new one at once, and malloc returns NULL. */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    static const intptr_t strangers[] = {4096, 40, 8, 70000, 4096 * 3 + 24, 16};
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        churn(main_slots + 4000 * i, 4000, 20000, next_random(&seed));
        char *stranger = sbrk(strangers[i]);
        memset(stranger, i % 2 ? 0x11 : 0, strangers[i]);
        /* More than the top has left, so the arena has to jump over the stranger. */
        main_slots[MOST_SLOTS - 1 - i] = allocate(500000);
    }
    fill_caches();
}

/* Somebody maps a page right behind the break, so that the arena must go elsewhere. */
static void blocked(size_t unused, size_t also_unused)
{
    (void)unused, (void)also_unused;
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    churn(main_slots, 4000, 20000, 3);
    uintptr_t page = ((uintptr_t)sbrk(0) + 4095) & ~(uintptr_t)4095;
    void *wall = mmap((void *)page, 4096, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (wall != (void *)page)
        abort();
    for (size_t i = 0; i < 15; i++) {
        churn(main_slots + 4000, 20000, 40000, 17 + i);
        main_slots[MOST_SLOTS - 1 - i] = allocate(300000 + 70000 * i);
    }
    fill_caches();
}

/* Chunks with alignments from 32 bytes to 32 MB, within arenas and in mappings of their own. */
static void aligned(size_t unused, size_t also_unused)
{
    (void)unused, (void)also_unused;
    size_t slot = 0;
    for (size_t alignment = 32; alignment <= 32 << 20; alignment *= 2)
        for (size_t i = 0; i < 4; i++) {
            static const size_t sizes[] = {10, 3000, 200000, 700001};
            void *memory;
            if (posix_memalign(&memory, alignment, sizes[i]))
                abort();
            memset(memory, 0x77, sizes[i]);
            /* A reallocated one is moved as a whole, distance and all. */
            if (i == 3 && alignment % 3 != 0)
                memory = realloc(memory, 900000);
            main_slots[slot++] = memory;
            main_slots[slot++] = allocate(100 + 8 * i);
        }
    for (size_t i = 0; i < slot; i += 10) {
        free(main_slots[i]);
        main_slots[i] = NULL;
    }
    fill_caches();
}

/* Many mappings, some of which grew, shrank or went. */
static void huge(size_t unused, size_t also_unused)
{
    (void)unused, (void)also_unused;
    mallopt(M_MMAP_THRESHOLD, 200000);
    for (size_t i = 0; i < 60; i++)
        main_slots[i] = allocate(250000 + 100000 * i);
    for (size_t i = 0; i < 60; i += 3)
        main_slots[i] = realloc(main_slots[i], 300000 + 50000 * ((i * 7) % 60));
    for (size_t i = 1; i < 60; i += 4) {
        free(main_slots[i]);
        main_slots[i] = NULL;
    }
    fill_caches();
}

/* --- The truth -------------------------------------------------------------------------------- */

static char info[1 << 20], info_buffer[1 << 16], output[1 << 18], smaps[1 << 14];
static FILE *info_file;
static MALLINFO counted;

static void take_info(void)
{
    rewind(info_file);
    memset(info, 0, sizeof info);
    if (malloc_info(0, info_file) || fflush(info_file))
        abort();
    counted = mallinfo_now();
}

static size_t rss_kb(void)
{
    int file = open("/proc/self/smaps_rollup", O_RDONLY);
    ssize_t got = read(file, smaps, sizeof smaps - 1);
    close(file);
    smaps[got > 0 ? got : 0] = 0;
    const char *line = strstr(smaps, "Rss:");
    return line ? strtoull(line + 4, NULL, 10) : 0;
}

/* The number behind `key` in the next line of malloc_info's text that begins with `tag`. */
static const char *find_number(const char *text, const char *tag, const char *key, size_t *number)
{
    const char *line = text ? strstr(text, tag) : NULL;
    const char *value = line ? strstr(line, key) : NULL;
    *number = value ? strtoull(value + strlen(key), NULL, 10) : 0;
    return line;
}

static char *put_totals(char *out, const char *text)
{
    size_t fast_count, fast_size, rest_count, rest_size, mmap_count, mmap_size, system_size;
    find_number(text, "<total type=\"fast\"", "count=\"", &fast_count);
    find_number(text, "<total type=\"fast\"", " size=\"", &fast_size);
    find_number(text, "<total type=\"rest\"", "count=\"", &rest_count);
    find_number(text, "<total type=\"rest\"", " size=\"", &rest_size);
    find_number(text, "<total type=\"mmap\"", "count=\"", &mmap_count);
    find_number(text, "<total type=\"mmap\"", " size=\"", &mmap_size);
    find_number(text, "<system type=\"current\"", "size=\"", &system_size);
    return out + sprintf(out,
                         "{\"fastbin_chunks\":%zu,\"fastbin_bytes\":%zu,\"free_chunks\":%zu,"
                         "\"free_bytes\":%zu,\"mmapped_chunks\":%zu,\"mmapped_bytes\":%zu,"
                         "\"system_bytes\":%zu}",
                         fast_count, fast_size, rest_count, rest_size, mmap_count, mmap_size,
                         system_size);
}

static void print_truth(void)
{
    take_info();
    char *out = output + sprintf(output, "ready {\"arenas\":[");
    const char *heap = info, *end = info;
    while ((heap = strstr(heap, "<heap nr"))) {
        out = put_totals(out, heap);
        heap = end = strstr(heap, "</heap>");
        *out++ = ',';
    }
    out[-1] = ']';
    out += sprintf(out, ",\"totals\":");
    out = put_totals(out, end);
    out += sprintf(out,
                   ",\"mallinfo\":{\"arena\":%zu,\"ordblks\":%zu,\"smblks\":%zu,\"hblks\":%zu,"
                   "\"hblkhd\":%zu,\"fsmblks\":%zu,\"fordblks\":%zu,\"keepcost\":%zu}}\n",
                   (size_t)counted.arena, (size_t)counted.ordblks, (size_t)counted.smblks,
                   (size_t)counted.hblks, (size_t)counted.hblkhd, (size_t)counted.fsmblks,
                   (size_t)counted.fordblks, (size_t)counted.keepcost);
    if (write(1, output, out - output) < 0)
        abort();
}

static void print_trim(void)
{
    size_t before = rss_kb();
    int returned = malloc_trim(0);
    size_t after = rss_kb();
    int length = sprintf(output, "ready {\"before_kb\":%zu,\"after_kb\":%zu,\"returned\":%d}\n", before,
                         after, returned);
    if (write(1, output, length) < 0)
        abort();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(size_t, size_t);
    } scenarios[] = {{"single", single},   {"threads", threads}, {"foreign", foreign},
                     {"blocked", blocked}, {"aligned", aligned}, {"huge", huge},
                     {"busy", busy}};

    info_file = fmemopen(info, sizeof info, "w");
    setvbuf(info_file, info_buffer, _IOFBF, sizeof info_buffer);
    take_info();
    malloc_trim(0);
    rss_kb();

    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (argc > 1 && !strcmp(argv[1], scenarios[i].name)) {
            scenarios[i].run(argc > 2 ? strtoull(argv[2], NULL, 10) : 0,
                             argc > 3 ? strtoull(argv[3], NULL, 10) : 0);
            print_truth();
            char byte;
            while (read(0, &byte, 1) > 0)
                if (byte == '\n')
                    print_trim();
            stopping = 1;
            _exit(0);
        }
    fprintf(stderr, "usage: heaps SCENARIO [NUMBER [NUMBER]]\n");
    return 2;
}
