/*
 * A library that registers as many wait events as a server supports, before any other
 * library can: see wait_events.pl.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void
take_all(void)
{
	MemoryContext context = CurrentMemoryContext;
	volatile int n = 0;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	PG_TRY();
	{
		for (;; n++)
			(void) WaitEventExtensionNew(psprintf("Taken%d", n));
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		HOLD_INTERRUPTS();
		LWLockRelease(WaitEventCustomLock);
		FlushErrorState();
	}
	PG_END_TRY();
	elog(LOG, "%d names of wait events are registered", n);
}

void		_PG_init(void);

void
_PG_init(void)
{
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = take_all;
}
