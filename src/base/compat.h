/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  The one place that knows server and libpq versions.
 *
 * Wrappers carry the newest server's signature (18) and supply it on the older
 * ones (15 to 17), so that no other file tests PG_VERSION_NUM; a lint says so.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_COMPAT_H
#define PGPX_COMPAT_H

#include "postgres.h"

#include "catalog/pg_foreign_server.h"
#include "foreign/foreign.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/varlena.h"
#include "utils/wait_event.h"

#include "base/debug_point.h"

#if PG_VERSION_NUM < 150000
#error "pgpool_ext needs PostgreSQL 15 or newer"
#endif

#ifdef EXEC_BACKEND
#error "pgpool_ext needs fork(): workers and sessions inherit the control sockets"
#endif

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif
#if PG_VERSION_NUM >= 180000
#include "storage/waiteventset.h"
#endif

/* 18 has pg_noreturn as a prefix and removed the suffix form */
#ifndef pg_noreturn
#define pg_noreturn __attribute__((noreturn))
#endif

#if PG_VERSION_NUM < 170000
#define MyProcNumber (MyProc->pgprocno)
#endif

/* For SendProcSignal: find it by its process's number. */
#if PG_VERSION_NUM >= 170000
#define PGPX_ANY_BACKEND INVALID_PROC_NUMBER
#else
#define PGPX_ANY_BACKEND InvalidBackendId
#endif

/* Number of processes that can wait on a latch: GetPGProcByNumber(0..n-1). */
#define PGPX_NPROCS (MaxBackends + NUM_AUXILIARY_PROCS)

static inline WaitEventSet *
pgpx_create_wait_event_set(int nevents)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, nevents);
#else
	return CreateWaitEventSet(TopMemoryContext, nevents);
#endif
}

/* For pgpx_wait_event_new alone. */
static inline uint32
pgpx_register_wait_event(const char *name)
{
#if PG_VERSION_NUM >= 170000
	return WaitEventExtensionNew(name);
#else
	(void) name;
	return PG_WAIT_EXTENSION;
#endif
}

static inline void
pgpx_release_wait_event_lock(void)
{
#if PG_VERSION_NUM >= 170000
	if (LWLockHeldByMe(WaitEventCustomLock))
	{
		HOLD_INTERRUPTS();		/* the release resumes them */
		LWLockRelease(WaitEventCustomLock);
	}
#endif
}

/*
 * A worker that has ended is due again.  The postmaster of 15 that is told of an end
 * between working out how long to sleep and going to sleep (DetermineSleepTime, select)
 * sleeps for up to a minute all the same, unless a signal or a connection comes; from 16
 * on it waits on a latch.
 */
static inline void
pgpx_remind_postmaster(void)
{
#if PG_VERSION_NUM < 160000
	SendPostmasterSignal(PMSIGNAL_BACKGROUND_WORKER_CHANGE);
#endif
}

/* 16 introduced these: the closest of several names within max_d edits. */
#if PG_VERSION_NUM < 160000
typedef struct ClosestMatchState
{
	const char *source;
	int			min_d;
	int			max_d;
	const char *match;
} ClosestMatchState;

static inline void
initClosestMatch(ClosestMatchState *state, const char *source, int max_d)
{
	state->source = source;
	state->min_d = -1;
	state->max_d = max_d;
	state->match = NULL;
}

static inline void
updateClosestMatch(ClosestMatchState *state, const char *candidate)
{
	size_t		len = strlen(state->source);
	int			d;

	/* varstr_levenshtein raises an error for longer names */
	if (len == 0 || len > 255 || strlen(candidate) > 255)
		return;
	d = varstr_levenshtein_less_equal(state->source, (int) len, candidate,
									  (int) strlen(candidate), 1, 1, 1,
									  state->max_d, true);
	if (d <= state->max_d && d <= (int) len / 2 &&
		(state->min_d == -1 || d < state->min_d))
	{
		state->min_d = d;
		state->match = candidate;
	}
}

static inline const char *
getClosestMatch(ClosestMatchState *state)
{
	return state->match;
}
#endif

static inline AclResult
pgpx_server_aclcheck(Oid serverid, Oid roleid, AclMode mode)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(ForeignServerRelationId, serverid, roleid, mode);
#else
	return pg_foreign_server_aclcheck(serverid, roleid, mode);
#endif
}

static inline bool
pgpx_server_ownercheck(Oid serverid, Oid roleid)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(ForeignServerRelationId, serverid, roleid);
#else
	return pg_foreign_server_ownercheck(serverid, roleid);
#endif
}

/*
 * True where an interval is infinite: 17 introduced such values.  Before, they are taken
 * for very long ones where they come in binary, and are an error in text.
 */
#if PG_VERSION_NUM >= 170000
#define PGPX_INTERVAL_NOT_FINITE(i) INTERVAL_NOT_FINITE(i)
#define PGPX_INTERVAL_IS_SAFE_IN_BINARY true
#else
#define PGPX_INTERVAL_NOT_FINITE(i) (false)
#define PGPX_INTERVAL_IS_SAFE_IN_BINARY false
#endif

/*
 * 15.20 and its sister minor releases export the list of libpq options that
 * are safe in server-side proxies.  Weak, so that an older minor still loads
 * the library; test the pointer before use.
 */
extern bool libpqsrv_is_valid_proxy_option(const char *keyword)
	__attribute__((weak));

#endif							/* PGPX_COMPAT_H */
