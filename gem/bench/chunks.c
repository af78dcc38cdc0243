/* Creates free chunks of malloc that cannot be merged, since their neighbours stay in use. Chunks.leave(count, bytes) */
#include <ruby.h>
#include <stdlib.h>
#include <string.h>

static VALUE leave(VALUE self, VALUE count, VALUE bytes)
{
    size_t pairs = NUM2SIZET(count), size = NUM2SIZET(bytes);
    void **taken = malloc(2 * pairs * sizeof(*taken));
    if (!taken) rb_memerror();
    for (size_t index = 0; index < 2 * pairs; index++) {
        taken[index] = malloc(size);
        if (!taken[index]) rb_memerror();
        memset(taken[index], 0x5A, size);
    }
    for (size_t index = 0; index < 2 * pairs; index += 2) free(taken[index]);
    free(taken);
    return Qnil;
}

void Init_chunks(void)
{
    rb_define_singleton_method(rb_define_module("Chunks"), "leave", leave, 2);
}
