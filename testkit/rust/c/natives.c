/* A library that gives a Ruby process threads of its own kind: loaded by LD_PRELOAD, it starts one for each way of
 * waiting. Each checks all that a signal handler must leave alone: the errors of its system calls, the general
 * registers and the vector registers across a system call, the signal mask. What is wrong ends the process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void wrong(const char *what, long got)
{
    fprintf(stderr, "natives: wrong %s: %ld, errno %d\n", what, got, errno);
    abort();
}

/* Some programs block signals in those that they start, perf(1) SIGWINCH for example. */
static sigset_t inherited;

static void check_mask(void)
{
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int signal = 1; signal < 32; signal++)
        if (sigismember(&mask, signal) != sigismember(&inherited, signal))
            wrong("signal mask", signal);
}

static void *sleeps(void *unused)
{
    for (;;) {
        struct timespec time = {0, 700000};
        errno = 0;
        int got = nanosleep(&time, &time);
        if (!(got == 0 && errno == 0) && !(got == -1 && errno == EINTR))
            wrong("nanosleep", got);
        check_mask();
    }
    return unused;
}

static void *polls(void *unused)
{
    int ends[2];
    if (pipe(ends))
        wrong("pipe", -1);
    for (;;) {
        struct pollfd one = {ends[0], POLLIN, 0};
        errno = 0;
        int got = poll(&one, 1, 1);
        if (!(got == 0 && errno == 0) && !(got == -1 && errno == EINTR))
            wrong("poll", got);
    }
    return unused;
}

static void *waits(void *unused)
{
    static uint32_t word;
    for (;;) {
        struct timespec time = {0, 900000};
        errno = 0;
        long got = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
        if (!(got == -1 && (errno == ETIMEDOUT || errno == EINTR)))
            wrong("futex", got);
    }
    return unused;
}

static void *takes_turns(void *unused)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 500000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        errno = 0;
        pthread_mutex_lock(&mutex);
        int got = pthread_cond_timedwait(&condition, &mutex, &until);
        pthread_mutex_unlock(&mutex);
        if (errno != 0 || got != ETIMEDOUT)
            wrong("condition", got);
    }
    return unused;
}

#ifdef __x86_64__
#define AVX __attribute__((target("avx")))
/* Without AVX there is nothing to check. */
#define HAS_VECTORS __builtin_cpu_supports("avx")
#else
#define AVX
#define HAS_VECTORS 1
#endif

