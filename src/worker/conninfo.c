/*-------------------------------------------------------------------------
 *
 * conninfo.c
 *	  Connection parameters: the published conninfo, hosts, host name lookups.
 *
 * Published conninfo: a session reads the options, which the worker cannot,
 * and sends them.  They contain passwords, so they are kept in private memory
 * that is wiped before it is freed.
 *
 * Host name lookups: getaddrinfo() blocks for as long as a dead name server
 * makes it, and libpq calls it inside PQconnectStart and PQconnectPoll.  So a
 * thread resolves the names (task_queue.c), and libpq receives the addresses
 * (hostaddr) beside the names.  libpq resolves each name whose own element of
 * hostaddr is empty, even if other elements are not.  An abandoned lookup ends
 * after the name that it is resolving.
 *
 * Hosts: PQconnectPoll has no deadline, so a host that does not accept the
 * connection would use up all of connect_timeout in each attempt.  The caller
 * (connect.c) waits a share of it for each host and reports unresponsive hosts
 * here.  Such a host is then tried after the others, also in the pool's next
 * logins.  Sessions are not involved.
 *
 *-------------------------------------------------------------------------
 */
#include "worker/conninfo.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include "lib/stringinfo.h"
#include "utils/memutils.h"

#include "base/debug_point.h"
#include "shared/pool_worker.h"
#include "worker/worker.h"

#define OUT_OF_MEMORY "The pool worker is out of memory."

#define HOST_LEN 512			/* longer than any host name */

struct PgpxLookup
{
	PgpxTask	task;
	PgpxLookupEnded ended;
	void	   *owner;
	char	   *in_host;
	char	   *in_hostaddr;	/* NULL: none */
	char	   *in_port;
	char		error[256];		/* empty: no error */

	/*
	 * Lists of equal length for libpq.  A resolved host appears once for each
	 * of its addresses, in the resolver's order; any other host once, with the
	 * address it has.  Allocated with malloc, in the thread.
	 */
	char	   *host;
	char	   *hostaddr;
	char	   *port;
};

static bool
is_numeric(const char *host)
{
	char		address[INET6_ADDRSTRLEN];
	struct in6_addr addr;
	size_t		len = strcspn(host, "%");	/* IPv6 may have a scope */

	if (inet_pton(AF_INET, host, &addr) == 1)
		return true;
	if (len >= sizeof(address))
		return false;
	memcpy(address, host, len);
	address[len] = '\0';
	return inet_pton(AF_INET6, address, &addr) == 1;
}

/*
 * Copy the next element of a comma-separated list into buf and advance *list.
 * Return false at the end, or if *list is NULL.  An element that does not fit
 * is truncated; it would be too long for a resolver and for libpq, too.
 */
static bool
next_element(const char **list, char *buf, size_t size)
{
	const char *end;
	size_t		len;

	if (*list == NULL)
		return false;
	end = strchrnul(*list, ',');
	len = Min((size_t) (end - *list), size - 1);
	memcpy(buf, *list, len);
	buf[len] = '\0';
	*list = *end == ',' ? end + 1 : NULL;
	return true;
}

/* Return whether libpq would resolve this element of "host". */
static bool
is_name(const char *host, const char *addr)
{
	return addr[0] == '\0' && host[0] != '\0' && host[0] != '/' &&
		host[0] != '@' && !is_numeric(host);
}

/*
 * Return whether libpq's "host" (a list) has an element that must be resolved:
 * one that is not empty, not a socket directory, not a numeric address, and has
 * no address in "hostaddr" (NULL, or a list whose elements may be empty).
 */
static bool
needs_lookup(const char *host, const char *hostaddr)
{
	char		one[HOST_LEN];
	char		addr[HOST_LEN] = "";

	if (host == NULL || host[0] == '\0')
		return false;

	/*
	 * if the numbers differ, libpq refuses both lists before it resolves a name
	 */
	if (hostaddr != NULL &&
		pgpx_list_length(hostaddr) != pgpx_list_length(host))
		return false;
	while (next_element(&host, one, sizeof(one)))
	{
		(void) next_element(&hostaddr, addr, sizeof(addr));
		if (is_name(one, addr))
			return true;
	}
	return false;
}

