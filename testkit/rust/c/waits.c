/* Waits in the system call that its argument names, and in read(2), with a handler for SIGVTALRM that does nothing, as
 * CRuby's: without SA_RESTART. Counts the calls that return EINTR. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int interrupted;

static void nothing(int signal) { (void)signal; }

static void *answer(void *unused) {
    char byte;
    (void)unused;
    while (read(0, &byte, 1) < 0 && errno == EINTR)
        interrupted++;
    printf("ready {\"interrupted\": %d}\n", interrupted);
    fflush(stdout);
    _exit(0);
}

int main(int count, char **arguments) {
    const char *call = count > 1 ? arguments[1] : "";
    struct sigaction action = {.sa_handler = nothing};
    int ends[2], server = socket(AF_UNIX, SOCK_STREAM, 0);
    pthread_t thread;
    char byte;

    sigaction(SIGVTALRM, &action, NULL);
    /* A name that the kernel chooses. */
    struct sockaddr name = {.sa_family = AF_UNIX};
    if (pipe(ends) || bind(server, &name, sizeof name.sa_family) || listen(server, 1) || pthread_create(&thread, NULL, answer, NULL))
        return 1;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    printf("ready {}\n");
    fflush(stdout);
    for (;;) {
        long done = 0;
        if (!strcmp(call, "accept")) {
            done = accept(server, NULL, NULL);
        } else if (!strcmp(call, "wait")) {
            done = waitpid(child, NULL, 0);
        } else {
            done = read(ends[0], &byte, 1);
        }
        if (done < 0 && errno == EINTR)
            interrupted++;
    }
}
