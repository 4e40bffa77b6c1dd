/*-------------------------------------------------------------------------
 *
 * debug_point.h
 *	  Points at which tests stop, end or fail a process.
 *
 * They exist only with -DPGPX_DEBUG_POINTS (suite points of the tests).  A normal
 * build has neither their code nor their settings.
 *
 * pgpool_ext.debug_point = 'NAME ACTION' performs the action once, when a
 * process reaches the point NAME.  Before the action the process creates the
 * file pgpool_ext.NAME.at in the data directory.  While that file exists, the
 * action is not performed again.  Actions:
 *
 *		wait	blocks until the file pgpool_ext.NAME.go exists; ignores
 *				interrupts
 *		error	raises an error
 *		exit	exits the process
 *		crash	kills the process with SIGKILL
 *
 * pgpool_ext.debug_oom = N makes the Nth allocation of this extension's code
 * fail, once (the file is pgpool_ext.oom.at).  The count starts when the
 * setting is assigned or the process starts.
 *
 * No debug point may be placed where a lock is held.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DEBUG_POINT_H
#define PGPX_DEBUG_POINT_H

#ifdef PGPX_DEBUG_POINTS

extern void pgpx_debug_define(void);
extern void pgpx_debug_point(const char *name);
extern void pgpx_debug_allocate(void);
extern bool pgpx_debug_allocate_extended(int flags);

#define PGPX_DEBUG_POINT(name) pgpx_debug_point(name)

/* Save the counters of gcov, which _exit() would discard. */
extern void pgpx_debug_counted(void);

#define PGPX_DEBUG_COUNTED() pgpx_debug_counted()

/* Count each allocation first.  A macro does not expand its own name again. */
#ifndef PGPX_DEBUG_POINT_C
#define palloc(size) (pgpx_debug_allocate(), palloc(size))
#define palloc0(size) (pgpx_debug_allocate(), palloc0(size))
#define pstrdup(text) (pgpx_debug_allocate(), pstrdup(text))
#define MemoryContextAlloc(cxt, size) \
	(pgpx_debug_allocate(), MemoryContextAlloc(cxt, size))
#define MemoryContextAllocZero(cxt, size) \
	(pgpx_debug_allocate(), MemoryContextAllocZero(cxt, size))
#define MemoryContextAllocHuge(cxt, size) \
	(pgpx_debug_allocate(), MemoryContextAllocHuge(cxt, size))
#define MemoryContextAllocExtended(cxt, size, flags) \
	(pgpx_debug_allocate_extended(flags) ? \
	 MemoryContextAllocExtended(cxt, size, flags) : NULL)
#define repalloc_huge(chunk, size) \
	(pgpx_debug_allocate(), repalloc_huge(chunk, size))
#define MemoryContextStrdup(cxt, text) \
	(pgpx_debug_allocate(), MemoryContextStrdup(cxt, text))
#endif

#else

#define PGPX_DEBUG_POINT(name) ((void) 0)
#define PGPX_DEBUG_COUNTED() ((void) 0)

#endif

#endif							/* PGPX_DEBUG_POINT_H */