/* Append to a malloc'ed comma-separated list; false if out of memory. */
static bool
append_item(char **list, const char *item)
{
	size_t		old = *list ? strlen(*list) + 1 : 0;
	char	   *grown = realloc(*list, old + strlen(item) + 1);

	if (grown == NULL)
		return false;
	if (old > 0)
		grown[old - 1] = ',';
	strcpy(grown + old, item);
	*list = grown;
	return true;
}

static bool
add_host(PgpxLookup *job, const char *host, const char *addr, const char *port)
{
	return append_item(&job->host, host) && append_item(&job->hostaddr, addr) &&
		append_item(&job->port, port);
}

/* Resolve the names of a lookup.  Called in the thread. */
static void
resolve_hosts(PgpxTask *task)
{
	PgpxLookup *job = (PgpxLookup *) task;
	const char *hosts = job->in_host;
	const char *hostaddrs = job->in_hostaddr;
	const char *ports = job->in_port;
	char		host[HOST_LEN];
	char		hostaddr[HOST_LEN] = "";
	char		port[16] = "";
	int			nhosts = pgpx_list_length(job->in_host);
	int			nports = pgpx_list_length(job->in_port);
	int			found = 0;

	/* one port for all hosts or one for each; libpq's error message */
	if (nports > 1 && nports != nhosts)
	{
		snprintf(job->error, sizeof(job->error),
				 "could not match %d port numbers to %d hosts", nports, nhosts);
		return;
	}
	while (!pgpx_task_is_abandoned(task) &&
		   next_element(&hosts, host, sizeof(host)))
	{
		struct addrinfo hints = {0};
		struct addrinfo *list = NULL;
		int			rc;

		(void) next_element(&hostaddrs, hostaddr, sizeof(hostaddr));
		(void) next_element(&ports, port, sizeof(port));

		if (!is_name(host, hostaddr))
		{
			const char *addr = hostaddr;

			/* libpq uses "host" itself where "hostaddr" is empty */
			if (addr[0] == '\0' && is_numeric(host))
				addr = host;
			if (!add_host(job, host, addr, port))
			{
				/* an incomplete list would make libpq resolve the name */
				snprintf(job->error, sizeof(job->error), OUT_OF_MEMORY);
				return;
			}
			found++;
			continue;
		}

		hints.ai_family = AF_UNSPEC;
		hints.ai_socktype = SOCK_STREAM;
		rc = getaddrinfo(host, NULL, &hints, &list);
		if (rc != 0)
		{
			if (job->error[0] == '\0')
				snprintf(job->error, sizeof(job->error),
						 "could not translate host name \"%.100s\" to address: %s",
						 host, gai_strerror(rc));
			continue;
		}
		for (struct addrinfo *a = list; a != NULL &&
			 found < PGPX_MAX_HOSTS;
			 a = a->ai_next)
		{
			char		addr[NI_MAXHOST];

			if (getnameinfo(a->ai_addr, a->ai_addrlen, addr, sizeof(addr),
							NULL, 0, NI_NUMERICHOST) != 0)
				continue;
			if (!add_host(job, host, addr, port))
				break;
			found++;
		}
		freeaddrinfo(list);
	}
	if (found > 0)
		job->error[0] = '\0';	/* libpq tries the addresses that were found */
	else if (job->error[0] == '\0')
		snprintf(job->error, sizeof(job->error), "The lookup of the host name found no address.");
}

static void
finish_lookup(PgpxTask *task, PgpxTaskEnd end)
{
	PgpxLookup *lookup = (PgpxLookup *) task;

	if (end != PGPX_TASK_ABANDONED)
		lookup->ended(lookup->owner, lookup, end == PGPX_TASK_DONE);
	pfree(lookup->in_host);
	if (lookup->in_hostaddr != NULL)
		pfree(lookup->in_hostaddr);
	pfree(lookup->in_port);
	free(lookup->host);
	free(lookup->hostaddr);
	free(lookup->port);
	pfree(lookup);
}

PgpxTask *
pgpx_lookup_create(int pool, PgpxLookupEnded ended, void *owner)
{
	const PgpxConninfo *ci = &pgpx_wpools[pool].conninfo;
	const char *hostaddr = pgpx_conninfo_param(ci, "hostaddr");
	const char *port = pgpx_conninfo_param(ci, "port");
	PgpxLookup *lookup =
		MemoryContextAllocZero(TopMemoryContext, sizeof(*lookup));
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	lookup->task.run = resolve_hosts;
	lookup->task.ended = finish_lookup;
	lookup->ended = ended;
	lookup->owner = owner;
	lookup->in_host = pstrdup(pgpx_conninfo_param(ci, "host"));
	lookup->in_hostaddr = hostaddr != NULL ? pstrdup(hostaddr) : NULL;
	lookup->in_port = pstrdup(port ? port : "");
	MemoryContextSwitchTo(old);
	return &lookup->task;
}

