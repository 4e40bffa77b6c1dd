/*-------------------------------------------------------------------------
 *
 * remote_name.c
 *	  The remote names of foreign tables and columns, and their options.
 *
 *-------------------------------------------------------------------------
 */
#include "fdw/remote_name.h"

#include "commands/defrem.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

static const char *
find_option(List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = lfirst_node(DefElem, lc);

		if (strcmp(def->defname, name) == 0)
			return defGetString(def);
	}
	return NULL;
}

void
pgpx_remote_name_relation(StringInfo buf, Relation rel)
{
	List	   *options = GetForeignTable(RelationGetRelid(rel))->options;
	const char *schema = find_option(options, "schema_name");
	const char *table = find_option(options, "table_name");

	if (schema == NULL)
		schema = get_namespace_name(RelationGetNamespace(rel));
	if (table == NULL)
		table = RelationGetRelationName(rel);
	appendStringInfo(buf, "%s.%s", quote_identifier(schema),
					 quote_identifier(table));
}

void
pgpx_remote_name_column(StringInfo buf, Relation rel, AttrNumber attnum)
{
	Form_pg_attribute attr = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
	List	   *options = GetForeignColumnOptions(attr->attrelid, attnum);
	const char *name = find_option(options, "column_name");

	if (name == NULL)
		name = NameStr(attr->attname);
	appendStringInfoString(buf, quote_identifier(name));
}

const char *
pgpx_remote_table_option(Oid relid, const char *name)
{
	ForeignTable *table = GetForeignTable(relid);
	const char *value = find_option(table->options, name);

	if (value != NULL)
		return value;
	return find_option(GetForeignServer(table->serverid)->options, name);
}
