/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Differences between server and libpq versions.
 *
 * Wrappers have the interface of the newest server (19) and provide it on older
 * servers (15 to 18).  No other file tests PG_VERSION_NUM; the lint versions
 * checks it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_COMPAT_H
#define PGPX_COMPAT_H

#include "postgres.h"

#include "catalog/pg_foreign_server.h"
#include "commands/explain.h"
#include "executor/executor.h"
#include "foreign/foreign.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "parser/parse_type.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/tuplestore.h"
#include "utils/varlena.h"
#include "utils/wait_event.h"

#include "base/debug_point.h"

/*
 * The domain of the messages of this extension, by which src/dblink
 * distinguishes its errors from those of the server.
 */
#undef TEXTDOMAIN
#define TEXTDOMAIN "pgpool_ext"

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
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#include "storage/waiteventset.h"

/*
 * A session keeps the SCRAM keys that its client has proved to know, and
 * postgres_fdw has the option use_scram_passthrough.
 */
#define PGPX_HAS_SCRAM_PASSTHROUGH 1

/* pg_restore_relation_stats and pg_restore_attribute_stats */
#define PGPX_HAS_RESTORE_STATS 1
#endif

/* The callback ImportForeignStatistics of foreign-data wrappers. */
#if PG_VERSION_NUM >= 190000
#define PGPX_HAS_IMPORT_CALLBACK 1
#endif

/* 18 has pg_noreturn as a prefix and removed the suffix form */
#ifndef pg_noreturn
#define pg_noreturn __attribute__((noreturn))
#endif

/* 19 compiles with -Wimplicit-fallthrough=5, which requires the attribute */
#ifndef pg_fallthrough
#define pg_fallthrough __attribute__((fallthrough))
#endif

/* From 19 on, a new tuple descriptor must be finished before its first use. */
#if PG_VERSION_NUM < 190000
#define TupleDescFinalize(tupdesc) ((void) 0)
#endif

/* 19 has another type for the handlers of signals */
#ifndef PG_SIG_IGN
#define PG_SIG_IGN SIG_IGN
#endif

/* From 19 on, DROP DATABASE and the like end such a worker of the database. */
#if PG_VERSION_NUM < 190000
#define BGWORKER_INTERRUPTIBLE 0
#endif

#if PG_VERSION_NUM < 170000
#define MyProcNumber (MyProc->pgprocno)
#endif

/* Backend argument of SendProcSignal: find the process by its PID. */
#if PG_VERSION_NUM >= 170000
#define PGPX_ANY_BACKEND INVALID_PROC_NUMBER
#else
#define PGPX_ANY_BACKEND InvalidBackendId
#endif

/* Number of PGPROCs of processes with a latch: GetPGProcByNumber(0..n-1). */
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

/*
 * Register the name of a wait event and return its id.  Only
 * pgpx_wait_event_new may call this, because an error leaves the server's lock
 * held.  Servers before 17 have one wait event for all extensions.
 */
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

/* Release the lock that an error in pgpx_register_wait_event leaves held. */
static inline void
pgpx_release_wait_event_lock(void)
{
#if PG_VERSION_NUM >= 170000
	if (LWLockHeldByMe(WaitEventCustomLock))
	{
		HOLD_INTERRUPTS();		/* LWLockRelease resumes them */
		LWLockRelease(WaitEventCustomLock);
	}
#endif
}

/*
 * Wake the postmaster so that it restarts a worker that has ended.  The
 * postmaster of 15 can miss the end of a worker: if SIGCHLD arrives between
 * DetermineSleepTime and select, it sleeps for up to a minute, unless another
 * signal or a connection arrives.  From 16 on it waits on a latch.
 */
static inline void
pgpx_remind_postmaster(void)
{
#if PG_VERSION_NUM < 160000
	SendPostmasterSignal(PMSIGNAL_BACKGROUND_WORKER_CHANGE);
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

/* The base relations of a foreign scan; of a join, all of them. */
static inline Bitmapset *
pgpx_scan_relids(const ForeignScan *plan)
{
#if PG_VERSION_NUM >= 160000
	return plan->fs_base_relids;
#else
	return plan->fs_relids;
#endif
}

/* Return the user whose rights on a scanned table the executor checks. */
static inline Oid
pgpx_scan_user(ForeignScanState *node, Index varno)
{
#if PG_VERSION_NUM >= 160000
	Oid			user = ((ForeignScan *) node->ss.ps.plan)->checkAsUser;
#else
	Oid			user = exec_rt_fetch(varno, node->ss.ps.state)->checkAsUser;
#endif

	return OidIsValid(user) ? user : GetUserId();
}

/* Return whether this process holds a lock in this or a stronger mode. */
static inline bool
pgpx_lock_is_held(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(tag, mode, true);
#else
	for (LOCKMODE m = mode; m <= MaxLockMode; m++)
	{
		if (LockHeldByMe(tag, m))
			return true;
	}
	return false;
#endif
}

/*
 * Return the user whose rights on a target table the executor checks.  In 15,
 * if a partition has no range table entry, the entry of its root table has the
 * user.
 */
static inline Oid
pgpx_result_rel_user(ResultRelInfo *result_rel, EState *estate)
{
#if PG_VERSION_NUM >= 160000
	return ExecGetResultRelCheckAsUser(result_rel, estate);
#else
	Index		index = result_rel->ri_RangeTableIndex;
	Oid			user;

	if (index == 0)
		index = result_rel->ri_RootResultRelInfo->ri_RangeTableIndex;
	user = exec_rt_fetch(index, estate)->checkAsUser;
	return OidIsValid(user) ? user : GetUserId();
#endif
}

/* Parse the name of a type.  Raise an error if it is not exactly one. */
static inline TypeName *
pgpx_parse_type_name(const char *text)
{
#if PG_VERSION_NUM >= 160000
	return typeStringToTypeName(text, NULL);
#else
	return typeStringToTypeName(text);
#endif
}

/*
 * Infinite intervals exist from 17 on.  Older servers read one in binary as a
 * very long interval and reject it in text, so intervals are not requested in
 * binary there.
 */
#if PG_VERSION_NUM >= 170000
#define PGPX_INTERVAL_NOT_FINITE(i) INTERVAL_NOT_FINITE(i)
#define PGPX_INTERVAL_IS_SAFE_IN_BINARY true
#else
#define PGPX_INTERVAL_NOT_FINITE(i) (false)
#define PGPX_INTERVAL_IS_SAFE_IN_BINARY false
#endif

/*
 * Return whether an option of libpq is safe in connections that the server
 * makes.  15.20 and the minor releases of that date introduced it.  The symbol
 * is weak so that an older minor release can load the library; the caller must
 * test the pointer before use.
 */
extern bool libpqsrv_is_valid_proxy_option(const char *keyword)
	__attribute__((weak));

#endif							/* PGPX_COMPAT_H */
