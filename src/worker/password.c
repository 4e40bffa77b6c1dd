/*-------------------------------------------------------------------------
 *
 * password.c
 *	  Passwords that the password command prints.
 *
 * Tokens of identity services replace passwords and are valid for minutes only,
 * so they cannot be options of a user mapping.  If a mapping has
 * use_password_command, the worker runs the command of the setting
 * pgpool_ext.password_command before it opens a connection, and logs in with
 * the line that the command prints.
 *
 * It is a program and not an SQL function because the tools that issue tokens
 * are programs, and because neither the worker nor the catalog reader may
 * execute SQL: no user can then replace what is executed.
 *
 * Rights: the setting can only be set by superusers or in postgresql.conf.  A
 * password must neither be issued for a remote user nor be sent to a host that
 * another user has chosen.  So only superusers can set the mapping's option or
 * change a mapping that has it, and a superuser must own the server
 * (server_spec.c).  Names reach the command in its environment, so the shell
 * does not interpret them.
 *
 * A password is kept with the pool's conninfo for pgpool_ext.password_lifetime,
 * or until a remote server refuses it.  Its end does not affect open
 * connections.
 *
 * For each version of a pool's conninfo at most one command runs at a time, and
 * all logins with this version share its result.  Each login has its own
 * deadline, and the command is killed after the latest of them.  A thread
 * starts it and reads its output (task_queue.c, which also limits their number:
 * after a restart all pools need passwords at once).
 *
 *-------------------------------------------------------------------------
 */
#include "worker/conninfo.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/ilist.h"

#include "base/settings.h"
#include "worker/worker.h"

/* Bytes of a password; PostgreSQL accepts less than 64 kB. */
#define PASSWORD_MAX (32 * 1024)

#define OWN_VARIABLES 7

#define SPAWN_FLAGS \
	(POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF)

typedef struct Request
{
	PgpxTask	task;
	dlist_node	node;			/* in requests */
	PgpxConninfoKey key;
	NameData	server;			/* for the log */
	NameData	database;
	PgpxPasswordEnded ended;
	PgpxTime	requested_at;
	int64		timeout_ms;		/* from the start */
	int64		started_ms;		/* monotonic_ms; 0: it has not started */
	int64		until_ms;		/* when the command is killed; other logins may
								 * extend it */
	char	   *command;
	char	  **environment;	/* the last OWN_VARIABLES are malloc'ed */
	pthread_mutex_t mutex;		/* protects the times and pid */
	pid_t		pid;			/* of the command; 0: it does not run */
	char		error[128];		/* empty: no error */
	size_t		len;
	char		output[PASSWORD_MAX + 3];	/* "\r\n", and one byte too many */
} Request;

static dlist_head requests = DLIST_STATIC_INIT(requests);

/* The soft limit of open files for commands, as an argument of "ulimit". */
static char nofile[32] = "unlimited";

/* The command that issued the passwords that are known. */
static char *used_command = NULL;

/* ------------------------------------------------------------------------
 * In the thread
 * ------------------------------------------------------------------------
 */

static int64
monotonic_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Return the time until the command is killed, in ms. */
static int64
time_left(Request *request)
{
	int64		until;

	pthread_mutex_lock(&request->mutex);
	until = request->until_ms;
	pthread_mutex_unlock(&request->mutex);
	return until - monotonic_ms();
}

static void
set_error(Request *request, const char *text)
{
	strlcpy(request->error, text, sizeof(request->error));
}

static void
set_timeout_error(Request *request)
{
	snprintf(request->error, sizeof(request->error),
			 "The password command did not end within connect_timeout.");
}

/*
 * Start the command in a process group of its own, with standard output on a
 * descriptor, and without the other descriptors of this process.  (musl closes
 * only those that are close-on-exec, which leaves some of the server's.)
 * Standard error remains the server's log.  The first shell restores the limit of open
 * files, which the worker has raised and posix_spawn cannot change.
 */
static bool
spawn(Request *request, int out)
{
	char	   *argv[] = {"sh", "-c", "ulimit -S -n \"$1\"; exec /bin/sh -c \"$0\"",
					request->command, nofile, NULL};
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t	signals;
	int			rc;

	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attr);
	(void) posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
											O_RDONLY, 0);
	(void) posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
