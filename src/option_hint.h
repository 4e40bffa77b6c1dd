/*-------------------------------------------------------------------------
 *
 * option_hint.h
 *	  The hint for an option name that is not valid.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_OPTION_HINT_H
#define PGPX_OPTION_HINT_H

/*
 * pgpx_option_hint
 *		A sentence that names the valid option closest to a mistyped one, or all valid
 *		ones if none is close.
 *
 * place: PGPX_ON_SERVER or PGPX_ON_MAPPING.  Valid is what the current user can set
 * there.
 */
extern char *pgpx_option_hint(const char *name, int place);

#endif							/* PGPX_OPTION_HINT_H */
