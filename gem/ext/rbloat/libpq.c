#include "libpq.h"

#include <string.h>

#ifdef HAVE_DLFCN_H
#include <dlfcn.h>

static struct {
    int (*rows)(const void *);
    int (*columns)(const void *);
    char *(*value)(const void *, int, int);
    int (*length)(const void *, int, int);
    int (*is_null)(const void *, int, int);
    size_t (*size)(const void *);
} pq;

/* Debian's, and the one that comes within binary gems. */
static const char *const NAMES[] = {"libpq.so.5", "libpq-ruby-pg.so.1", NULL};

static bool find_functions(void)
{
    if (pq.rows) return true;
    for (int index = 0; NAMES[index]; index++) {
        void *library = dlopen(NAMES[index], RTLD_LAZY | RTLD_NOLOAD);
        if (!library) continue;
        *(void **)&pq.columns = dlsym(library, "PQnfields");
        *(void **)&pq.value = dlsym(library, "PQgetvalue");
        *(void **)&pq.length = dlsym(library, "PQgetlength");
        *(void **)&pq.is_null = dlsym(library, "PQgetisnull");
        /* Since PostgreSQL 12. */
        *(void **)&pq.size = dlsym(library, "PQresultMemorySize");
        if (pq.columns && pq.value && pq.length && pq.is_null && pq.size) {
            *(void **)&pq.rows = dlsym(library, "PQntuples");
        }
        if (pq.rows) return true;
    }
    return false;
}

bool rbloat_copy_pgresult(rbloat_table *table, const void *result, int rows, int columns)
{
    if (!result || !find_functions() || pq.rows(result) != rows || pq.columns(result) != columns) return false;
    /* What the result takes in all is more than its cells do. */
    if (!rbloat_table_open(table, (size_t)rows * (size_t)columns, pq.size(result))) return false;
    for (int row = 0; row < rows; row++) {
        for (int column = 0; column < columns; column++) {
            size_t length = (size_t)pq.length(result, row, column);
            const char *value = pq.value(result, row, column);
            if (length == 0 && pq.is_null(result, row, column)) value = NULL;
            if (!rbloat_table_append(table, value, length)) {
                rbloat_table_free(table);
                return false;
            }
        }
    }
    rbloat_table_close(table);
    return true;
}

#else

bool rbloat_copy_pgresult(rbloat_table *table, const void *result, int rows, int columns)
{
    return false;
}

#endif
