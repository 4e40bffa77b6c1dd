/*-------------------------------------------------------------------------
 *
 * invariants.c
 *	  Does the shared state add up?
 *
 * Each pool is checked under its lock, in shared mode, so that what belongs to
 * it stands still: its connections, its queue, its counters.  A connection gets
 * a pool, and loses it, under that pool's lock; so "conn->pool is this one" is
 * the truth for the connections of the pool and never true for others.
 *
 * The free list is nobody's.  Whoever moves a connection in or out of it holds
 * the pool lock, and for an instant that one is FREE and in no list.  See
 * check_free for how that is told from one that was lost.
 *
 * Shared memory only.  Memory is allocated before the first lock, and what is
 * found is written into fixed buffers: nothing throws under a lock.
 *
 *-------------------------------------------------------------------------
 */
#include "invariants.h"

#include "storage/spin.h"

/* A connection that is FREE and was not in the free list. */
typedef struct Suspect
{
	bool		missing;
	uint64		generation;
	PgpxTime	state_since;
} Suspect;

typedef struct Check
{
	PgpxFaults *faults;
	PgpxPool   *pool;			/* the one that is locked */
	int			index;
	int			nleases;
	uint64	   *leases;			/* [max_connections] all that were seen */
	bool	   *in_list;		/* [max_connections] */
	Suspect    *suspects;		/* [max_connections] */
} Check;

static void fault(Check *check, const char *format,...) pg_attribute_printf(2, 3);

/* Note what does not add up; says of which pool, if one is at hand. */
static void
fault(Check *check, const char *format,...)
{
	PgpxFaults *faults = check->faults;
	va_list		args;
	char	   *text;
	int			used = 0;

	if (faults->n++ >= PGPX_FAULTS_MAX)
		return;
	text = faults->text[faults->n - 1];
	if (check->pool != NULL)
		used = snprintf(text, PGPX_FAULT_LEN, "pool %u: ",
						check->pool->pool_id);
	va_start(args, format);
	vsnprintf(text + used, PGPX_FAULT_LEN - used, format, args);
	va_end(args);
}

/* Does the process that something belongs to exist? */
static bool
is_alive(int procno, int pid)
{
	return procno >= 0 && procno < pgpx_shared->ntickets && pid != 0 &&
		GetPGProcByNumber(procno)->pid == pid;
}

static void
check_lease(Check *check, PgpxConn *conn)
{
	int			index = PGPX_CONN_INDEX(conn);
	uint64		lease_id = pg_atomic_read_u64(&conn->lease_id);

	if (conn->state != PGPX_CONN_LEASED)
	{
		if (lease_id != 0 || conn->owner_procno != -1 || conn->owner_pid != 0)
			fault(check, "connection %d is %s, but has lease " UINT64_FORMAT " and holder %d",
				  index, pgpx_conn_state_name(conn->state), lease_id,
				  conn->owner_pid);
		return;
	}

	if (lease_id == 0 ||
		lease_id >= pg_atomic_read_u64(&pgpx_shared->next_lease))
		fault(check, "connection %d is leased, but its lease is " UINT64_FORMAT,
			  index, lease_id);
	if (!is_alive(conn->owner_procno, conn->owner_pid))
		fault(check, "lease " UINT64_FORMAT " on connection %d belongs to process %d at %d, which does not exist",
			  lease_id, index, conn->owner_pid, conn->owner_procno);
	if (check->nleases < pgpx_shared->max_connections)
		check->leases[check->nleases++] = lease_id;
}