#ifdef __GLIBC__
	(void) posix_spawn_file_actions_addclosefrom_np(&actions,
													STDERR_FILENO + 1);
#endif
	(void) posix_spawnattr_setflags(&attr, SPAWN_FLAGS);
	(void) posix_spawnattr_setpgroup(&attr, 0);
	sigemptyset(&signals);
	(void) posix_spawnattr_setsigmask(&attr, &signals);
	sigfillset(&signals);
	(void) posix_spawnattr_setsigdefault(&attr, &signals);

	pthread_mutex_lock(&request->mutex);
	rc = posix_spawn(&request->pid, "/bin/sh", &actions, &attr, argv,
					 request->environment);
	if (rc != 0)
		request->pid = 0;
	pthread_mutex_unlock(&request->mutex);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	if (rc != 0)
		snprintf(request->error, sizeof(request->error),
				 "The password command could not be started (error %d).", rc);
	return rc == 0;
}

/*
 * Read the output up to its end.  Return false, with an error, if it is too
 * long, or does not end in time.
 */
static bool
read_output(Request *request, int in)
{
	while (request->len < sizeof(request->output))
	{
		struct pollfd ready = {.fd = in, .events = POLLIN};
		int64		left = time_left(request);
		ssize_t		n;

		if (left > 0 && poll(&ready, 1, (int) Min(left, PG_INT32_MAX)) == 0)
			continue;			/* the time may have been extended */
		if (left <= 0)
		{
			set_timeout_error(request);
			return false;
		}
		n = read(in, request->output + request->len,
				 sizeof(request->output) - request->len);
		if (n == 0)
			return true;
		if (n > 0)
			request->len += n;
		else if (errno != EINTR && errno != EAGAIN)
		{
			set_error(request, "The output of the password command could not be read.");
			return false;
		}
	}
	snprintf(request->error, sizeof(request->error),
			 "The password command printed more than %d bytes.", PASSWORD_MAX);
	return false;
}

/*
 * Wait for the end of the command.  It may continue after the end of its
 * output.  Return its status, or -1 if it does not end in time.  killed: wait
 * without a limit.
 */
static int
await_end(Request *request, bool killed)
{
	for (;;)
	{
		int			status = -1;
		pid_t		pid;

		pthread_mutex_lock(&request->mutex);
		pid = waitpid(request->pid, &status, WNOHANG);
		if (pid != 0)
			request->pid = 0;
		pthread_mutex_unlock(&request->mutex);
		if (pid != 0)
			return status;
		if (!killed && time_left(request) <= 0)
			return -1;
		usleep(1000);
	}
}

/* Kill all processes of the command. */
static void
kill_command(Request *request)
{
	pthread_mutex_lock(&request->mutex);
	if (request->pid > 0)
		(void) kill(-request->pid, SIGKILL);
	pthread_mutex_unlock(&request->mutex);
}

/* Remove the line end, and check that the output is one line. */
static void
check_output(Request *request)
{
	if (request->len > 0 && request->output[request->len - 1] == '\n')
		request->len--;
	if (request->len > 0 && request->output[request->len - 1] == '\r')
		request->len--;
	request->output[request->len] = '\0';
	if (request->len == 0)
		set_error(request, "The password command printed no password.");
	else if (request->len > PASSWORD_MAX)
		snprintf(request->error, sizeof(request->error),
				 "The password command printed more than %d bytes.",
				 PASSWORD_MAX);
	else if (strlen(request->output) != request->len ||
			 strpbrk(request->output, "\r\n") != NULL)
		set_error(request, "The password command printed more than one line.");
}

static void
run_command(PgpxTask *task)
{
	Request    *request = (Request *) task;
	int			out[2];
	bool		complete;
	int			status;

	pthread_mutex_lock(&request->mutex);
	request->started_ms = monotonic_ms();
	request->until_ms = request->started_ms + request->timeout_ms;
	pthread_mutex_unlock(&request->mutex);
	if (pipe2(out, O_CLOEXEC) < 0)
	{
		set_error(request, "The pool worker could not create a pipe for the password command.");
		return;
	}
	if (!spawn(request, out[1]))
	{
		close(out[0]);
		close(out[1]);
		return;
	}
	close(out[1]);
	complete = read_output(request, out[0]);
	close(out[0]);
	status = complete ? await_end(request, false) : -1;
	if (status == -1)
	{
		if (complete)
			set_timeout_error(request);
		kill_command(request);
		(void) await_end(request, true);
	}
	else if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		check_output(request);
	else if (WIFEXITED(status))
		snprintf(request->error, sizeof(request->error),
				 "The password command ended with exit code %d.",
				 WEXITSTATUS(status));
	else
		snprintf(request->error, sizeof(request->error),
				 "The password command was terminated by signal %d.",
				 WTERMSIG(status));
}

