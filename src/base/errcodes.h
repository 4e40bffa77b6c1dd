/*-------------------------------------------------------------------------
 *
 * errcodes.h
 *	  The SQLSTATEs of this extension.
 *
 * They do not begin with 57P, because client-side pools take such an error to
 * concern their own session to this server, and would close that healthy
 * session.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_ERRCODES_H
#define PGPX_ERRCODES_H

#include "utils/elog.h"

#define PGPX_ERRCODE_LEASE_TERMINATED	MAKE_SQLSTATE('P', 'X', '0', '0', '1')
#define PGPX_ERRCODE_LEASE_TIMEOUT		MAKE_SQLSTATE('P', 'X', '0', '0', '2')
#define PGPX_ERRCODE_WORKER_DOWN		MAKE_SQLSTATE('P', 'X', '0', '0', '3')
#define PGPX_ERRCODE_POOL_DAMAGED		MAKE_SQLSTATE('P', 'X', '0', '0', '4')

#endif							/* PGPX_ERRCODES_H */
