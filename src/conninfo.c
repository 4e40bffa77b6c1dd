/*-------------------------------------------------------------------------
 *
 * conninfo.c
 *	  What the worker knows of how its pools connect, and how a login begins.
 *
 * A session reads the options, which the worker cannot, and sends them; they have
 * passwords in them, and are kept in private memory that is wiped before it is
 * freed.  All connections of the worker's to a remote begin here, those of a pool
 * (connector.c) and those for its locks (pinger_connect.c).
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include "lib/stringinfo.h"
#include "utils/memutils.h"

/* Ours, at the end: application_name, where to go, the end of the list. */
#define MAX_OWN 5

/* How long one that was silent stands behind the other hosts of the list. */
#define SILENT_US (60 * 1000 * 1000)

void
pgpx_conninfo_forget(int pool)
{
	PgpxWorkerPool *wp = &pgpx_wpools[pool];

	if (wp->cxt == NULL)
		return;
	explicit_bzero(wp->message, wp->message_len);
	MemoryContextDelete(wp->cxt);
	memset(wp, 0, sizeof(*wp));
}

void
pgpx_conninfo_wipe_all(void)
{
	for (int i = 0; i < pgpx_shared->max_pools; i++)
		if (pgpx_wpools[i].cxt != NULL)
			explicit_bzero(pgpx_wpools[i].message, pgpx_wpools[i].message_len);
}

void
pgpx_conninfo_take(char *buffer, size_t len)
{
	PgpxMessageHeader *header = (PgpxMessageHeader *) buffer;
	PgpxWorkerPool *wp = &pgpx_wpools[header->pool];
	MemoryContext cxt;
	MemoryContext old;
	char	   *copy;
	PgpxConninfo conninfo;
	bool		ok;

	if (pgpx_pools[header->pool].pool_id != header->pool_id)
		return;

	cxt = AllocSetContextCreate(TopMemoryContext, "pgpool_ext conninfo",
								ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(cxt);
	copy = palloc(len);
	memcpy(copy, buffer, len);
	ok = pgpx_handoff_parse_conninfo(copy, len, &conninfo);
	MemoryContextSwitchTo(old);
	if (!ok ||
		(wp->pool_id == header->pool_id &&
		 conninfo.version < wp->conninfo.version))
	{
		explicit_bzero(copy, len);
		MemoryContextDelete(cxt);
		return;
	}

	pgpx_conninfo_forget(header->pool);
	wp->pool_id = header->pool_id;
	wp->cxt = cxt;
	wp->message = copy;
	wp->message_len = len;
	wp->conninfo = conninfo;
	pgpx_pool_conninfo_known(&pgpx_pools[header->pool], pgpx_worker_epoch,
							 conninfo.version);
	pgpx_pinger_conninfo_came();
}

const char *
pgpx_conninfo_param(const PgpxConninfo *ci, const char *name)
{
	const char *value = NULL;

	for (int i = 0; i < ci->nparams; i++)
		if (strcmp(ci->keywords[i], name) == 0)
			value = ci->values[i];
	return value;
}

bool
pgpx_conninfo_is_another(int pool, uint32 pool_id, uint64 version)
{
	return pgpx_wpools[pool].pool_id != pool_id ||
		pgpx_wpools[pool].conninfo.version != version;
}

bool
pgpx_conninfo_needs_lookup(const PgpxConninfo *ci)
{
	return pgpx_lookup_needed(pgpx_conninfo_param(ci, "host"),
							  pgpx_conninfo_param(ci, "hostaddr"));
}

const char *
pgpx_conninfo_look_up(int index, PgpxLookupAnswer answer, uint64 tag)
{
	const PgpxConninfo *ci = &pgpx_wpools[index].conninfo;
	PgpxPool   *pool = &pgpx_pools[index];
	PgpxLookupUser user;

	LWLockAcquire(pool->lock, LW_SHARED);
	user.database = pool->key.database;
	user.name = pool->user_name;
	LWLockRelease(pool->lock);
	return pgpx_lookup_start(&user, pgpx_conninfo_param(ci, "host"),
							 pgpx_conninfo_param(ci, "hostaddr"),
							 pgpx_conninfo_param(ci, "port"), answer, tag);
}

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
pgpx_conninfo_hosts(int pool, const PgpxLookup *lookup)
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
pgpx_conninfo_silent(int pool, PgpxHosts *hosts, const PGconn *pg)
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
pgpx_conninfo_free_hosts(PgpxHosts **hosts)
{
	if (*hosts != NULL)
		MemoryContextDelete((*hosts)->cxt);
	*hosts = NULL;
}

static bool
is_place(const char *keyword)
{
	return strcmp(keyword, "host") == 0 || strcmp(keyword, "hostaddr") == 0 ||
		strcmp(keyword, "port") == 0;
}

/* A list for libpq of one of the fields of what is left; NULL: it was not told. */
static const char *
join(const PgpxHosts *hosts, size_t field)
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

PGconn *
pgpx_conninfo_login(const PgpxConninfo *ci, const PgpxHosts *hosts,
					const char *application_name)
{
	const char **keywords = palloc0(sizeof(char *) * (ci->nparams + MAX_OWN));
	const char **values = palloc0(sizeof(char *) * (ci->nparams + MAX_OWN));
	int			n = 0;
	PGconn	   *pg;

	for (int i = 0; i < ci->nparams; i++)
	{
		if (is_place(ci->keywords[i]))
			continue;
		keywords[n] = ci->keywords[i];
		values[n++] = ci->values[i];
	}

	/* the last one counts */
	if (application_name != NULL)
	{
		keywords[n] = "application_name";
		values[n++] = application_name;
	}
	keywords[n] = "host";
	values[n++] = join(hosts, offsetof(PgpxHost, host));
	keywords[n] = "hostaddr";
	values[n++] = join(hosts, offsetof(PgpxHost, hostaddr));
	keywords[n] = "port";
	values[n++] = join(hosts, offsetof(PgpxHost, port));
	pg = PQconnectStartParams(keywords, values, 0);
	pfree(keywords);
	pfree(values);
	return pg;
}