/* ------------------------------------------------------------------------
 * In the event loop
 * ------------------------------------------------------------------------
 */

static void finish_command(PgpxTask *task, PgpxTaskEnd end);

/* Wipe and free the password of a pool. */
static void
forget_password(PgpxWorkerPool *wp)
{
	if (wp->password == NULL)
		return;
	explicit_bzero(wp->password, strlen(wp->password));
	pfree(wp->password);
	wp->password = NULL;
}

/* Forget all passwords if another command is set now. */
static void
forget_if_command_changed(void)
{
	if (used_command != NULL &&
		strcmp(used_command, pgpx_password_command) == 0)
		return;
	for (int i = 0; i < pgpx_pools_end(); i++)
		forget_password(&pgpx_wpools[i]);
	free(used_command);
	used_command = strdup(pgpx_password_command);
}

bool
pgpx_password_is_needed(int pool, PgpxTime since)
{
	PgpxWorkerPool *wp = &pgpx_wpools[pool];
	int64		lifetime = (int64) pgpx_password_lifetime * 1000;

	if (!wp->conninfo.password_command)
		return false;
	forget_if_command_changed();
	return wp->password == NULL ||
		(wp->password_at < since &&
		 pgpx_now() >= wp->password_requested_at + lifetime);
}

bool
pgpx_password_refused(int pool, PgpxTime used_at, PgpxTime since)
{
	PgpxWorkerPool *wp = &pgpx_wpools[pool];

	if (!wp->conninfo.password_command)
		return false;
	if (wp->password_at == used_at)
		forget_password(wp);
	return used_at < since;
}

static void
free_request(Request *request)
{
	size_t		n = 0;

	explicit_bzero(request->output, sizeof(request->output));
	while (request->environment != NULL && request->environment[n] != NULL)
		n++;
	for (size_t i = n < OWN_VARIABLES ? 0 : n - OWN_VARIABLES; i < n; i++)
		free(request->environment[i]);
	free(request->environment);
	free(request->command);
	pthread_mutex_destroy(&request->mutex);
	free(request);
}

/* Return "name=value", malloc'ed; NULL if out of memory. */
static char *
make_variable(const char *name, const char *value)
{
	char	   *text;

	return asprintf(&text, "%s=%s", name, value != NULL ? value : "") < 0 ?
		NULL : text;
}

/*
 * Make the environment of the command: that of the worker, and the variables
 * that describe the connection.  Return false if out of memory.
 */
static bool
make_environment(Request *request, const PgpxConninfo *ci,
				 const char *local_user)
{
	const char *host = pgpx_conninfo_param(ci, "host");
	char	   *own[OWN_VARIABLES] = {
		make_variable("PGPOOL_DATABASE", NameStr(request->database)),
		make_variable("PGPOOL_SERVER", NameStr(request->server)),
		make_variable("PGPOOL_LOCAL_USER", local_user),
		make_variable("PGPOOL_HOST", host != NULL ? host :
				 pgpx_conninfo_param(ci, "hostaddr")),
		make_variable("PGPOOL_PORT", pgpx_conninfo_param(ci, "port")),
		make_variable("PGPOOL_DBNAME", pgpx_conninfo_param(ci, "dbname")),
		make_variable("PGPOOL_USER", pgpx_conninfo_param(ci, "user")),
	};
	size_t		n = 0;
	bool		complete = true;

	while (environ[n] != NULL)
		n++;
	request->environment = calloc(n + OWN_VARIABLES + 1, sizeof(char *));
	for (int i = 0; i < OWN_VARIABLES; i++)
		complete = complete && own[i] != NULL;
	if (!complete || request->environment == NULL)
	{
		for (int i = 0; i < OWN_VARIABLES; i++)
			free(own[i]);
		free(request->environment);
		request->environment = NULL;
		return false;
	}
	memcpy(request->environment, environ, n * sizeof(char *));
	memcpy(request->environment + n, own, sizeof(own));
	return true;
}

