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

#include "shared/pool_worker.h"
#include "worker/worker.h"

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
pgpx_conninfo_has_changed(PgpxConninfoKey key)
{
	return pgpx_wpools[key.pool].pool_id != key.pool_id ||
		pgpx_wpools[key.pool].conninfo.version != key.version;
}

static bool
is_host_keyword(const char *keyword)
{
	return strcmp(keyword, "host") == 0 || strcmp(keyword, "hostaddr") == 0 ||
		strcmp(keyword, "port") == 0;
}

/*
 * Return one field of the hosts that are left, given by its offset in PgpxHost,
 * as a list for libpq in the order of the login; NULL if no host has it.
 * Allocated in the current memory context.
 */
static const char *
join_hosts(const PgpxHosts *hosts, size_t field)
{
	bool		any = false;
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < hosts->total; i++)
	{
		int			at = (hosts->first + i) % hosts->total;
		const PgpxHost *one = &hosts->entries[at];
		const char *value = *(const char **) ((const char *) one + field);

		if (one->unresponsive)
			continue;
		appendStringInfo(&list, ",%s", value != NULL ? value : "");
		any |= value != NULL;
	}
	return any ? list.data + 1 : NULL;
}

PGconn *
pgpx_conninfo_login(int pool, PgpxHosts *hosts,
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
	hosts->first = pgpx_now() < wp->first_until ? wp->first : 0;
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

/* --- Hosts ---------------------------------------------------------------- */

/* How long, in microseconds, an unresponsive host is tried after the others. */
#define UNRESPONSIVE_US (60 * 1000 * 1000)

static bool
is_empty(const char *value)
{
	return value == NULL || value[0] == '\0';
}

/* Return the value of a parameter; NULL if it is empty, as libpq treats it. */
static const char *
get_list(const PgpxConninfo *ci, const char *name)
{
	const char *value = pgpx_conninfo_param(ci, name);

	return is_empty(value) ? NULL : value;
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

PgpxHosts *
pgpx_hosts_create(int pool)
{
	const PgpxConninfo *ci = &pgpx_wpools[pool].conninfo;
	const char *host = get_list(ci, "host");
	const char *hostaddr = get_list(ci, "hostaddr");
	const char *port = get_list(ci, "port");
	const char *balance = pgpx_conninfo_param(ci, "load_balance_hosts");
	MemoryContext cxt = AllocSetContextCreate(TopMemoryContext,
											  "pgpool_ext hosts",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	PgpxHosts  *hosts = palloc0(sizeof(*hosts));
	int			n = count_hosts(host, hostaddr, port);

	hosts->cxt = cxt;
	hosts->shuffled = balance != NULL && strcmp(balance, "random") == 0;
	hosts->total = n;
	hosts->left = hosts->shuffled ? 1 : n;
	hosts->entries = palloc0(sizeof(PgpxHost) * n);
	for (int i = 0; i < n; i++)
	{
		hosts->entries[i].host = copy_element(host, i, n);
		hosts->entries[i].hostaddr = copy_element(hostaddr, i, n);
		hosts->entries[i].port = copy_element(port, i, n);
	}
	hosts->resolved = palloc0(sizeof(PgpxHost) * (n + PGPX_MAX_HOSTS));
	MemoryContextSwitchTo(old);
	return hosts;
}

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
 * Return whether libpq would resolve the name of this host: there is one, it is
 * neither a socket directory nor a numeric address, and the host has no address.
 * A name with a comma is a list that libpq refuses before it resolves a name.
 */
static bool
needs_lookup(const PgpxHost *one)
{
	return is_empty(one->hostaddr) && !is_empty(one->host) &&
		one->host[0] != '/' && one->host[0] != '@' &&
		strchr(one->host, ',') == NULL && !is_numeric(one->host);
}

bool
pgpx_hosts_need_lookup(const PgpxHosts *hosts)
{
	for (int i = 0; i < hosts->total; i++)
		if (needs_lookup(&hosts->entries[i]))
			return true;
	return false;
}

/*
 * Append a host to the resolved ones, once for each of its addresses, in the
 * resolver's order.
 */
static void
resolve_name(PgpxHosts *hosts, const PgpxHost *one, int *n)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *list = NULL;
	int			rc = getaddrinfo(one->host, NULL, &hints, &list);

	if (rc != 0)
	{
		if (hosts->error[0] == '\0')
			snprintf(hosts->error, sizeof(hosts->error),
					 "could not translate host name \"%.100s\" to address: %s",
					 one->host, gai_strerror(rc));
		return;
	}
	for (struct addrinfo *a = list; a != NULL && *n < PGPX_MAX_HOSTS;
		 a = a->ai_next)
	{
		char	   *address = hosts->addresses[*n];

		if (getnameinfo(a->ai_addr, a->ai_addrlen, address, PGPX_ADDRESS_LEN,
						NULL, 0, NI_NUMERICHOST) != 0)
			continue;
		hosts->resolved[*n] = *one;
		hosts->resolved[(*n)++].hostaddr = address;
	}
	freeaddrinfo(list);
}

void
pgpx_hosts_resolve(PgpxTask *task)
{
	PgpxHosts  *hosts = (PgpxHosts *) task;
	int			n = 0;

	for (int i = 0; i < hosts->total && !pgpx_task_is_abandoned(task); i++)
		if (needs_lookup(&hosts->entries[i]))
			resolve_name(hosts, &hosts->entries[i], &n);
		else
			hosts->resolved[n++] = hosts->entries[i];
	if (n > 0)
		hosts->error[0] = '\0'; /* libpq tries the addresses that were found */
	else if (hosts->error[0] == '\0')
		strlcpy(hosts->error, "The lookup of the host name found no address.",
				sizeof(hosts->error));
	hosts->entries = hosts->resolved;
	hosts->total = n;
	hosts->left = hosts->shuffled ? 1 : n;
}

/*
 * Return whether libpq reports the value of a host.  A value that was not
 * published matches any, because libpq uses a default.
 */
static bool
is_reported(const char *value, const char *reported)
{
	return is_empty(value) ||
		(reported != NULL && strcmp(value, reported) == 0);
}

/*
 * Return the host that libpq is trying, the first of equal ones; if libpq cannot
 * be asked, or reports another one, the first that is left.  The order is that
 * of the login.
 */
static int
find_host(const PgpxHosts *hosts, const PGconn *pg)
{
	int			first_left = -1;

	for (int i = 0; i < hosts->total; i++)
	{
		int			at = (hosts->first + i) % hosts->total;
		const PgpxHost *one = &hosts->entries[at];

		if (one->unresponsive)
			continue;
		if (first_left < 0)
			first_left = at;
		if (pg != NULL && is_reported(one->host, PQhost(pg)) &&
			is_reported(one->hostaddr, PQhostaddr(pg)) &&
			is_reported(one->port, PQport(pg)))
			return at;
	}
	return first_left;
}

bool
pgpx_hosts_mark_unresponsive(int pool, PgpxHosts *hosts, const PGconn *pg)
{
	PgpxWorkerPool *wp = &pgpx_wpools[pool];
	int			i = find_host(hosts, pg);

	wp->first = (i + 1) % hosts->total;
	wp->first_until = pgpx_now() + UNRESPONSIVE_US;
	if (hosts->left == 1)
		return false;
	hosts->left--;
	hosts->entries[i].unresponsive = true;
	return true;
}

void
pgpx_hosts_free(PgpxHosts **hosts)
{
	if (*hosts != NULL)
		MemoryContextDelete((*hosts)->cxt);
	*hosts = NULL;
}
