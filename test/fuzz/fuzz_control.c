/*-------------------------------------------------------------------------
 *
 * fuzz_control.c
 *	  Messages on the control socket: every process of the server can send on it, so
 *	  the worker trusts none of them.
 *
 * The first byte selects whether a descriptor is passed, and whether the header is
 * correct except for one field, so that the code after its checks is reached; the
 * rest is the message.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shared/shmem.h"
#include "protocol/control_message.h"
#include "fuzz.h"

PgpxShared *pgpx_shared = NULL;

/* The lowest free descriptor. */
static int
next_descriptor(void)
{
	int			fd = open("/dev/null", O_RDONLY);

	close(fd);
	return fd;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool ready = false;
	char	   *message;
	char	   *buffer;
	PgpxMessageHeader *header;
	PgpxConninfo conninfo;
	ssize_t		len;
	int			fd = -1;
	int			got;
	int			expected;

	if (!ready)
	{
		pgpx_shared = calloc(1, sizeof(PgpxShared));
		pgpx_shared->boot_id = 7;
		pgpx_shared->max_pools = 4;
		pg_atomic_init_u32(&pgpx_shared->pools_end, 4);
		pgpx_control_init(1);
		ready = true;
	}
	if (size < 2 || size > PGPX_MESSAGE_MAX)
		return 0;
	message = malloc(size - 1);
	memcpy(message, data + 1, size - 1);
	header = (PgpxMessageHeader *) message;
	if ((data[0] & 1) && size - 1 >= sizeof(*header))
	{
		header->length = size - 1;
		header->boot_id = 7;
		header->incarnation = 3;
		header->pool = header->pool & 3;
		if (data[0] & 4)
			header->boot_id = 6;
		if (data[0] & 8)
			header->incarnation = 2;
		if (data[0] & 16)
			header->pool = data[0] & 32 ? 4 : -1;
		if (data[0] & 64)
			header->length++;
	}
	expected = next_descriptor();
	if (data[0] & 2)
		fd = open("/dev/null", O_RDONLY);
	FUZZ_CHECK(pgpx_fd_send(pgpx_control_session_fd(0), message, size - 1, fd) == 1);
	if (fd >= 0)
		close(fd);

	/* the worker's buffer, exactly as large as the part that it may read */
	buffer = malloc(PGPX_MESSAGE_MAX);
	len = pgpx_control_receive(0, 3, buffer, &got);
	FUZZ_CHECK(len == 0 || len == size - 1);
	FUZZ_CHECK(len != 0 || got < 0);
	FUZZ_CHECK(!(data[0] & 2) || len == 0 || got >= 0);
	header = (PgpxMessageHeader *) buffer;
	FUZZ_CHECK(len == 0 ||
			   (len >= sizeof(*header) && header->length == len &&
				header->boot_id == 7 && header->incarnation == 3 &&
				header->pool >= 0 && header->pool < 4));

	/* a dropped message leaves neither a secret nor a descriptor */
	for (size_t i = 0; len == 0 && i < size - 1; i++)
		FUZZ_CHECK(buffer[i] == 0);
	FUZZ_CHECK(next_descriptor() == expected + (got >= 0 ? 1 : 0));
	if (got >= 0)
		close(got);
	if (len > 0)
	{
		char	   *copy = malloc(len);

		memcpy(copy, buffer, len);
		if (pgpx_control_parse_conninfo(copy, len, &conninfo))
		{
			size_t		sum = strlen(conninfo.start_commands) +
				strlen(conninfo.reset_command);

			for (int i = 0; i < conninfo.nparams; i++)
				sum += strlen(conninfo.keywords[i]) + strlen(conninfo.values[i]);
			/* the whole message, with its header and a NUL after each part */
			FUZZ_CHECK(sum + 2 + 2 * conninfo.nparams +
					   sizeof(*header) + 16 == len);
		}
		free(copy);
	}
	len = pgpx_control_receive(0, 3, buffer, &got);
	FUZZ_CHECK(len == 0);
	free(buffer);
	free(message);
	fuzz_free_all();
	return 0;
}
