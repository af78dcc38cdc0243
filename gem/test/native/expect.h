/* What tests in C are made of. */
#ifndef RBLOAT_EXPECT_H
#define RBLOAT_EXPECT_H

#include <stdio.h>

static int failures;

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) failures++, printf("%s:%d: %s\n", __func__, __LINE__, #condition);                            \
    } while (0)

#endif
