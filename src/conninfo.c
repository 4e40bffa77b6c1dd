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

#include "utils/memutils.h"

#include "login.h"

/* Ours, at the end: application_name, where to go, the end of the list. */
#define MAX_OWN 5

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

static bool
is_place(const char *keyword)
{
	return strcmp(keyword, "host") == 0 || strcmp(keyword, "hostaddr") == 0 ||
		strcmp(keyword, "port") == 0;
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
	values[n++] = pgpx_hosts_join(hosts, offsetof(PgpxHost, host));
	keywords[n] = "hostaddr";
	values[n++] = pgpx_hosts_join(hosts, offsetof(PgpxHost, hostaddr));
	keywords[n] = "port";
	values[n++] = pgpx_hosts_join(hosts, offsetof(PgpxHost, port));
	pg = PQconnectStartParams(keywords, values, 0);
	pfree(keywords);
	pfree(values);
	return pg;
}
