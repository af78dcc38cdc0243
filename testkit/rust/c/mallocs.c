/* Allocates and frees at random, with any malloc. Prints "ready {"blocks": [[address, size], ...]}" with the blocks that are left,
 * and waits for the end of its standard input. Nothing is allocated after the last of these blocks: all buffers are static. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "random.h"

#define SLOTS 4000
#define ROUNDS 400000

static struct {
    char *memory;
    size_t size;
} slots[SLOTS];
static char text[SLOTS * 48];

/* Mostly small, some of every size class, some with a mapping of their own. */
static size_t random_size(uint64_t *state)
{
    uint64_t random = next_random(state);
    switch (random % 256) {
    case 0: return 1 + (random >> 8) % 2000000;
    case 1 ... 20: return 1 + (random >> 8) % 140000;
    case 21 ... 100: return 1 + (random >> 8) % 8000;
    default: return (random >> 8) % 300;
    }
}

int main(void)
{
    uint64_t state = 88172645463325252;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t random = next_random(&state);
        int slot = random % SLOTS;
        size_t size = random_size(&state);
        switch (random >> 32 & 15) {
        case 0 ... 7:
            free(slots[slot].memory);
            slots[slot].memory = NULL;
            break;
        case 8:
            slots[slot].memory = realloc(slots[slot].memory, size ? size : 1);
            slots[slot].size = size;
            break;
        case 9:
            free(slots[slot].memory);
            slots[slot].memory = aligned_alloc(4096, (size + 4095) & ~(size_t)4095);
            slots[slot].size = size;
            break;
        default:
            free(slots[slot].memory);
            slots[slot].memory = malloc(size);
            slots[slot].size = size;
        }
        if (slots[slot].memory) memset(slots[slot].memory, 1, slots[slot].size);
    }
    char *end = text + sprintf(text, "ready {\"blocks\": [");
    for (int slot = 0; slot < SLOTS; slot++) {
        if (slots[slot].memory) end += sprintf(end, "[%zu, %zu],", (size_t)slots[slot].memory, slots[slot].size);
    }
    if (end[-1] == ',') end--;
    end += sprintf(end, "]}\n");
    for (char *from = text; from < end;) {
        ssize_t written = write(1, from, end - from);
        if (written <= 0) return 1;
        from += written;
    }
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
