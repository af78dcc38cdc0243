/* For LD_PRELOAD, instead of a kernel with Yama: appends each PR_SET_PTRACER to the file RBLOAT_TEST_TRACERS. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int prctl(int option, ...)
{
    unsigned long arguments[4];
    va_list list;
    va_start(list, option);
    for (int index = 0; index < 4; index++) arguments[index] = va_arg(list, unsigned long);
    va_end(list);
    if (option != PR_SET_PTRACER) {
        return (int)syscall(SYS_prctl, option, arguments[0], arguments[1], arguments[2], arguments[3]);
    }
    FILE *file = fopen(getenv("RBLOAT_TEST_TRACERS"), "a");
    if (!file) return errno = EIO, -1;
    fprintf(file, "%ld\n", (long)arguments[0]);
    return fclose(file);
}
