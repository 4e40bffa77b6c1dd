/*-------------------------------------------------------------------------
 *
 * fn_invariants.c
 *	  SQL function check_invariants: does the shared state add up?
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include "lib/stringinfo.h"

#include "invariants.h"

PG_FUNCTION_INFO_V1(pgpx_check_invariants);

/* check_invariants() returns void: XX000 with what does not add up */
Datum
pgpx_check_invariants(PG_FUNCTION_ARGS)
{
	PgpxFaults *faults;
	StringInfoData detail;
	int			described;

	pgpx_shmem_require();
	faults = palloc(sizeof(PgpxFaults));
	pgpx_invariants_check(faults);
	if (faults->n == 0)
		PG_RETURN_VOID();

	initStringInfo(&detail);
	described = Min(faults->n, PGPX_FAULTS_MAX);
	for (int i = 0; i < described; i++)
		appendStringInfo(&detail, "%s%s", i > 0 ? "\n" : "", faults->text[i]);
	if (faults->n > described)
		appendStringInfo(&detail, "\nand %d more", faults->n - described);
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("pgpool_ext: shared state is inconsistent"),
			 errdetail_internal("%s", detail.data)));
	PG_RETURN_VOID();
}
