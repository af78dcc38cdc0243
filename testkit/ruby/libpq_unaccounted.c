/* A minimal extension of libpq. It frees its results, but does not tell Ruby how much memory they have. */

#include <ruby.h>

/* As in libpq-fe.h, so that libpq's headers need not be installed. */
typedef struct pg_conn PGconn;
typedef struct pg_result PGresult;
extern PGconn *PQconnectdb(const char *conninfo);
extern int PQstatus(const PGconn *connection);
extern char *PQerrorMessage(const PGconn *connection);
extern PGresult *PQexec(PGconn *connection, const char *query);
extern char *PQresultErrorMessage(const PGresult *result);
extern void PQclear(PGresult *result);

static PGconn *connection;

static void result_free(void *result)
{
    PQclear(result);
}

static const rb_data_type_t result_type = {"Unaccounted::Result", {NULL, result_free, NULL}, NULL, NULL, 0};

/* Unaccounted.query(sql) -> Unaccounted::Result */
static VALUE unaccounted_query(VALUE module, VALUE sql)
{
    if (!connection)
        connection = PQconnectdb("");
    if (PQstatus(connection) != 0)
        rb_raise(rb_eRuntimeError, "%s", PQerrorMessage(connection));
    PGresult *result = PQexec(connection, StringValueCStr(sql));
    if (!result || PQresultErrorMessage(result)[0])
        rb_raise(rb_eRuntimeError, "%s", PQerrorMessage(connection));
    return TypedData_Wrap_Struct(rb_const_get(module, rb_intern("Result")), &result_type, result);
}

void Init_libpq_unaccounted(void)
{
    VALUE module = rb_define_module("Unaccounted");
    VALUE result = rb_define_class_under(module, "Result", rb_cObject);
    rb_undef_alloc_func(result);
    rb_define_singleton_method(module, "query", unaccounted_query, 1);
}
