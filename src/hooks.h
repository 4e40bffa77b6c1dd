/*-------------------------------------------------------------------------
 *
 * hooks.h
 *	  The hooks and transaction callbacks of the extension.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_HOOKS_H
#define PGPX_HOOKS_H

/*
 * Install the hooks and register the callbacks.  Called once, when the library
 * is loaded: in the postmaster, from which every process inherits them, or in a
 * session of a server that does not preload the library.
 */
extern void pgpx_hooks_init(void);

#endif							/* PGPX_HOOKS_H */