static void
check_conn(Check *check, PgpxConn *conn)
{
	PgpxPool   *pool = check->pool;
	int			index = PGPX_CONN_INDEX(conn);
	const char *state = pgpx_conn_state_name(conn->state);

	if (conn->generation == 0 ||
		conn->generation >= pg_atomic_read_u64(&pgpx_shared->next_generation))
		fault(check, "connection %d has generation " UINT64_FORMAT,
			  index, conn->generation);
	if (conn->version > pool->version)
		fault(check, "connection %d is of version " UINT64_FORMAT ", the pool of " UINT64_FORMAT,
			  index, conn->version, pool->version);
	if ((conn->state == PGPX_CONN_CONNECTING && conn->opened_at != 0) ||
		(conn->state != PGPX_CONN_CONNECTING && conn->opened_at == 0 &&
		 conn->state != PGPX_CONN_CLOSING))
		fault(check, "connection %d is %s, but was opened at " INT64_FORMAT,
			  index, state, conn->opened_at);
	if ((conn->state == PGPX_CONN_IDLE && conn->owed != 0) ||
		(conn->state == PGPX_CONN_OWED && conn->owed <= 0))
		fault(check, "connection %d is %s, but owes %d answers",
			  index, state, conn->owed);
	if (conn->state == PGPX_CONN_CLOSING &&
		(conn->close_reason <= PGPX_CLOSE_NONE ||
		 conn->close_reason >= PGPX_CLOSE_NREASONS))
		fault(check, "connection %d is closing, but for no reason (%d)",
			  index, conn->close_reason);
	check_lease(check, conn);
}

/*
 * The list of a state holds exactly the connections in it.  Given that the links
 * are right a walk cannot come to one twice, so counting will do.
 */
static void
check_list(Check *check, PgpxConnState state, int head, int tail, int expected)
{
	const char *name = pgpx_conn_state_name(state);
	int			last = -1;
	int			n = 0;

	for (int i = head; i != -1; i = pgpx_conns[i].next)
	{
		PgpxConn   *conn;

		if (i < 0 || i >= pgpx_shared->max_connections)
		{
			fault(check, "list of %s connections leads to %d", name, i);
			return;
		}
		conn = &pgpx_conns[i];
		if (conn->pool != check->index || conn->state != state)
		{
			fault(check, "connection %d in the list of %s ones is %s and of pool place %d",
				  i, name, pgpx_conn_state_name(conn->state), conn->pool);
			return;
		}
		if (conn->prev != last)
		{
			fault(check, "connection %d in the list of %s ones is linked to %d before it, not to %d",
				  i, name, conn->prev, last);
			return;
		}
		last = i;
		n++;
	}
	if (tail != last)
		fault(check, "list of %s connections ends with %d, not with %d",
			  name, tail, last);
	if (n != expected)
		fault(check, "list of %s connections has %d, but %d are in that state",
			  name, n, expected);
}

/* Connections by state, and in which lists they are.  Returns how many are open. */
static int
check_conns(Check *check)
{
	PgpxPool   *pool = check->pool;
	int			count[PGPX_CONN_NSTATES] = {0};
	int			open = 0;
	int			current = 0;

	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		if (conn->pool != check->index)
			continue;
		if (conn->state <= PGPX_CONN_FREE || conn->state >= PGPX_CONN_NSTATES)
		{
			fault(check, "connection %d is in state %d", i, conn->state);
			continue;
		}
		count[conn->state]++;
		if (conn->opened_at != 0)
			open++;
		if (conn->version == pool->version)
			current++;
		check_conn(check, conn);
	}

	for (int s = 0; s < PGPX_CONN_NSTATES; s++)
		if (pool->count[s] != count[s])
			fault(check, "%d connections are %s, but the pool counts %d",
				  count[s], pgpx_conn_state_name(s), pool->count[s]);
	check_list(check, PGPX_CONN_IDLE, pool->idle_head, pool->idle_tail,
			   count[PGPX_CONN_IDLE]);
	check_list(check, PGPX_CONN_OWED, pool->owed_head, pool->owed_tail,
			   count[PGPX_CONN_OWED]);

	/* those of older options may be more than the new ones allow */
	if (current > pool->opts.pool_size)
		fault(check, "%d connections, but pool_size is %d",
			  current, pool->opts.pool_size);
	return open;
}

