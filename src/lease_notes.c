/*-------------------------------------------------------------------------
 *
 * lease_notes.c
 *	  Notifications that come in on a lease, until somebody asks for them.
 *
 * They come whenever the remote likes, also while a result is drained after an
 * error or in a place where nothing may throw.  The remote decides how many they
 * are, so they are kept within a bound, and what is dropped is counted.
 *
 *-------------------------------------------------------------------------
 */
#include "lease.h"

#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "utils/memutils.h"

#define NOTES_MAX (1024 * 1024) /* bytes, of one lease */

/* Memory or NULL. */
static void *
get_memory(size_t size)
{
	return MemoryContextAllocExtended(TopMemoryContext, size,
									  MCXT_ALLOC_NO_OOM | MCXT_ALLOC_ZERO);
}

/*
 * NotificationResponse: process, channel, payload
 * (https://www.postgresql.org/docs/current/protocol-message-formats.html).
 */
static PgpxNote *
copy_note(const PgpxWireMessage *msg, size_t room)
{
	const char *channel = msg->data + sizeof(int32);
	size_t		left = msg->len - sizeof(int32);
	size_t		channel_len;
	size_t		payload_len;
	uint32		pid;
	PgpxNote   *note;

	if (msg->len < sizeof(int32) || msg->len > room)
		return NULL;
	channel_len = strnlen(channel, left);
	if (channel_len == left)
		return NULL;
	left -= channel_len + 1;
	payload_len = strnlen(channel + channel_len + 1, left);
	if (payload_len == left ||
		!pg_verify_mbstr(GetDatabaseEncoding(), channel, channel_len, true) ||
		!pg_verify_mbstr(GetDatabaseEncoding(), channel + channel_len + 1,
						 payload_len, true))
		return NULL;

	note = get_memory(offsetof(PgpxNote, channel) + channel_len + payload_len +
					  2);
	if (note == NULL)
		return NULL;
	memcpy(&pid, msg->data, sizeof(pid));
	note->remote_pid = (int32) pg_ntoh32(pid);
	memcpy(note->channel, channel, channel_len + payload_len + 2);
	note->payload = note->channel + channel_len + 1;
	return note;
}

void
pgpx_notes_keep(PgpxLease *lease, const PgpxWireMessage *msg)
{
	PgpxNotes  *notes = lease->notes;
	PgpxNote   *note;

	/* nobody can ask for those of a lease that ends with its call */
	if (lease->scope == PGPX_SCOPE_CALL)
		return;
	if (notes == NULL)
	{
		notes = get_memory(sizeof(*notes));
		if (notes == NULL)
			return;
		notes->last = &notes->first;
		lease->notes = notes;
	}
	note = copy_note(msg, NOTES_MAX - notes->bytes);
	if (note == NULL)
	{
		notes->dropped++;
		return;
	}
	notes->bytes += Min(msg->len + sizeof(*note), NOTES_MAX - notes->bytes);
	*notes->last = note;
	notes->last = &note->next;
}

void
pgpx_notes_drop(PgpxLease *lease)
{
	PgpxNotes  *notes = lease->notes;

	if (notes == NULL)
		return;
	for (PgpxNote *note = notes->first; note != NULL;)
	{
		PgpxNote   *next = note->next;

		pfree(note);
		note = next;
	}
	pfree(notes);
	lease->notes = NULL;
}
