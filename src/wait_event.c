/*-------------------------------------------------------------------------
 *
 * wait_event.c
 *	  Names of our own for what processes wait for, from PostgreSQL 17 on.
 *
 * All libraries of a server share some 127 such names, and the one who comes too
 * late gets an error: in a worker that would be its end, again and again, and in an
 * exit callback worse.  A wait without a name is no reason for either.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

uint32
pgpx_wait_event_new(const char *name)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		interrupts = InterruptHoldoffCount;
	uint32		cancels = QueryCancelHoldoffCount;
	volatile uint32 event = PG_WAIT_EXTENSION;

	PG_TRY();
	{
		event = pgpx_register_wait_event(name);
	}
	PG_CATCH();
	{
		/* the error comes under the server's lock, and forgets what is held off */
		MemoryContextSwitchTo(context);
		pgpx_release_wait_event_lock();
		InterruptHoldoffCount = interrupts;
		QueryCancelHoldoffCount = cancels;
		FlushErrorState();
	}
	PG_END_TRY();
	return event;
}