/*
 * A granted ticket has the lease that it says.  Between grant and claim the lease
 * can be taken away, which the connection remembers until it is closed; then it
 * may be anything, and was opened after the ticket was drawn.
 */
static void
check_granted(Check *check, PgpxTicket *ticket)
{
	int			index = PGPX_TICKET_INDEX(ticket);
	PgpxConn   *conn;

	if (ticket->conn < 0 || ticket->conn >= pgpx_shared->max_connections)
	{
		fault(check, "ticket %d was granted connection %d", index, ticket->conn);
		return;
	}

	conn = &pgpx_conns[ticket->conn];
	if (conn->pool != check->index)
		return;
	if (pg_atomic_read_u64(&conn->lease_id) == ticket->lease_id)
	{
		if (conn->state != PGPX_CONN_LEASED || conn->owner_procno != index ||
			conn->owner_pid != ticket->pid)
			fault(check, "ticket %d of process %d was granted lease " UINT64_FORMAT ", which process %d holds",
				  index, ticket->pid, ticket->lease_id, conn->owner_pid);
	}
	else if (conn->revoked_lease != ticket->lease_id && conn->opened_at != 0 &&
			 conn->opened_at < ticket->since)
		fault(check, "ticket %d of process %d was granted lease " UINT64_FORMAT ", but connection %d has lease " UINT64_FORMAT,
			  index, ticket->pid, ticket->lease_id, ticket->conn,
			  pg_atomic_read_u64(&conn->lease_id));
}

/* The queue: links, order, and nobody left out.  Returns its length. */
static int
check_queue(Check *check)
{
	PgpxPool   *pool = check->pool;
	int			last = -1;
	int			n = 0;

	for (int i = pool->queue_head; i != -1; i = pgpx_tickets[i].next)
	{
		PgpxTicket *ticket;

		if (i < 0 || i >= pgpx_shared->ntickets)
		{
			fault(check, "queue leads to ticket %d", i);
			return n;
		}
		ticket = &pgpx_tickets[i];
		if (ticket->pool != check->index ||
			ticket->state != PGPX_TICKET_WAITING)
		{
			fault(check, "ticket %d in the queue is in state %d and of pool place %d",
				  i, ticket->state, ticket->pool);
			return n;
		}
		if (ticket->prev != last)
		{
			fault(check, "ticket %d in the queue is linked to %d before it, not to %d",
				  i, ticket->prev, last);
			return n;
		}
		if (last >= 0 && ticket->number <= pgpx_tickets[last].number)
			fault(check, "ticket %d with number " UINT64_FORMAT " stands behind number " UINT64_FORMAT,
				  i, ticket->number, pgpx_tickets[last].number);
		if (!is_alive(i, ticket->pid))
			fault(check, "ticket %d belongs to process %d, which does not exist",
				  i, ticket->pid);
		last = i;
		n++;
	}
	if (pool->queue_tail != last)
		fault(check, "queue ends with ticket %d, not with %d",
			  pool->queue_tail, last);
	if (pool->nwaiting != n)
		fault(check, "%d tickets are in the queue, but the pool counts %d",
			  n, pool->nwaiting);
	return n;
}

/* All tickets of the pool.  Returns how many are in its queue. */
static int
check_tickets(Check *check)
{
	PgpxPool   *pool = check->pool;
	int			waiting = check_queue(check);
	int			served = 0;

	/*
	 * WAITING ones are told by the queue alone: a session that queues
	 * elsewhere may have left this pool's number in its ticket.
	 */
	for (int i = 0; i < pgpx_shared->ntickets; i++)
	{
		PgpxTicket *ticket = &pgpx_tickets[i];

		if (ticket->pool != check->index ||
			(ticket->state != PGPX_TICKET_GRANTED &&
			 ticket->state != PGPX_TICKET_FAILED))
			continue;
		served++;
		if (ticket->state == PGPX_TICKET_GRANTED)
			check_granted(check, ticket);
	}
	if (pool->nticket != waiting + served)
		fault(check, "%d tickets wait and %d were served, but the pool counts %d",
			  waiting, served, pool->nticket);
	return waiting;
}