/*
 * Let a command run for at least this time, in ms.  A command that has run for
 * longer than any login waits is not extended: if it hangs it must end,
 * although further logins request it again and again.
 */
static void
extend_deadline(Request *request, int64 timeout_ms)
{
	int64		now_ms = monotonic_ms();

	pthread_mutex_lock(&request->mutex);
	request->timeout_ms = Max(request->timeout_ms, timeout_ms);
	if (now_ms - request->started_ms < request->timeout_ms)
		request->until_ms = Max(request->until_ms, now_ms + timeout_ms);
	pthread_mutex_unlock(&request->mutex);
}

const char *
pgpx_password_request(int index, int64 timeout_ms, PgpxPasswordEnded ended)
{
	const PgpxWorkerPool *wp = &pgpx_wpools[index];
	PgpxConninfoKey key = {index, wp->pool_id, wp->conninfo.version};
	PgpxPool   *pool = &pgpx_pools[index];
	NameData	local_user;
	Request    *request;
	dlist_iter	iter;

	dlist_foreach(iter, &requests)
	{
		request = dlist_container(Request, node, iter.cur);
		if (request->key.pool != index ||
			pgpx_conninfo_has_changed(index, request->key.pool_id,
									  request->key.version))
			continue;
		extend_deadline(request, Max(timeout_ms, 1));
		return NULL;
	}
	if (pgpx_password_command[0] == '\0')
		return "The setting \"pgpool_ext.password_command\" is empty.";
	request = calloc(1, sizeof(*request));
	if (request == NULL)
		return "The pool worker is out of memory.";
	pthread_mutex_init(&request->mutex, NULL);
	request->task.run = run_command;
	request->task.ended = finish_command;
	request->ended = ended;
	request->key = key;
	request->requested_at = pgpx_now();
	request->timeout_ms = Max(timeout_ms, 1);
	LWLockAcquire(pool->lock, LW_SHARED);
	request->server = pool->server_name;
	request->database = pool->database_name;
	local_user = pool->user_name;
	LWLockRelease(pool->lock);
	request->command = strdup(pgpx_password_command);
	if (request->command == NULL ||
		!make_environment(request, &wp->conninfo, NameStr(local_user)))
	{
		free_request(request);
		return "The pool worker is out of memory.";
	}
	dlist_push_tail(&requests, &request->node);
	pgpx_task_submit(&request->task, PGPX_TASK_PASSWORD, &key);
	return NULL;
}

/*
 * Store the password of a request that has ended, unless the conninfo or the
 * command has changed meanwhile.  The waiting logins then request another one.
 */
static void
store_password(const Request *request)
{
	const PgpxConninfoKey *key = &request->key;
	PgpxWorkerPool *wp = &pgpx_wpools[key->pool];

	if (wp->cxt == NULL ||
		pgpx_conninfo_has_changed(key->pool, key->pool_id, key->version) ||
		strcmp(request->command, pgpx_password_command) != 0)
		return;
	forget_if_command_changed();
	forget_password(wp);
	wp->password = MemoryContextStrdup(wp->cxt, request->output);
	wp->password_requested_at = request->requested_at;
	wp->password_at = pgpx_now();
}

/* The command has ended: store the password or log the error, and answer. */
static void
finish_command(PgpxTask *task, PgpxTaskEnd end)
{
	Request    *request = (Request *) task;

	dlist_delete(&request->node);
	if (end == PGPX_TASK_NO_THREAD)
		set_error(request, "The pool worker could not start a thread for the password command.");
	if (request->error[0] == '\0')
		store_password(request);
	else
		ereport(LOG,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("pgpool_ext could not get a password for server \"%s\" of database \"%s\"",
						NameStr(request->server), NameStr(request->database)),
				 errdetail_internal("%s", request->error)));
	request->ended(&request->key,
				   request->error[0] != '\0' ? request->error : NULL);
	free_request(request);
}

void
pgpx_password_note_limit(uint64 limit)
{
	snprintf(nofile, sizeof(nofile), UINT64_FORMAT, limit);
}

void
pgpx_password_kill_commands(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &requests)
		kill_command(dlist_container(Request, node, iter.cur));
}
