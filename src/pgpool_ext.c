/*-------------------------------------------------------------------------
 *
 * pgpool_ext.c
 *	  The module: what is set up when the server loads it, and nothing else.
 *
 * Preloaded, it sizes shared memory, makes the control sockets and registers
 * the workers.  Loaded into a session of a server that has not preloaded it
 * (pg_restore, pg_upgrade), it does none of that: the validator works, and every
 * other function raises 55000.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include "ddl.h"
#include "guc.h"
#include "handoff.h"
#include "shmem.h"
#include "worker.h"

#ifdef PG_MODULE_MAGIC_EXT
PG_MODULE_MAGIC_EXT(.name = "pgpool_ext", .version = "1.0");
#else
PG_MODULE_MAGIC;
#endif

void _PG_init(void);

void
_PG_init(void)
{
	pgpx_guc_init();
	if (!process_shared_preload_libraries_in_progress)
		return;
	pgpx_shmem_init();
	pgpx_handoff_init(pgpx_workers);
	pgpx_worker_register();
	pgpx_ddl_init();
}
