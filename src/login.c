/*-------------------------------------------------------------------------
 *
 * login.c
 *	  A login, step by step, each step in a thread.
 *
 * PQconnectPoll does not wait, but it computes what the remote asks for: SCRAM has
 * the remote say how often a hash is to be iterated (RFC 7677; two thousand million
 * times are ten minutes), TLS how large its numbers are.  In the worker's loop that
 * would hold up all other pools.  So it happens in a thread (task.c has the rules), and
 * a login that is given up in the middle of a step is left to it: nothing can stop
 * that, so it goes on only while nothing else wants the processor, and frees what
 * it has at its end.
 *
 * From the beginning of a step to its end libpq's connection is the thread's, and
 * nobody else asks it for anything, not even for its socket.
 *
 * A pool has so many steps at once, and those that were given up count: a remote that
 * makes everybody compute gets no more threads than these.  Other logins of the pool
 * wait for them in the order in which they came, as long as connect_timeout allows.
 * Who has changed the options of the pool does not wait for what was told before.
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include "lib/ilist.h"
#include "storage/fd.h"

#include "task.h"

/* Of a pool, at once. */
#define MAX_STEPS 4

typedef enum LoginState
{
	RESTING = 0,				/* the remote is to say something */
	WAITING,					/* for other steps of the pool */
	RUNNING,					/* in a thread */
	GIVEN_UP					/* the same, and nobody waits for it */
} LoginState;

struct PgpxLogin
{
	PgpxTask	task;
	LoginState	state;
	dlist_node	node;			/* in steps, unless RESTING */
	PgpxLoginOf of;
	PGconn	   *pg;
	PgpxHearing *hearing;
	PostgresPollingStatusType status;
	PgpxLoginStepped stepped;
	void	   *owner;
};

static dlist_head steps = DLIST_STATIC_INIT(steps);

static void ended(PgpxTask *task);

/* In the thread. */
static void
run(PgpxTask *task)
{
	PgpxLogin  *login = (PgpxLogin *) task;

	login->status = PQconnectPoll(login->pg);
}

PgpxLogin *
pgpx_login_begin(PgpxLoginOf of, PGconn *pg, PgpxHearing *hearing,
				 PgpxLoginStepped stepped, void *owner)
{
	PgpxLogin  *login = calloc(1, sizeof(*login));

	if (login == NULL)
		return NULL;
	login->task.run = run;
	login->task.ended = ended;
	login->of = of;
	login->pg = pg;
	login->hearing = hearing;
	login->stepped = stepped;
	login->owner = owner;
	pgpx_libpq_login_begin(hearing);
	return login;
}

static bool
is_of(const PgpxLogin *login, const PgpxLoginOf *of)
{
	return login->of.pool == of->pool && login->of.pool_id == of->pool_id &&
		login->of.version == of->version;
}

/* How many threads work for it; the first login that waits, NULL: none does. */
static int
count_steps(const PgpxLoginOf *of, int *given_up, PgpxLogin **first)
{
	dlist_iter	iter;
	int			n = 0;

	*given_up = 0;
	*first = NULL;
	dlist_foreach(iter, &steps)
	{
		PgpxLogin  *login = dlist_container(PgpxLogin, node, iter.cur);

		if (!is_of(login, of))
			continue;
		if (login->state != WAITING)
			n++;
		else if (*first == NULL)
			*first = login;
		if (login->state == GIVEN_UP)
			(*given_up)++;
	}
	return n;
}

/* A step has ended, or a login has come: who is next? */
static void
start_next(PgpxLoginOf of)
{
	PgpxLogin  *next;
	int			given_up;

	while (count_steps(&of, &given_up, &next) < MAX_STEPS && next != NULL)
	{
		next->state = RUNNING;
		pgpx_libpq_login_before(next->hearing, next->pg);
		if (pgpx_task_start(&next->task))
			continue;
		next->state = RESTING;
		dlist_delete(&next->node);
		next->stepped(next->owner, PGRES_POLLING_FAILED,
					  ERRCODE_INSUFFICIENT_RESOURCES,
					  "The pool worker could not start a thread for the login.");
	}
}

void
pgpx_login_step(PgpxLogin *login)
{
	if (login->state != RESTING)
		return;
	login->state = WAITING;
	dlist_push_tail(&steps, &login->node);
	start_next(login->of);
}

/* A step is over, in the loop. */
static void
ended(PgpxTask *task)
{
	PgpxLogin  *login = (PgpxLogin *) task;
	PgpxLoginOf of = login->of;

	dlist_delete(&login->node);
	if (login->state == GIVEN_UP)
	{
		PQfinish(login->pg);
		ReleaseExternalFD();
		free(login);
	}
	else
	{
		login->state = RESTING;
		if (pgpx_libpq_login_after(login->hearing, login->pg))
			login->stepped(login->owner, login->status,
						   ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						   NULL);
		else
			login->stepped(login->owner, PGRES_POLLING_FAILED,
						   ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						   "The remote server said too much during the login.");
	}
	start_next(of);
}

bool
pgpx_login_is_running(const PgpxLogin *login)
{
	return login != NULL && login->state == RUNNING;
}

const char *
pgpx_login_why_late(const PgpxLogin *login)
{
	PgpxLogin  *first;
	int			given_up;

	if (login == NULL || login->state == RESTING)
		return "";
	(void) count_steps(&login->of, &given_up, &first);
	if (login->state == WAITING && given_up >= MAX_STEPS)
		return ": logins before it still compute what the remote server has asked for";
	return ": what the remote server asks for takes longer to compute";
}

bool
pgpx_login_end(PgpxLogin *login)
{
	if (login == NULL)
		return false;
	if (login->state == RUNNING)
	{
		login->state = GIVEN_UP;
		pgpx_task_in_no_hurry(&login->task);
		return true;
	}
	if (login->state == WAITING)
		dlist_delete(&login->node);
	free(login);
	return false;
}

int
pgpx_login_descriptors(void)
{
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, &steps)
		if (dlist_container(PgpxLogin, node, iter.cur)->state == GIVEN_UP)
			n++;
	return n;
}
