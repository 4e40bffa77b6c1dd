/*-------------------------------------------------------------------------
 *
 * debug_point.h
 *	  Places at which a test can stop, end or fail a process.
 *
 * Only with -DPGPX_DEBUG_POINTS ("make check-points"); a normal build has
 * nothing of it, neither code nor settings.
 *
 * pgpool_ext.debug_point = 'NAME ACTION' does once what it says: the file
 * pgpool_ext.NAME.at in the data directory tells that the point was reached, and
 * while it is there nothing is done again.  Actions: wait (until there is a file
 * pgpool_ext.NAME.go; deaf to interrupts), error, exit, crash.
 *
 * pgpool_ext.debug_oom = N lets the Nth allocation of our own code fail, counted
 * from the setting or the start of the process, once, as above (oom.at).
 *
 * No point is under a lock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_DEBUG_POINT_H
#define PGPX_DEBUG_POINT_H

#ifdef PGPX_DEBUG_POINTS

extern void pgpx_debug_define(void);
extern void pgpx_debug_point(const char *name);
extern void pgpx_debug_allocate(void);

/* See debug_point.c. */
extern void pgpx_debug_damage(const char *what);

#define PGPX_DEBUG_POINT(name) pgpx_debug_point(name)

/* Before an _exit(): what gcov has counted would be lost. */
extern void pgpx_debug_counted(void);

#define PGPX_DEBUG_COUNTED() pgpx_debug_counted()

/* Each allocation asks first; a macro does not expand itself again. */
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
#define MemoryContextStrdup(cxt, text) \
	(pgpx_debug_allocate(), MemoryContextStrdup(cxt, text))
#endif

#else

#define PGPX_DEBUG_POINT(name) ((void) 0)
#define PGPX_DEBUG_COUNTED() ((void) 0)

#endif

#endif							/* PGPX_DEBUG_POINT_H */
