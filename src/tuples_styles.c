/*-------------------------------------------------------------------------
 *
 * tuples_styles.c
 *	  Settings of either side that decide how the text of a value is read.
 *
 * The remote's DateStyle and IntervalStyle are pinned to what every input
 * function reads.  Where the lease's user has set another, read as it says.
 *
 *-------------------------------------------------------------------------
 */
#include "tuples_styles.h"

#include "access/tupdesc.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"
#include "utils/xml.h"

/* Does the text of a value of this type hold an instant with a time zone? */
static bool
holds_instant(Oid type)
{
	Oid			inner;
	bool		found = false;

	check_stack_depth();
	type = getBaseType(type);
	if (type == TIMESTAMPTZOID)
		return true;
	if (OidIsValid(inner = get_element_type(type)) ||
		OidIsValid(inner = get_range_subtype(type)) ||
		OidIsValid(inner = get_multirange_range(type)))
		return holds_instant(inner);
	if (type_is_rowtype(type) && type != RECORDOID)
	{
		TupleDesc	row = lookup_rowtype_tupdesc(type, -1);

		for (int i = 0; i < row->natts && !found; i++)
			if (!TupleDescAttr(row, i)->attisdropped)
				found = holds_instant(TupleDescAttr(row, i)->atttypid);
		ReleaseTupleDesc(row);
	}
	return found;
}

/*
 * In all styles but ISO a time zone is an abbreviation, and "IST" may be
 * Israel's or India's: such values are refused, not guessed.
 */
void
pgpx_styles_check(const PgpxWire *wire, Oid type)
{
	if (wire->datestyle_iso || !holds_instant(type))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot read values of type %s while DateStyle of the remote session is not ISO",
					format_type_be(type)),
			 errdetail("DateStyle is \"%s\", in which abbreviations of time zones are ambiguous.",
					   wire->datestyle),
			 errhint("Set DateStyle to ISO on the lease, or return the lease.")));
}

void
pgpx_styles_set(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

int
pgpx_styles_begin(const PgpxWire *wire)
{
	char		datestyle[sizeof(wire->datestyle) + 8];
	int			level = NewGUCNestLevel();

	if (!wire->datestyle_iso)
	{
		/* the order in which dates are written, which need not be that set */
		strlcpy(datestyle, wire->datestyle, sizeof(datestyle));
		if (strchr(datestyle, ',') != NULL)
			*strchr(datestyle, ',') = '\0';
		strlcat(datestyle, strcmp(datestyle, "German") == 0 ||
				strstr(wire->datestyle, "DMY") != NULL ? ", DMY" : ", MDY",
				sizeof(datestyle));
		pgpx_styles_set("DateStyle", datestyle);
	}
	if (!wire->intervalstyle_postgres)
		pgpx_styles_set("IntervalStyle", wire->intervalstyle);
	return level;
}

int
pgpx_neutral_begin(void)
{
	int			level;

	if (Array_nulls && xmloption == XMLOPTION_CONTENT)
		return 0;
	level = NewGUCNestLevel();
	if (!Array_nulls)
		pgpx_styles_set("array_nulls", "on");
	if (xmloption != XMLOPTION_CONTENT)
		pgpx_styles_set("xmloption", "content");
	return level;
}
