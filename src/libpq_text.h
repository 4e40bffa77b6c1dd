/*-------------------------------------------------------------------------
 *
 * libpq_text.h
 *	  What libpq says of a failed login, made fit to be shown.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_LIBPQ_TEXT_H
#define PGPX_LIBPQ_TEXT_H

#include "compat.h"

/* The first lines of a message, on one line of less than "size" bytes. */
extern void pgpx_libpq_squeeze(char *to, size_t size, const char *from);

/*
 * pgpx_libpq_take_sqlstates
 *		Make a verbose message what it is by default, in place; true if the remote
 *		has no room for one more.
 *
 * libpq tells the SQLSTATE of a refused login in verbose messages only:
 * "severity:  SQLSTATE: text" with a line "LOCATION: .." behind it.
 */
extern bool pgpx_libpq_take_sqlstates(char *text);

#endif							/* PGPX_LIBPQ_TEXT_H */