const char *
pgpx_lookup_error(const PgpxLookup *lookup)
{
	return lookup->error[0] != '\0' ? lookup->error : NULL;
}

/* Parameters that pgpx_conninfo_login adds, and the end of the list. */
#define MAX_OWN 6

static void
wipe_conninfo(PgpxWorkerPool *wp)
{
	explicit_bzero(wp->message, wp->message_len);
	if (wp->password != NULL)
		explicit_bzero(wp->password, strlen(wp->password));
}

void
pgpx_conninfo_forget(int pool)
{
	PgpxWorkerPool *wp = &pgpx_wpools[pool];

	if (wp->cxt == NULL)
		return;
	wipe_conninfo(wp);
	MemoryContextDelete(wp->cxt);
	memset(wp, 0, sizeof(*wp));
}

void
pgpx_conninfo_wipe_all(void)
{
	for (int i = 0; i < pgpx_pools_end(); i++)
		if (pgpx_wpools[i].cxt != NULL)
			wipe_conninfo(&pgpx_wpools[i]);
}

void
pgpx_conninfo_store(char *buffer, size_t len)
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
	ok = pgpx_control_parse_conninfo(copy, len, &conninfo);
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
	pgpx_pool_conninfo_known(&pgpx_pools[header->pool], conninfo.version);
	pg_atomic_fetch_add_u32(&pgpx_shared->locks_changed, 1);
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
pgpx_conninfo_has_changed(int pool, uint32 pool_id, uint64 version)
{
	return pgpx_wpools[pool].pool_id != pool_id ||
		pgpx_wpools[pool].conninfo.version != version;
}

bool
pgpx_conninfo_needs_lookup(const PgpxConninfo *ci)
{
	return needs_lookup(pgpx_conninfo_param(ci, "host"),
						pgpx_conninfo_param(ci, "hostaddr"));
}

static bool
is_host_keyword(const char *keyword)
{
	return strcmp(keyword, "host") == 0 || strcmp(keyword, "hostaddr") == 0 ||
		strcmp(keyword, "port") == 0;
}

/*
 * Return one field of the remaining hosts, given by its offset in PgpxHost, as
 * a list for libpq; NULL if it was not published.  Allocated in the current
 * memory context.
 */
static const char *
join_hosts(const PgpxHosts *hosts, size_t field)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < hosts->n; i++)
	{
		const char *value =
			*(const char **) ((char *) &hosts->entries[i] + field);

		if (value == NULL)
			return NULL;
		appendStringInfo(&list, "%s%s", i > 0 ? "," : "", value);
	}
	return list.data;
}

PGconn *
pgpx_conninfo_login(int pool, const PgpxHosts *hosts,
					const char *application_name)
{
	const PgpxWorkerPool *wp = &pgpx_wpools[pool];
	const PgpxConninfo *ci = &wp->conninfo;
	const char **keywords = palloc0(sizeof(char *) * (ci->nparams + MAX_OWN));
	const char **values = palloc0(sizeof(char *) * (ci->nparams + MAX_OWN));
	int			n = 0;
	PGconn	   *pg;

	for (int i = 0; i < ci->nparams; i++)
	{
		if (is_host_keyword(ci->keywords[i]))
			continue;
		keywords[n] = ci->keywords[i];
		values[n++] = ci->values[i];
	}

	/* of equal keywords libpq uses the last */
	if (application_name != NULL)
	{
		keywords[n] = "application_name";
		values[n++] = application_name;
	}
	if (wp->password != NULL)
	{
		keywords[n] = "password";
		values[n++] = wp->password;
	}
	keywords[n] = "host";
	values[n++] = join_hosts(hosts, offsetof(PgpxHost, host));
	keywords[n] = "hostaddr";
	values[n++] = join_hosts(hosts, offsetof(PgpxHost, hostaddr));
	keywords[n] = "port";
	values[n++] = join_hosts(hosts, offsetof(PgpxHost, port));
	pg = PQconnectStartParams(keywords, values, 0);
	pfree(keywords);
	pfree(values);
	return pg;
}

