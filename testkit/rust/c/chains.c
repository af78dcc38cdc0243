/* Chains of threads, each of which makes the next one and ends: whoever looks at them one by one finds
   threads that have ended by then, and whose successors came after the look. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

enum { CHAINS = 3 };

static atomic_int ended, living = CHAINS;

/* `turns` is how long it lives, and whence the next one's time comes. */
static void *run(void *turns) {
    for (volatile uint64_t left = (uintptr_t)turns % 50000; left > 0; left--) { }
    pthread_t next;
    uint64_t random = (uintptr_t)turns * 6364136223846793005 + 1442695040888963407;
    while (!atomic_load(&ended)) {
        if (pthread_create(&next, NULL, run, (void *)(uintptr_t)(random >> 33)) == 0) {
            pthread_detach(next);
            return NULL;
        }
    }
    atomic_fetch_sub(&living, 1);
    return NULL;
}

int main(void) {
    pthread_t first[CHAINS];
    for (intptr_t i = 0; i < CHAINS; i++) {
        pthread_create(&first[i], NULL, run, (void *)(i + 1));
        pthread_detach(first[i]);
    }
    printf("ready {}\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) { }
    atomic_store(&ended, 1);
    while (atomic_load(&living) > 0) usleep(100);
    return 0;
}
