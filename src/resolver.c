/*-------------------------------------------------------------------------
 *
 * resolver.c
 *	  Host names to addresses, without stopping the worker's loop.
 *
 * getaddrinfo() blocks, for as long as a dead name server makes it, and libpq
 * calls it inside PQconnectStart and PQconnectPoll.  So names are looked up in
 * a thread (task.c has its rules), and libpq is given the addresses (hostaddr)
 * beside the names.  It takes a name whose own hostaddr is empty for one to be looked
 * up, whatever stands beside the others.
 *
 * Nothing ends a getaddrinfo() that nobody waits for any more; its thread goes no
 * further than that, and counts until then.  So there are bounds, and a user has
 * some of his own: who has names looked up that nobody answers for, and gives up
 * soon, and begins anew, would else take all threads from those who do not.
 *
 *-------------------------------------------------------------------------
 */
#include "resolver.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include "lib/ilist.h"
#include "port/atomics.h"

#include "options.h"
#include "task.h"

/* Threads at once: in all, of a user, and of a user that nobody waits for. */
#define MAX_RUNNING 64
#define MAX_OF_USER 48
#define MAX_LEFT_BEHIND 16

#define TOO_MANY	"too many host names are being looked up"
#define HOST_LEN 512			/* more than a name may have */

struct PgpxLookup
{
	PgpxTask	task;
	dlist_node	node;
	PgpxLookupUser user;
	pg_atomic_uint32 given_up;	/* the thread looks at it, too */
	PgpxLookupAnswer answer;
	uint64		tag;
	char	   *in_host;
	char	   *in_hostaddr;	/* NULL: none */
	char	   *in_port;
	char		error[256];		/* empty: found */
	char	   *host;
	char	   *hostaddr;
	char	   *port;
};

static dlist_head running = DLIST_STATIC_INIT(running);

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
 * The next element of a comma-separated list into buf; false if there is none, as
 * in no list.  What does not fit is cut off: it is too long for a resolver and for
 * libpq, too.
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

/* What libpq asks the resolver for: "host", where there is no "hostaddr". */
static bool
is_name(const char *host, const char *addr)
{
	return addr[0] == '\0' && host[0] != '\0' && host[0] != '/' &&
		host[0] != '@' && !is_numeric(host);
}

bool
pgpx_lookup_needed(const char *host, const char *hostaddr)
{
	char		one[HOST_LEN];
	char		addr[HOST_LEN] = "";

	if (host == NULL || host[0] == '\0')
		return false;

	/* as many as hosts, or libpq refuses both before it asks for any */
	if (hostaddr != NULL &&
		pgpx_options_count(hostaddr) != pgpx_options_count(host))
		return false;
	while (next_element(&host, one, sizeof(one)))
	{
		(void) next_element(&hostaddr, addr, sizeof(addr));
		if (is_name(one, addr))
			return true;
	}
	return false;
}

/* Append to a malloc'ed comma-separated list; false: out of memory. */
static bool
append(char **list, const char *item)
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
add(PgpxLookup *job, const char *host, const char *addr, const char *port)
{
	return append(&job->host, host) && append(&job->hostaddr, addr) &&
		append(&job->port, port);
}

static void
look_up(PgpxTask *task)
{
	PgpxLookup *job = (PgpxLookup *) task;
	const char *hosts = job->in_host;
	const char *hostaddrs = job->in_hostaddr;
	const char *ports = job->in_port;
	char		host[HOST_LEN];
	char		hostaddr[HOST_LEN] = "";
	char		port[16] = "";
	int			nhosts = pgpx_options_count(job->in_host);
	int			nports = pgpx_options_count(job->in_port);
	int			found = 0;

	/* one port for all, or one for each: as libpq says it */
	if (nports > 1 && nports != nhosts)
	{
		snprintf(job->error, sizeof(job->error),
				 "could not match %d port numbers to %d hosts", nports, nhosts);
		return;
	}
	while (pg_atomic_read_u32(&job->given_up) == 0 &&
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

			/* libpq takes "host" itself where "hostaddr" is empty */
			if (addr[0] == '\0' && is_numeric(host))
				addr = host;
			if (!add(job, host, addr, port))
			{
				/* half a list would have libpq ask for the name */
				snprintf(job->error, sizeof(job->error), "out of memory");
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
			if (!add(job, host, addr, port))
				break;
			found++;
		}
		freeaddrinfo(list);
	}
	if (found > 0)
		job->error[0] = '\0';	/* libpq tries those that were found */
	else if (job->error[0] == '\0')
		snprintf(job->error, sizeof(job->error), "no address found");
}

