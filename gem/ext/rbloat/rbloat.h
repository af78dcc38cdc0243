/* Definitions for all parts of the extension. */
#ifndef RBLOAT_H
#define RBLOAT_H

#include <ruby.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* AutoTrim and NativePressure need Linux and glibc's malloc. Elsewhere their methods do nothing. */
#if defined(__linux__) && defined(HAVE_MALLOC_TRIM) && (defined(HAVE_MALLINFO2) || defined(HAVE_MALLINFO)) && \
    defined(HAVE_LINUX_FUTEX_H)
#define RBLOAT_WATCHES 1
#else
#define RBLOAT_WATCHES 0
#endif

void rbloat_init_allocator(VALUE rbloat);
void rbloat_init_native_threads(VALUE rbloat);
void rbloat_init_gc_counts(void);
void rbloat_init_auto_trim(VALUE rbloat);
void rbloat_init_native_pressure(VALUE rbloat);
void rbloat_init_attach(VALUE rbloat);

#endif
