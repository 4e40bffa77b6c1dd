/*-------------------------------------------------------------------------
 *
 * remote_name.h
 *	  The remote names of foreign tables and columns, and their options.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_REMOTE_NAME_H
#define PGPX_REMOTE_NAME_H

#include "base/compat.h"

#include "lib/stringinfo.h"
#include "utils/rel.h"

/* Append the remote name of a foreign table, qualified and quoted. */
extern void pgpx_remote_name_relation(StringInfo buf, Relation rel);

/* Append the remote name of a column, quoted. */
extern void pgpx_remote_name_column(StringInfo buf, Relation rel,
									AttrNumber attnum);

/*
 * Return the value of an option of a foreign table, else of its server; NULL if
 * neither has it.
 */
extern const char *pgpx_remote_table_option(Oid relid, const char *name);

#endif							/* PGPX_REMOTE_NAME_H */
