/*-------------------------------------------------------------------------
 *
 * pgpool_ext.c
 *	  Entry point of the module: initialization when the server loads it.
 *
 * In a server that preloads the library, it reserves shared memory, creates the
 * control sockets, registers the workers, and loads postgres_fdw.  In a session
 * of a server that does not preload it (pg_restore, pg_upgrade), it does none
 * of that: the validator works, and every other function raises 55000.
 *
 *-------------------------------------------------------------------------
 */
#include "hooks.h"

#include "base/compat.h"

#include "shared/lock_hooks.h"
#include "protocol/control_message.h"
#include "session/server_spec.h"
#include "worker/worker.h"
#include "fdw/handler.h"

#ifdef PG_MODULE_MAGIC_EXT
PG_MODULE_MAGIC_EXT(.name = "pgpool_ext", .version = "1.0");
#else
PG_MODULE_MAGIC;
#endif

void _PG_init(void);

void
_PG_init(void)
{
	pgpx_lock_hooks_init();
	pgpx_settings_init();
	pgpx_hooks_init();
	if (!process_shared_preload_libraries_in_progress)
		return;
	pgpx_shmem_init();
	pgpx_control_init(pgpx_workers);
	pgpx_worker_register();
	pgpx_catalog_invalidation_init();
	pgpx_scram_init();
	pgpx_postgres_fdw_preload();
}
