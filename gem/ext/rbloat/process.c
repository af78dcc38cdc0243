#include "process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <time.h>
#include <unistd.h>

/* A process that uses less CPU time per second than QUIET is idle. QUIET_SPAN is the shortest time that is judged. */
static const double QUIET = 0.1, QUIET_SPAN = 0.05;

/* Opens the file each time, since after a fork an open descriptor would still be the parent's file. */
static ssize_t read_file(const char *path, char *buffer, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t length = read(fd, buffer, size - 1);
    close(fd);
    if (length < 0) return -1;
    buffer[length] = '\0';
    return length;
}

bool rbloat_read_resident(rbloat_resident *resident)
{
    char text[256], *rest = text;
    if (read_file("/proc/self/statm", text, sizeof(text)) <= 0) return false;
    int64_t page = sysconf(_SC_PAGESIZE);
    strtoll(rest, &rest, 10);
    int64_t rss = strtoll(rest, &rest, 10), shared = strtoll(rest, &rest, 10);
    resident->rss = rss * page;
    resident->anonymous = (rss - shared) * page;
    return true;
}

int64_t rbloat_minor_faults(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_minflt : 0;
}

static double read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

double rbloat_monotonic(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

double rbloat_process_cpu(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

double rbloat_thread_cpu(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

#ifdef __linux__

/* The format of getdents64(2), which is used since opendir(3) allocates. */
struct entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

static char state_of_thread(const char *id)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/self/task/%.20s/stat", id);
    if (read_file(path, text, sizeof(text)) <= 0) return '?';
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' ? end[2] : '?';
}

static bool another_runs(void)
{
    _Alignas(struct entry) char buffer[4096];
    long own = syscall(SYS_gettid), bytes;
    bool found = false;
    int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return false;
    while (!found && (bytes = syscall(SYS_getdents64, folder, buffer, sizeof(buffer))) > 0) {
        for (long at = 0; at < bytes && !found; at += ((struct entry *)(buffer + at))->length) {
            const char *id = ((struct entry *)(buffer + at))->name;
            if (id[0] != '.' && atol(id) != own) found = state_of_thread(id) == 'R';
        }
    }
    close(folder);
    return found;
}

#else

static bool another_runs(void)
{
    return false;
}

#endif

bool rbloat_was_quiet(double seconds, double cpu)
{
    return seconds >= QUIET_SPAN && cpu < QUIET * seconds && !another_runs();
}

double rbloat_measure_fault(void)
{
    /* A typical value, if it cannot be measured. */
    const double usual = 2e-6;
    /* The first page keeps the table of pages in memory. Both stay mapped: forked processes use them, too. */
    static char *memory;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!memory) {
        char *mapped = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) return usual;
        memory = mapped;
    }
    memory[0] = 1;
    if (madvise(memory + page, page, MADV_DONTNEED)) return usual;
    double first = rbloat_thread_cpu(), started = rbloat_thread_cpu();
    ((volatile char *)memory)[page] = 1;
    double seconds = (rbloat_thread_cpu() - started) - (started - first);
    /* The clock may be too coarse, and an interrupt may take longer than the fault. */
    return seconds > 0.1e-6 && seconds < 20e-6 ? seconds : usual;
}

int64_t rbloat_read_number(const char *path, const char *word)
{
    char text[8192], *found = text;
    if (read_file(path, text, sizeof(text)) <= 0) return -1;
    while (word && (found = strstr(found, word))) {
        bool begins_line = found == text || found[-1] == '\n';
        found += strlen(word);
        if (begins_line && *found == ' ') break;
    }
    if (!found) return -1;
    char *end;
    long long number = strtoll(found, &end, 10);
    return end == found ? -1 : number;
}
