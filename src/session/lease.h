/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  The leases of this session, the callbacks that end them, and their
 *	  notifications.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LEASE_H
#define PGPX_LEASE_H

#include "shared/pool.h"
#include "session/server_spec.h"
#include "session/socket_cache.h"

#include "lib/ilist.h"

typedef struct PgpxLease
{
	dlist_node	node;
	uint64		id;				/* 0: not in use */
	int			conn;
	uint64		generation;
	PgpxCachedSocket *sock;		/* NULL until it is settled */
	PgpxServerSpec *spec;		/* pinned */
	int			worker;
	Oid			user;
	int			scope;			/* PgpxScope */
	SubTransactionId subid;		/* that took it, or its parents */
	bool		in_use;			/* a statement runs on it right now */
	bool		sent;			/* something has been sent on it */
	int			pending_state;	/* PgpxPendingState: SENT with its one statement, FAILED */
	uint64		queue_position; /* number that it waited under; 0: did not */
	PgpxTime	deadline;		/* of its checkout */
	bool		not_run;		/* its statement: the reset ahead has failed */
	const char *broken;			/* why it cannot be used any more */
	bool		read_only;		/* the remote has refused to write */
	struct PgpxInFlight *in_flight; /* sent, its result not yet taken; NULL: none */
	size_t		scanned;		/* of its answer, see pgpx_wire_answered */
	bool		cancelled;		/* a cancel of it was asked for */
	struct PgpxNotes *notes;	/* notifications that came in; NULL: none */
	PgpxUsage	usage;
} PgpxLease;

/* A notification, in the memory of the list that it is in. */
typedef struct PgpxNote
{
	struct PgpxNote *next;
	int32		remote_pid;
	char	   *payload;
	char		channel[FLEXIBLE_ARRAY_MEMBER];
} PgpxNote;

typedef struct PgpxNotes
{
	PgpxNote   *first;
	PgpxNote  **last;
	size_t		bytes;
	uint64		dropped;		/* for want of room, since the last look */
} PgpxNotes;

/*
 * Keep a notification for pgpool.notifications, within a bound.  Throws nothing:
 * one that cannot be kept, or that is malformed, is dropped and counted.
 */
extern void pgpx_notes_keep(PgpxLease *lease, const PgpxWireMessage *msg);

/* Free what is kept. */
extern void pgpx_notes_drop(PgpxLease *lease);

extern dlist_head pgpx_leases;	/* of this session */

/* A record that is not in the list yet: to put a lease into it cannot fail. */
extern PgpxLease *pgpx_lease_alloc(void);

/* Take a lease out of the list, if it is in it; the record is used again. */
extern void pgpx_lease_forget(PgpxLease *lease);

/* Register exit and transaction callbacks, once. */
extern void pgpx_lease_register_callbacks(void);

/* Has this session asked for a lease at any time?  (Then they are registered.) */
extern bool pgpx_lease_has_callbacks(void);

/*
 * pgpx_lease_of
 *		A lease by its id, for use by the current user.
 *
 * Errors: 55000 stale or in use, 42501 of another session or user; 08006 or
 * PX00n if it was taken away.
 */
extern PgpxLease *pgpx_lease_of(int64 id);

/*
 * pgpx_lease_for_return
 *		The same for giving it back: by the session, whatever the user; one that
 *		was taken away is returned too.
 */
extern PgpxLease *pgpx_lease_for_return(int64 id);

/* Return all leases of session and transaction scope.  Returns how many. */
extern int	pgpx_lease_return_all(void);

/*
 * How many leases this session holds: of a pool, by its id (0: any), of a server,
 * by the index of its record (-1: any).
 */
extern int	pgpx_lease_count(uint32 pool_id, int server);

#endif							/* PGPX_LEASE_H */
