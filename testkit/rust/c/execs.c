/* Starts threads, of which one replaces the program by itself, again and again. Each exec ends all other threads. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *wait_forever(void *unused) {
    for (;;)
        pause();
    return unused;
}

static void *replace(void *unused) {
    execl("/proc/self/exe", "execs", "again", NULL);
    return unused;
}

int main(int count, char **arguments) {
    pthread_t thread;
    (void)arguments;
    if (count == 1) {
        printf("ready {}\n");
        fflush(stdout);
    }
    for (int i = 0; i < 30; i++)
        pthread_create(&thread, NULL, wait_forever, NULL);
    pthread_create(&thread, NULL, replace, NULL);
    wait_forever(NULL);
}