/* How long, in microseconds, an unresponsive host is tried after the others. */
#define UNRESPONSIVE_US (60 * 1000 * 1000)

/*
 * Copy element i of a list that has "total" elements, or one that applies to
 * all.
 */
static const char *
copy_element(const char *list, int i, int total)
{
	if (list == NULL || total == 1 || strchr(list, ',') == NULL)
		return list == NULL ? NULL : pstrdup(list);
	for (; i > 0; i--)
		list = strchr(list, ',') + 1;
	return pnstrdup(list, strcspn(list, ","));
}

/* Return NULL for an empty value, as libpq treats it. */
static const char *
null_if_empty(const char *value)
{
	return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Count the hosts as libpq does; 1 also for lists that libpq will refuse. */
static int
count_hosts(const char *host, const char *hostaddr, const char *port)
{
	int			n = host != NULL ? pgpx_list_length(host) :
		hostaddr != NULL ? pgpx_list_length(hostaddr) : 1;
	int			ports = port != NULL ? pgpx_list_length(port) : 1;

	if ((hostaddr != NULL && pgpx_list_length(hostaddr) != n) ||
		(ports != 1 && ports != n))
		return 1;
	return n;
}

PgpxHosts *
pgpx_hosts_create(int pool, const PgpxLookup *lookup)
{
	PgpxWorkerPool *wp = &pgpx_wpools[pool];
	const PgpxConninfo *ci = &wp->conninfo;
	const char *host = null_if_empty(lookup ? lookup->host :
							 pgpx_conninfo_param(ci, "host"));
	const char *hostaddr = null_if_empty(lookup ? lookup->hostaddr :
								 pgpx_conninfo_param(ci, "hostaddr"));
	const char *port = null_if_empty(lookup ? lookup->port :
							 pgpx_conninfo_param(ci, "port"));
	const char *balance = pgpx_conninfo_param(ci, "load_balance_hosts");
	MemoryContext cxt = AllocSetContextCreate(TopMemoryContext,
											  "pgpool_ext hosts",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	PgpxHosts  *hosts = palloc0(sizeof(*hosts));
	int			n = count_hosts(host, hostaddr, port);
	int			first = 0;

	/* libpq shuffles them, so the next attempt has another order anyway */
	if (balance != NULL && strcmp(balance, "random") == 0)
		n = 1;
	if (pgpx_now() < wp->first_until)
		first = wp->first % n;
	hosts->cxt = cxt;
	hosts->n = hosts->total = n;
	hosts->entries = palloc0(sizeof(PgpxHost) * n);
	for (int i = 0; i < n; i++)
	{
		PgpxHost   *one = &hosts->entries[i];

		one->slot = (first + i) % n;
		one->host = copy_element(host, one->slot, n);
		one->hostaddr = copy_element(hostaddr, one->slot, n);
		one->port = copy_element(port, one->slot, n);
	}
	MemoryContextSwitchTo(old);
	return hosts;
}

/*
 * Return whether libpq reports the published value.  A value that was not
 * published matches any, because libpq uses a default.
 */
static bool
is_reported(const char *published, const char *reported)
{
	return null_if_empty(published) == NULL ||
		(reported != NULL && strcmp(published, reported) == 0);
}

/* Return the host that libpq is trying; the first of equal ones. */
static int
find_host(const PgpxHosts *hosts, const PGconn *pg)
{
	for (int i = 0; pg != NULL && i < hosts->n; i++)
		if (is_reported(hosts->entries[i].host, PQhost(pg)) &&
			is_reported(hosts->entries[i].hostaddr, PQhostaddr(pg)) &&
			is_reported(hosts->entries[i].port, PQport(pg)))
			return i;
	return 0;
}

bool
pgpx_hosts_mark_unresponsive(int pool, PgpxHosts *hosts, const PGconn *pg)
{
	PgpxWorkerPool *wp = &pgpx_wpools[pool];
	int			i = find_host(hosts, pg);

	wp->first = (hosts->entries[i].slot + 1) % hosts->total;
	wp->first_until = pgpx_now() + UNRESPONSIVE_US;
	if (hosts->n == 1)
		return false;
	hosts->n--;
	memmove(&hosts->entries[i], &hosts->entries[i + 1],
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
