/*-------------------------------------------------------------------------
 *
 * resolver.c
 *	  Host names to addresses, without stopping the worker's loop.
 *
 * getaddrinfo() blocks, for as long as a dead name server makes it, and libpq
 * calls it inside PQconnectStart and PQconnectPoll.  So names are looked up in
 * a thread (task.c has its rules), and libpq is given the addresses (hostaddr)
 * beside the names.
 *
 *-------------------------------------------------------------------------
 */
#include "resolver.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include "task.h"

#define MAX_RUNNING 64			/* threads at once */
#define MAX_HOSTS 64			/* addresses of one look-up */
#define HOST_LEN 512			/* more than a name may have */

struct PgpxLookup
{
	PgpxTask	task;
	PgpxLookupAnswer answer;
	uint64		tag;
	char	   *in_host;
	char	   *in_port;
	char		error[256];		/* empty: found */
	char	   *host;
	char	   *hostaddr;
	char	   *port;
};

static int	running = 0;

static bool
is_numeric(const char *host)
{
	struct in6_addr addr;

	return inet_pton(AF_INET, host, &addr) == 1 ||
		inet_pton(AF_INET6, host, &addr) == 1 ||
		strchr(host, ':') != NULL;	/* IPv6 with a scope */
}

/*
 * Element n of a comma-separated list into buf; false if there is none.  What does
 * not fit is cut off: it is too long for a resolver and for libpq, too.
 */
static bool
list_element(const char *list, int n, char *buf, size_t size)
{
	const char *end;
	size_t		len;

	for (; n > 0; n--)
	{
		list = strchr(list, ',');
		if (list == NULL)
			return false;
		list++;
	}
	end = strchrnul(list, ',');
	len = Min((size_t) (end - list), size - 1);
	memcpy(buf, list, len);
	buf[len] = '\0';
	return true;
}

static int
count_elements(const char *list)
{
	int			n = 1;

	for (; *list != '\0'; list++)
		if (*list == ',')
			n++;
	return n;
}

bool
pgpx_lookup_needed(const char *host)
{
	char		one[HOST_LEN];

	if (host == NULL || host[0] == '\0')
		return false;
	for (int i = 0; list_element(host, i, one, sizeof(one)); i++)
		if (one[0] != '\0' && one[0] != '/' && one[0] != '@' &&
			!is_numeric(one))
			return true;
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
	char		host[HOST_LEN];
	char		port[16];
	int			nhosts = count_elements(job->in_host);
	int			nports = count_elements(job->in_port);
	int			found = 0;

	/* one port for all, or one for each: as libpq says it */
	if (nports > 1 && nports != nhosts)
	{
		snprintf(job->error, sizeof(job->error),
				 "could not match %d port numbers to %d hosts", nports, nhosts);
		return;
	}
	for (int i = 0; list_element(job->in_host, i, host, sizeof(host)); i++)
	{
		struct addrinfo hints = {0};
		struct addrinfo *list = NULL;
		int			rc;

		(void) list_element(job->in_port, nports > 1 ? i : 0, port,
							sizeof(port));

		if (host[0] == '\0' || host[0] == '/' || host[0] == '@' ||
			is_numeric(host))
		{
			/* libpq takes "host" itself where "hostaddr" is empty */
			if (!add(job, host, host[0] == '\0' || host[0] == '/' ||
					 host[0] == '@' ? "" : host, port))
				snprintf(job->error, sizeof(job->error), "out of memory");
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
			 found < MAX_HOSTS;
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

	running--;
	job->answer(job);
	free_lookup(job);
}

bool
pgpx_lookup_start(const char *host, const char *port, PgpxLookupAnswer answer,
				  uint64 tag)
{
	PgpxLookup *job;

	if (running >= MAX_RUNNING)
		return false;
	job = calloc(1, sizeof(*job));
	if (job == NULL)
		return false;
	job->task.run = look_up;
	job->task.ended = looked_up;
	job->answer = answer;
	job->tag = tag;
	job->in_host = strdup(host);
	job->in_port = strdup(port ? port : "");
	if (job->in_host == NULL || job->in_port == NULL ||
		!pgpx_task_start(&job->task))
	{
		free_lookup(job);
		return false;
	}
	running++;
	return true;
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
