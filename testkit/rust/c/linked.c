/* A program whose reference to malloc is resolved by its first call, which it never makes where it is linked lazily;
   and which names a variable of the C library's directly, so that the linker gives it a copy. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    static char text[96];
    int length = snprintf(text, sizeof text, "ready {\"environ\": %lu}\n", (unsigned long)&environ);
    if (argc > 1)
        argv[0] = malloc(argc);
    char byte;
    if (write(1, text, length) != length)
        return 1;
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
