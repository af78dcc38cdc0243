/* Pseudorandom numbers (xorshift64), so that runs can be repeated. */
#include <stdint.h>

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}