/* Nobody waits while there is a connection that he could have. */
static void
check_served(Check *check, int waiting)
{
	PgpxPool   *pool = check->pool;

	if (waiting == 0)
		return;
	for (int i = 0; i < pgpx_shared->max_connections; i++)
	{
		PgpxConn   *conn = &pgpx_conns[i];

		if (conn->pool == check->index &&
			(conn->state == PGPX_CONN_IDLE || conn->state == PGPX_CONN_OWED) &&
			conn->version == pool->version &&
			pg_atomic_read_u32(&conn->hung_up) == 0)
			fault(check, "%d tickets wait while connection %d is %s",
				  waiting, i, pgpx_conn_state_name(conn->state));
	}
}

static void
check_sum(Check *check, const char *left, uint64 is, const char *right,
		  uint64 expected)
{
	if (is != expected)
		fault(check, "%s is " UINT64_FORMAT ", but %s is " UINT64_FORMAT,
			  left, is, right, expected);
}

/* What comes in goes out, or is still there. */
static void
check_counters(Check *check, int open)
{
	PgpxPool   *pool = check->pool;
	const PgpxStats *stats = &pool->stats;
	uint64		closed = 0;
	uint64		waits = 0;

	for (int i = 0; i < PGPX_CLOSE_NREASONS; i++)
		closed += stats->closed[i];
	for (int b = 0; b < PGPX_HISTOGRAM_BUCKETS; b++)
		waits += stats->histogram[b];

	check_sum(check, "checkouts", stats->checkouts,
			  "sum of ended leases and leased connections",
			  stats->checkins + stats->discards + stats->reclaimed +
			  stats->terminated + stats->lease_timeouts + stats->retried +
			  pool->count[PGPX_CONN_LEASED]);
	check_sum(check, "waited", stats->waited,
			  "sum of ended waits and tickets",
			  stats->granted + stats->timeouts + stats->cancelled +
			  stats->failed + pool->nticket);
	check_sum(check, "sum of the histogram", waits,
			  "waited without tickets", stats->waited - pool->nticket);
	check_sum(check, "connects", stats->connects,
			  "sum of closed and open connections", closed + open);
	if (stats->checkouts < stats->hits + stats->granted)
		fault(check, "checkouts is " UINT64_FORMAT ", but hits is " UINT64_FORMAT " and granted " UINT64_FORMAT,
			  stats->checkouts, stats->hits, stats->granted);
	if (stats->hits < stats->partner_hits)
		fault(check, "hits is " UINT64_FORMAT ", but partner_hits is " UINT64_FORMAT,
			  stats->hits, stats->partner_hits);
	if (stats->closed[PGPX_CLOSE_NONE] != 0)
		fault(check, "connections were closed for no reason");
}

static void
check_pool(Check *check, int index)
{
	PgpxPool   *pool = &pgpx_pools[index];
	int			open;
	int			waiting;

	LWLockAcquire(pool->lock, LW_SHARED);
	check->pool = pool;
	check->index = index;
	open = check_conns(check);
	waiting = check_tickets(check);
	check_served(check, waiting);
	check_counters(check, open);
	if (pool->pool_id == 0 &&
		(pgpx_pool_total_locked(pool) != 0 || pool->nticket != 0))
		fault(check, "place %d has no pool, but connections or tickets", index);
	check->pool = NULL;
	LWLockRelease(pool->lock);
}

/*
 * Walk through the free list.  Of the suspects only those remain that are
 * missing again and have not been used in between; the first walk suspects all.
 * Returns how many there are.
 */
