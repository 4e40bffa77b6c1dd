/*-------------------------------------------------------------------------
 *
 * share_target.c
 *	  Fair shares: how many connections a member of cluster_connections should
 *	  hold.
 *
 * The target is a function of the rows that the last statement has read, so all
 * members arrive at the same shares.  share.c has the protocol, and what the
 * terms mean.  The rules are, in this order:
 *
 * - Max-min fair shares, as long as the cap allows a connection for each member
 *   that wants any.
 * - Turns of a single connection, if more members want connections than that.
 * - Take nothing back: while another member is starved, a member whose limit
 *   was lowered does not raise it again.
 * - Recreated tables: rows may be missing, so a member opens no connection.
 *
 * No function of this file reads the clock or shared memory.
 *
 *-------------------------------------------------------------------------
 */
#include "locks/share.h"

/*
 * Return whether a member wants connections; one that is dead or cut off does
 * not.
 */
static bool
wants_any(const PgpxShareMember *m)
{
	return m->demand > 0 && !m->dead;
}

/* Return a member's share at a level: connections per 1000 units of weight. */
static int
share_at_level(const PgpxShareMember *m, int64 level)
{
	int64		share = level * m->weight / 1000;

	return wants_any(m) ? (int) Min(Max(share, 1), m->demand) : 0;
}

/*
 * Compute the max-min fair shares of n members into fair[].  At most "cap" of
 * them may want connections.  The members must be in the order of their names,
 * because the remainder of the division is given out in this order, which must
 * be the same on all members.
 */
static void
fair_shares(const PgpxShareMember **members, int n, int cap, int *fair)
{
	int64		low = 0;		/* the shares at this level fit into the cap */
	int64		high = (int64) PGPX_SHARE_MAX * 1000 + 1;	/* too high */
	int64		left = cap;

	while (high - low > 1)
	{
		int64		middle = (low + high) / 2;
		int64		sum = 0;

		for (int i = 0; i < n; i++)
			sum += share_at_level(members[i], middle);
		if (sum <= cap)
			low = middle;
		else
			high = middle;
	}
	for (int i = 0; i < n; i++)
	{
		fair[i] = share_at_level(members[i], low);
		left -= fair[i];
	}

	/* the remainder: one each to members that have more at the next level */
	for (int i = 0; i < n && left > 0; i++)
		if (share_at_level(members[i], low + 1) > fair[i])
		{
			fair[i]++;
			left--;
		}
}

/*
 * Return the target while the cap allows each member that wants connections at
 * least one.  It is the fair share.  A member keeps the connections above its
 * share that it uses, less what the others lack for theirs.
 */
static int
target_by_fair_shares(const PgpxShareInput *in)
{
	int			n = in->nothers + 1;
	const PgpxShareMember **members = palloc(n * sizeof(PgpxShareMember *));
	int		   *fair = palloc(n * sizeof(int));
	int64		held = Max(in->own.held, in->used);
	int64		lacking = 0;
	int			own = 0;		/* its index in the order of names */
	int			excess;
	int			target;

	while (own < in->nothers &&
		   strcmp(in->others[own].name, in->own.name) < 0)
		own++;
	for (int i = 0; i < n; i++)
		members[i] = i == own ? &in->own : &in->others[i < own ? i : i - 1];
	fair_shares(members, n, in->cap, fair);
	for (int i = 0; i < n; i++)
		if (i != own)
		{
			held += members[i]->held;
			lacking += Max(fair[i] - members[i]->held, 0);
		}

	/* free connections help the others; what exceeds a lowered cap must go */
	lacking -= in->cap - held;
	excess = Max(in->used - fair[own], 0);
	target = fair[own] + excess - (int) Min(Max(lacking, 0), excess);
	pfree(members);
	pfree(fair);
	return target;
}

/*
 * Return the target, 0 or 1, while more members want connections than the cap
 * allows.  starved: how many others are starved.
 */
static int
target_in_turn(const PgpxShareInput *in, int starved)
{
	bool		turn_ends = in->own.held > 0 && starved > 0 && in->turn_over;

	return in->own.demand > 0 && !turn_ends ? 1 : 0;
}

/*
 * Return whether the turn of a member began before that of another one.  The
 * names decide between equal numbers.
 */
static bool
precedes(const PgpxShareMember *a, const PgpxShareMember *b)
{
	return a->since < b->since ||
		(a->since == b->since && strcmp(a->name, b->name) < 0);
}

/*
 * Return whether this member must release its connection because the cap was
 * lowered.  The turns that began first remain, and sessions of dead members
 * count as well.
 */
static bool
exceeds_lowered_cap(const PgpxShareInput *in)
{
	int64		preceding = 0;

	for (int i = 0; i < in->nothers; i++)
	{
		const PgpxShareMember *m = &in->others[i];

		if (m->dead)
			preceding += m->held;
		else if (m->held > 0 && precedes(m, &in->own))
			preceding++;
	}
	return in->own.held > 0 && preceding >= in->cap;
}

int
pgpx_share_choose_target(const PgpxShareInput *in)
{
	int			wanting = wants_any(&in->own);
	int			starved = 0;
	int			target;

	for (int i = 0; i < in->nothers; i++)
		if (wants_any(&in->others[i]))
		{
			wanting++;
			starved += in->others[i].held == 0;
		}

	if (wanting <= in->cap)
		target = target_by_fair_shares(in);
	else if (exceeds_lowered_cap(in))
		target = 0;
	else
		target = target_in_turn(in, starved);

	/* take nothing back */
	if (in->own.held > in->limit && starved > 0)
		target = Min(target, in->limit);

	/* rows of others may still be missing */
	if (in->recreated)
		target = Min(target, in->used);
	return target;
}
