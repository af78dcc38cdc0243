/* Measures the part of a pause that no program can avoid: maps memory, touches each page, and calls clone(2) as rbloat lets the
 * process do. Prints the times in ms, one a line. scripts/bench runs it.
 *   usage: clone MIB STRIDE CALLS
 * With stride 1 pages are touched in ascending order, so neighbours have neighbouring frames. With another stride, which must be
 * coprime to the number of pages, frames are scattered as in an old process. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    size_t page = 4096, pages = strtoull(argv[1], NULL, 10) * (1024 * 1024 / page), stride = strtoull(argv[2], NULL, 10);
    char *memory = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    /* As in malloc's arenas, which grow by less than a huge page. */
    madvise(memory, pages * page, MADV_NOHUGEPAGE);
    for (size_t index = 0, at = 0; index < pages; index++, at = (at + stride) % pages) memory[at * page] = 1;
    /* Without the right for it, other programs may prolong the calls. */
    sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &(struct sched_param){ .sched_priority = 1 });
    for (int calls = atoi(argv[3]); calls > 0; calls--) {
        double started = now_ms();
        long child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
        if (child == 0) _exit(0);
        if (child < 0) return 1;
        printf("%.3f\n", now_ms() - started);
        waitpid(child, NULL, 0);
    }
    return 0;
}
