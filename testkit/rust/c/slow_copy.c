/* A process whose forked copy is not made before somebody has read from its userfaultfd, whose descriptor it prints (-1 if it may
 * have none). It waits, with a handler for SIGVTALRM that does nothing, as CRuby's. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void nothing(int signal) { (void)signal; }

int main(void) {
    struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    int events = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_FORK};
    struct uffdio_register range = {
        .range = {.start = (unsigned long)page, .len = 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    char byte;

    sigaction(SIGVTALRM, &action, NULL);
    if (ioctl(events, UFFDIO_API, &api) || ioctl(events, UFFDIO_REGISTER, &range))
        events = -1;
    printf("ready {\"events\": %d}\n", events);
    fflush(stdout);
    while (read(0, &byte, 1) < 0 && errno == EINTR) {
    }
}
