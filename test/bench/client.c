/*-------------------------------------------------------------------------
 *
 * client.c
 *	  The floor of the bench: clients in C that use libpq only.
 *
 *	client loop N CONNINFO SQL...	microseconds of a PQexec for each SQL, on one
 *									connection
 *	client stream N CONNINFO SQL	the same in single-row mode, rows discarded
 *	client fresh N CONNINFO SQL		microseconds of connect, one SQL, disconnect:
 *									the median of N sessions
 *	client version					libpq's version
 *
 * Each prints one number.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libpq-fe.h>

static double
now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static PGconn *
must_connect(const char *conninfo)
{
	PGconn	   *conn = PQconnectdb(conninfo);

	if (PQstatus(conn) != CONNECTION_OK)
	{
		fprintf(stderr, "client: %s", PQerrorMessage(conn));
		exit(1);
	}
	return conn;
}

static void
must_run(PGconn *conn, const char *sql, int single_rows)
{
	PGresult   *res;

	if (single_rows)
	{
		if (!PQsendQuery(conn, sql) || !PQsetSingleRowMode(conn))
		{
			fprintf(stderr, "client: %s", PQerrorMessage(conn));
			exit(1);
		}
		while ((res = PQgetResult(conn)) != NULL)
			PQclear(res);
		return;
	}
	res = PQexec(conn, sql);
	if (PQresultStatus(res) != PGRES_TUPLES_OK &&
		PQresultStatus(res) != PGRES_COMMAND_OK)
	{
		fprintf(stderr, "client: %s", PQerrorMessage(conn));
		exit(1);
	}
	PQclear(res);
}

static int
compare(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

static double
loop(int n, const char *conninfo, char **sql, int single_rows)
{
	PGconn	   *conn = must_connect(conninfo);
	double		start;
	double		us;

	for (int i = 0; i < n / 10 + 1; i++)
		for (char **s = sql; *s != NULL; s++)
			must_run(conn, *s, single_rows);
	start = now_us();
	for (int i = 0; i < n; i++)
		for (char **s = sql; *s != NULL; s++)
			must_run(conn, *s, single_rows);
	us = (now_us() - start) / n;
	PQfinish(conn);
	return us;
}

static double
fresh(int n, const char *conninfo, const char *sql)
{
	double	   *us = malloc(n * sizeof(double));

	if (us == NULL)
		exit(1);
	for (int i = 0; i < n; i++)
	{
		double		start = now_us();
		PGconn	   *conn = must_connect(conninfo);

		must_run(conn, sql, 0);
		PQfinish(conn);
		us[i] = now_us() - start;
	}
	qsort(us, n, sizeof(double), compare);
	return us[n / 2];
}

int
main(int argc, char **argv)
{
	int			n;

	if (argc == 2 && strcmp(argv[1], "version") == 0)
	{
		printf("%d.%d\n", PQlibVersion() / 10000, PQlibVersion() % 10000);
		return 0;
	}
	if (argc < 5 || (n = atoi(argv[2])) <= 0)
	{
		fprintf(stderr, "usage: client loop|stream|fresh N CONNINFO SQL...\n");
		return 2;
	}
	if (strcmp(argv[1], "fresh") == 0)
		printf("%.3f\n", fresh(n, argv[3], argv[4]));
	else
		printf("%.3f\n", loop(n, argv[3], argv + 4, strcmp(argv[1], "stream") == 0));
	return 0;
}