static void
free_lookup(PgpxLookup *lookup)
{
	free(lookup->in_host);
	free(lookup->in_hostaddr);
	free(lookup->in_port);
	free(lookup->host);
	free(lookup->hostaddr);
	free(lookup->port);
	free(lookup);
}

static void
looked_up(PgpxTask *task)
{
	PgpxLookup *job = (PgpxLookup *) task;

	dlist_delete(&job->node);
	if (pg_atomic_read_u32(&job->given_up) == 0)
		job->answer(job);
	free_lookup(job);
}

/* Why there are too many already for one more of this user; NULL: there are not. */
static const char *
too_many(const PgpxLookupUser *user)
{
	dlist_iter	iter;
	int			all = 0;
	int			his = 0;
	int			left = 0;

	dlist_foreach(iter, &running)
	{
		PgpxLookup *other = dlist_container(PgpxLookup, node, iter.cur);

		all++;
		if (other->user.database != user->database ||
			strcmp(NameStr(other->user.name), NameStr(user->name)) != 0)
			continue;
		his++;
		left += pg_atomic_read_u32(&other->given_up) != 0 ? 1 : 0;
	}
	if (left >= MAX_LEFT_BEHIND)
		return "too many host names are being looked up for attempts of this user that have ended";
	if (his >= MAX_OF_USER)
		return "too many host names are being looked up for this user";
	return all >= MAX_RUNNING ? TOO_MANY : NULL;
}

const char *
pgpx_lookup_start(const PgpxLookupUser *user, const char *host,
				  const char *hostaddr, const char *port,
				  PgpxLookupAnswer answer, uint64 tag)
{
	const char *why = too_many(user);
	PgpxLookup *job;

	if (why != NULL)
		return why;
	job = calloc(1, sizeof(*job));
	if (job == NULL)
		return TOO_MANY;
	pg_atomic_init_u32(&job->given_up, 0);
	job->user = *user;
	job->task.run = look_up;
	job->task.ended = looked_up;
	job->answer = answer;
	job->tag = tag;
	job->in_host = strdup(host);
	job->in_hostaddr = hostaddr != NULL ? strdup(hostaddr) : NULL;
	job->in_port = strdup(port ? port : "");
	if (job->in_host == NULL || job->in_port == NULL ||
		(hostaddr != NULL && job->in_hostaddr == NULL) ||
		!pgpx_task_start(&job->task))
	{
		free_lookup(job);
		return TOO_MANY;
	}
	dlist_push_tail(&running, &job->node);
	return NULL;
}

void
pgpx_lookup_give_up(PgpxLookupAnswer answer, uint64 tag)
{
	dlist_iter	iter;

	dlist_foreach(iter, &running)
	{
		PgpxLookup *job = dlist_container(PgpxLookup, node, iter.cur);

		if (job->answer == answer && job->tag == tag)
			pg_atomic_write_u32(&job->given_up, 1);
	}
}

uint64
pgpx_lookup_tag(const PgpxLookup *lookup)
{
	return lookup->tag;
}

const char *
pgpx_lookup_error(const PgpxLookup *lookup)
{
	return lookup->error[0] != '\0' ? lookup->error : NULL;
}

const char *
pgpx_lookup_host(const PgpxLookup *lookup)
{
	return lookup->host;
}

const char *
pgpx_lookup_hostaddr(const PgpxLookup *lookup)
{
	return lookup->hostaddr;
}

const char *
pgpx_lookup_port(const PgpxLookup *lookup)
{
	return lookup->port;
}
