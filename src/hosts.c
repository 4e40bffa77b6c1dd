/*-------------------------------------------------------------------------
 *
 * hosts.c
 *	  Where a login may go, and which host is to be tried first.
 *
 * PQconnectPoll knows no deadline, so a host that does not even accept would use up
 * all of connect_timeout, for each attempt.  The caller waits a share of it for each
 * (connector.c) and says here which one was silent; it stands behind the others then,
 * for the pool's next logins, too.  The sessions know nothing of this.
 *
 *-------------------------------------------------------------------------
 */
#include "login.h"

#include "lib/stringinfo.h"
#include "utils/memutils.h"

/* How long one that was silent stands behind the other hosts of the list. */
#define SILENT_US (60 * 1000 * 1000)

/* An element of a list that has so many, or one for all. */
static const char *
element(const char *list, int i, int total)
{
	if (list == NULL || total == 1 || strchr(list, ',') == NULL)
		return list == NULL ? NULL : pstrdup(list);
	for (; i > 0; i--)
		list = strchr(list, ',') + 1;
	return pnstrdup(list, strcspn(list, ","));
}

/* For libpq an empty value is none. */
static const char *
given(const char *value)
{
	return value != NULL && value[0] != '\0' ? value : NULL;
}

/* How many hosts, as libpq counts them; 1 also for what it will refuse. */
static int
count_hosts(const char *host, const char *hostaddr, const char *port)
{
	int			n = host != NULL ? pgpx_options_count(host) :
		hostaddr != NULL ? pgpx_options_count(hostaddr) : 1;
	int			ports = port != NULL ? pgpx_options_count(port) : 1;

	if ((hostaddr != NULL && pgpx_options_count(hostaddr) != n) ||
		(ports != 1 && ports != n))
		return 1;
	return n;
}

PgpxHosts *
pgpx_hosts_told(int pool, const PgpxLookup *lookup)
{
	PgpxWorkerPool *wp = &pgpx_wpools[pool];
	const PgpxConninfo *ci = &wp->conninfo;
	const char *host = given(lookup ? pgpx_lookup_host(lookup) :
							 pgpx_conninfo_param(ci, "host"));
	const char *hostaddr = given(lookup ? pgpx_lookup_hostaddr(lookup) :
								 pgpx_conninfo_param(ci, "hostaddr"));
	const char *port = given(lookup ? pgpx_lookup_port(lookup) :
							 pgpx_conninfo_param(ci, "port"));
	const char *balance = pgpx_conninfo_param(ci, "load_balance_hosts");
	MemoryContext cxt = AllocSetContextCreate(TopMemoryContext,
											  "pgpool_ext hosts",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	PgpxHosts  *hosts = palloc0(sizeof(*hosts));
	int			n = count_hosts(host, hostaddr, port);
	int			first = 0;

	/* libpq shuffles them: the next attempt has another order anyway */
	if (balance != NULL && strcmp(balance, "random") == 0)
		n = 1;
	if (pgpx_now() < wp->first_until)
		first = wp->first % n;
	hosts->cxt = cxt;
	hosts->n = hosts->total = n;
	hosts->each = palloc0(sizeof(PgpxHost) * n);
	for (int i = 0; i < n; i++)
	{
		PgpxHost   *one = &hosts->each[i];

		one->place = (first + i) % n;
		one->host = element(host, one->place, n);
		one->hostaddr = element(hostaddr, one->place, n);
		one->port = element(port, one->place, n);
	}
	MemoryContextSwitchTo(old);
	return hosts;
}

/* Has libpq been told of it by these words?  It has its own for what was not told. */
static bool
is_told(const char *told, const char *says)
{
	return given(told) == NULL || (says != NULL && strcmp(told, says) == 0);
}

/* The one that libpq is at; of two that are the same the first. */
static int
find_host(const PgpxHosts *hosts, const PGconn *pg)
{
	for (int i = 0; pg != NULL && i < hosts->n; i++)
		if (is_told(hosts->each[i].host, PQhost(pg)) &&
			is_told(hosts->each[i].hostaddr, PQhostaddr(pg)) &&
			is_told(hosts->each[i].port, PQport(pg)))
			return i;
	return 0;
}

bool
pgpx_hosts_silent(int pool, PgpxHosts *hosts, const PGconn *pg)
{
	PgpxWorkerPool *wp = &pgpx_wpools[pool];
	int			i = find_host(hosts, pg);

	wp->first = (hosts->each[i].place + 1) % hosts->total;
	wp->first_until = pgpx_now() + SILENT_US;
	if (hosts->n == 1)
		return false;
	hosts->n--;
	memmove(&hosts->each[i], &hosts->each[i + 1],
			(hosts->n - i) * sizeof(PgpxHost));
	return true;
}

void
pgpx_hosts_free(PgpxHosts **hosts)
{
	if (*hosts != NULL)
		MemoryContextDelete((*hosts)->cxt);
	*hosts = NULL;
}

/* A list for libpq of one of the fields of what is left; NULL: it was not told. */
const char *
pgpx_hosts_join(const PgpxHosts *hosts, size_t field)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < hosts->n; i++)
	{
		const char *value = *(const char **) ((char *) &hosts->each[i] + field);

		if (value == NULL)
			return NULL;
		appendStringInfo(&list, "%s%s", i > 0 ? "," : "", value);
	}
	return list.data;
}
