#include "libpq.h"

#ifdef HAVE_DLFCN_H
#include <dlfcn.h>

bool rbloat_find_libpq(rbloat_libpq *libpq, const void *in_extension)
{
    Dl_info extension;
    if (!dladdr(in_extension, &extension) || !extension.dli_fname) return false;
    /* dlsym with a handle searches that library and its dependencies, and no others. */
    void *library = dlopen(extension.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return false;
    *(void **)&libpq->rows = dlsym(library, "PQntuples");
    *(void **)&libpq->columns = dlsym(library, "PQnfields");
    *(void **)&libpq->value = dlsym(library, "PQgetvalue");
    *(void **)&libpq->length = dlsym(library, "PQgetlength");
    *(void **)&libpq->is_null = dlsym(library, "PQgetisnull");
    *(void **)&libpq->size = dlsym(library, "PQresultMemorySize");
    *(void **)&libpq->clear = dlsym(library, "PQclear");
    dlclose(library);
    return libpq->rows && libpq->columns && libpq->value && libpq->length && libpq->is_null && libpq->size &&
           libpq->clear;
}

#else

bool rbloat_find_libpq(rbloat_libpq *libpq, const void *in_extension)
{
    return false;
}

#endif

bool rbloat_copy_pgresult(const rbloat_libpq *libpq, rbloat_table *table, const void *result)
{
    int rows = libpq->rows(result), columns = libpq->columns(result);
    /* The size of a result is larger than the size of its cells. */
    if (!rbloat_table_open(table, (size_t)rows * (size_t)columns, libpq->size(result))) return false;
    for (int row = 0; row < rows; row++) {
        for (int column = 0; column < columns; column++) {
            size_t length;
            const char *value = rbloat_pgresult_cell(libpq, result, (size_t)row, (size_t)column, &length);
            if (!rbloat_table_append(table, value, length)) {
                rbloat_table_free(table);
                return false;
            }
        }
    }
    rbloat_table_close(table);
    return true;
}
