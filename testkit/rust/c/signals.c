/* Counts queued real-time signals in several threads and makes and ends threads all the while:
   a target whose signals and threads a capture must not lose. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static atomic_long received, made;
static atomic_int ended;

static void count(int signal) { (void)signal; atomic_fetch_add(&received, 1); }

static void *brief(void *unused) { return unused; }

static void *make_threads(void *unused) {
    while (!atomic_load(&ended)) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, brief, NULL) == 0) {
            pthread_join(thread, NULL);
            atomic_fetch_add(&made, 1);
        }
    }
    return unused;
}

int main(void) {
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGRTMIN + 1, &action, NULL);
    pthread_t makers[3];
    for (int i = 0; i < 3; i++) pthread_create(&makers[i], NULL, make_threads, NULL);
    printf("ready {\"signal\": %d}\n", SIGRTMIN + 1);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
        printf("ready {\"received\": %ld, \"made\": %ld}\n", atomic_load(&received), atomic_load(&made));
        fflush(stdout);
    }
    atomic_store(&ended, 1);
    for (int i = 0; i < 3; i++) pthread_join(makers[i], NULL);
    return 0;
}