static int
walk_free(Check *check, bool first)
{
	int			max = pgpx_shared->max_connections;
	int			n = 0;
	int			counted;
	int			wrong = -1;
	int			nsuspects = 0;

	memset(check->in_list, 0, max * sizeof(bool));
	SpinLockAcquire(&pgpx_shared->free_mutex);
	for (int i = pgpx_shared->free_head; i != -1 && wrong < 0;)
	{
		if (i < 0 || i >= max || check->in_list[i] ||
			pgpx_conns[i].state != PGPX_CONN_FREE || pgpx_conns[i].pool != -1)
			wrong = i < 0 ? max : i;
		else
		{
			check->in_list[i] = true;
			n++;
			i = pgpx_conns[i].next;
		}
	}
	counted = pgpx_shared->nfree;
	SpinLockRelease(&pgpx_shared->free_mutex);

	if (wrong >= 0)
	{
		fault(check, "free list leads to connection %d, which is not free or was passed before",
			  wrong);
		return 0;
	}
	if (n != counted)
		fault(check, "%d connections are in the free list, but it counts %d",
			  n, counted);

	for (int i = 0; i < max; i++)
	{
		Suspect    *suspect = &check->suspects[i];
		PgpxConn   *conn = &pgpx_conns[i];
		bool		missing = !check->in_list[i] &&
			conn->state == PGPX_CONN_FREE;

		suspect->missing = missing &&
			(first || (suspect->missing &&
					   suspect->generation == conn->generation &&
					   suspect->state_since == conn->state_since));
		suspect->generation = conn->generation;
		suspect->state_since = conn->state_since;
		if (suspect->missing)
			nsuspects++;
	}
	return nsuspects;
}

/* Whoever held a pool lock when this was called has released it at its return. */
static void
pass_all_locks(void)
{
	for (int i = 0; i < pgpx_shared->max_pools; i++)
	{
		LWLockAcquire(pgpx_pools[i].lock, LW_SHARED);
		LWLockRelease(pgpx_pools[i].lock);
	}
}

/*
 * Is a FREE connection in no list?  It is so for an instant when it is given
 * back, and again when it is taken, both under some pool lock; then it has a new
 * generation.  So of three walks, with all locks passed in between, at least
 * one finds a sound connection in the list, or of another generation.
 */
static void
check_free(Check *check, int nsuspects)
{
	for (int walk = 0; walk < 2 && nsuspects > 0; walk++)
	{
		pass_all_locks();
		nsuspects = walk_free(check, false);
	}
	if (nsuspects == 0)
		return;
	for (int i = 0; i < pgpx_shared->max_connections; i++)
		if (check->suspects[i].missing)
			fault(check, "connection %d is free, but not in the free list", i);
}

static int
compare_leases(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return x < y ? -1 : x > y;
}

/*
 * No lease is on two connections.  Ids never repeat, so this holds for leases
 * that were seen at different moments too.
 */
static void
check_leases(Check *check)
{
	qsort(check->leases, check->nleases, sizeof(uint64), compare_leases);
	for (int i = 1; i < check->nleases; i++)
		if (check->leases[i] == check->leases[i - 1])
			fault(check, "lease " UINT64_FORMAT " is on two connections",
				  check->leases[i]);
}

static void *
alloc_array(Size size)
{
	return MemoryContextAllocHuge(CurrentMemoryContext,
								  mul_size(pgpx_shared->max_connections, size));
}

void
pgpx_invariants_check(PgpxFaults *faults)
{
	Check		check = {.faults = faults};
	int			nsuspects;

	memset(faults, 0, sizeof(*faults));
	check.leases = alloc_array(sizeof(uint64));
	check.in_list = alloc_array(sizeof(bool));
	check.suspects = alloc_array(sizeof(Suspect));

	nsuspects = walk_free(&check, true);
	for (int i = 0; i < pgpx_shared->max_pools; i++)
		check_pool(&check, i);
	check_free(&check, nsuspects);
	check_leases(&check);

	pfree(check.leases);
	pfree(check.in_list);
	pfree(check.suspects);
}