/* A system call with known values in all registers that it must keep. */
AVX static void *computes(void *unused)
{
    /* All in one place, so that one register is enough to find it. */
    struct {
        uint64_t in[64], out[64], general[8];
        struct timespec time;
    } all;
    uint64_t seed = 0x9e3779b97f4a7c15;
    for (;;) {
        all.time = (struct timespec){0, 300000};
        for (int i = 0; i < 64; i++)
            all.in[i] = seed = seed * 6364136223846793005 + 1;
        long got;
#ifdef __x86_64__
#define LOAD(n) "vmovdqu " #n "*32(%%rbx), %%ymm" #n "\n\t"
#define STORE(n) "vmovdqu %%ymm" #n ", 512+" #n "*32(%%rbx)\n\t"
        asm volatile(
            LOAD(0) LOAD(1) LOAD(2) LOAD(3) LOAD(4) LOAD(5) LOAD(6) LOAD(7)
            LOAD(8) LOAD(9) LOAD(10) LOAD(11) LOAD(12) LOAD(13) LOAD(14) LOAD(15)
            "mov $0x11, %%edx\n\t" "mov $0x22, %%r12d\n\t" "mov $0x33, %%r13d\n\t" "mov $0x44, %%r14d\n\t"
            "mov $0x55, %%r15d\n\t" "mov $0x66, %%r10d\n\t" "lea 1088(%%rbx), %%rdi\n\t" "xor %%esi, %%esi\n\t"
            "mov $35, %%eax\n\t" "syscall\n\t"
            STORE(0) STORE(1) STORE(2) STORE(3) STORE(4) STORE(5) STORE(6) STORE(7)
            STORE(8) STORE(9) STORE(10) STORE(11) STORE(12) STORE(13) STORE(14) STORE(15)
            "mov %%rdx, 1024(%%rbx)\n\t" "mov %%r12, 1032(%%rbx)\n\t" "mov %%r13, 1040(%%rbx)\n\t"
            "mov %%r14, 1048(%%rbx)\n\t" "mov %%r15, 1056(%%rbx)\n\t" "mov %%r10, 1064(%%rbx)\n\t"
            "mov %%rdi, 1072(%%rbx)\n\t" "mov %%rsi, 1080(%%rbx)\n\t"
            : "=&a"(got)
            : "b"(&all)
            : "rdx", "rdi", "rsi", "r10", "r11", "rcx", "r12", "r13", "r14", "r15", "memory", "xmm0", "xmm1", "xmm2",
              "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
              "xmm15");
#elif defined(__aarch64__)
        register void *base asm("x19") = &all;
#define LOAD(n, m, at) "ldp q" #n ", q" #m ", [x19, #" #at "*16]\n\t"
#define STORE(n, m, at) "stp q" #n ", q" #m ", [x19, #512+" #at "*16]\n\t"
        asm volatile(
            LOAD(0, 1, 0) LOAD(2, 3, 2) LOAD(4, 5, 4) LOAD(6, 7, 6) LOAD(8, 9, 8) LOAD(10, 11, 10) LOAD(12, 13, 12)
            LOAD(14, 15, 14) LOAD(16, 17, 16) LOAD(18, 19, 18) LOAD(20, 21, 20) LOAD(22, 23, 22) LOAD(24, 25, 24)
            LOAD(26, 27, 26) LOAD(28, 29, 28) LOAD(30, 31, 30)
            "mov x9, #0x11\n\t" "mov x10, #0x22\n\t" "mov x11, #0x33\n\t" "mov x12, #0x44\n\t" "mov x13, #0x55\n\t"
            "mov x14, #0x66\n\t" "add x15, x19, #1088\n\t" "mov x0, x15\n\t" "mov x1, #0\n\t" "mov x8, #101\n\t"
            "svc #0\n\t"
            STORE(0, 1, 0) STORE(2, 3, 2) STORE(4, 5, 4) STORE(6, 7, 6) STORE(8, 9, 8) STORE(10, 11, 10)
            STORE(12, 13, 12) STORE(14, 15, 14) STORE(16, 17, 16) STORE(18, 19, 18) STORE(20, 21, 20)
            STORE(22, 23, 22) STORE(24, 25, 24) STORE(26, 27, 26) STORE(28, 29, 28) STORE(30, 31, 30)
            "str x9, [x19, #1024]\n\t" "str x10, [x19, #1032]\n\t" "str x11, [x19, #1040]\n\t" "str x12, [x19, #1048]\n\t"
            "str x13, [x19, #1056]\n\t" "str x14, [x19, #1064]\n\t" "str x15, [x19, #1072]\n\t" "str x1, [x19, #1080]\n\t"
            "mov %0, x0\n\t"
            : "=r"(got)
            : "r"(base)
            : "x0", "x1", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "memory", "v0", "v1", "v2", "v3", "v4",
              "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20",
              "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#else
#error "No registers of this CPU are known."
#endif
        if (got != 0 && got != -EINTR)
            wrong("result", got);
        if (memcmp(all.in, all.out, sizeof all.in))
            wrong("vector register", 0);
        const uint64_t expected[] = {0x11, 0x22, 0x33, 0x44, 0x55, 0x66, (uint64_t)&all.time, 0};
        if (memcmp(all.general, expected, sizeof expected))
            wrong("general register", 0);
    }
    return unused;
}

__attribute__((constructor)) static void start(void)
{
    if (strncmp(program_invocation_short_name, "ruby", 4))
        return;
    unsetenv("LD_PRELOAD");
    pthread_sigmask(SIG_SETMASK, NULL, &inherited);
    void *(*const all[])(void *) = {sleeps, polls, waits, takes_turns, computes};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i] == computes && !HAS_VECTORS)
            continue;
        pthread_t thread;
        if (pthread_create(&thread, NULL, all[i], NULL))
            wrong("thread", i);
    }
}
