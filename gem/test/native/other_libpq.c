/* Another library named libpq.so.5. It cannot read the results of pg's libpq, so it aborts. */
#include <stdlib.h>

int PQntuples(const void *result)
{
    abort();
}

int PQnfields(const void *result)
{
    abort();
}

char *PQgetvalue(const void *result, int row, int column)
{
    abort();
}

int PQgetlength(const void *result, int row, int column)
{
    abort();
}

int PQgetisnull(const void *result, int row, int column)
{
    abort();
}

size_t PQresultMemorySize(const void *result)
{
    abort();
}

void PQclear(void *result)
{
    abort();
}
