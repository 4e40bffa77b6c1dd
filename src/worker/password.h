/*-------------------------------------------------------------------------
 *
 * password.h
 *	  Passwords that the password command prints, for pools whose user mapping
 *	  has use_password_command.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_PASSWORD_H
#define PGPX_PASSWORD_H

#include "worker/conninfo.h"

/*
 * Called in the event loop when the password command has ended for a version of
 * a pool's conninfo.  error: the reason why there is no password, or NULL.  The
 * callback continues all logins of that version that wait for the password.
 */
typedef void (*PgpxPasswordAnswer)(int pool, uint32 pool_id, uint64 version,
								   const char *error);

/*
 * Tests whether a login that began at this time must request a password first:
 * the pool uses the password command, and no password was obtained since that
 * time or within pgpool_ext.password_lifetime.
 */
extern bool pgpx_password_is_needed(int pool, PgpxTime since);

/*
 * Runs the password command for the conninfo of a pool, unless it is already
 * running for it.  "answer" is called once when it ends.  timeout, in ms: a
 * command that this call starts is killed after that time.  Returns NULL, or
 * the reason why the command cannot run.
 */
extern const char *pgpx_password_request(int pool, int64 timeout,
										 PgpxPasswordAnswer answer);

/*
 * Handles a login that the remote refused: forgets the password that was
 * obtained at "used_at", because it may have expired or changed.  Returns
 * whether the login should be repeated with another password, because this one
 * was obtained before the login began ("since").
 */
extern bool pgpx_password_refused(int pool, PgpxTime used_at, PgpxTime since);

/* Kills the commands that are running, when the worker exits. */
extern void pgpx_password_kill_commands(void);

#endif							/* PGPX_PASSWORD_H */
