/*-------------------------------------------------------------------------
 *
 * password.c
 *	  Passwords that the password command prints.
 *
 * Passwords that an identity service issues are valid for minutes only, so they
 * cannot be options of a user mapping.  If a mapping has
 * use_password_command, the worker runs the command of the setting
 * pgpool_ext.password_command before it opens a connection, and logs in with
 * the line that the command prints.
 *
 * It is a program and not an SQL function because the tools of these services
 * are programs, and because neither the worker nor the catalog reader may
 * execute SQL: no user can then replace what is executed.
 *
 * Rights: the command can be set only in the server's configuration.  A
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
 * deadline, and the command is killed connect_timeout after its start.  A
 * thread starts it and reads its output.  task_queue.c limits the number of
 * threads, because after a restart all pools need passwords at once.
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
#include <unistd.h>

#include "lib/ilist.h"

#include "base/settings.h"
#include "worker/worker.h"

/* Bytes of a password; PostgreSQL accepts less than 64 kB. */
#define PASSWORD_MAX (32 * 1024)

#define SPAWN_FLAGS \
	(POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF)

/* A run of the command. */
typedef struct Command
{
	PgpxTask	task;
	dlist_node	node;			/* in commands */
	MemoryContext cxt;			/* holds all of it */
	PgpxConninfoKey key;
	NameData	server;			/* for the log */
	NameData	database;
	PgpxPasswordEnded ended;
	dlist_head	waiting;		/* the logins that wait for it */
	PgpxTime	requested_at;
	int64		timeout_ms;		/* from the start */
	PgpxTime	until;			/* then it is killed */
	char	   *text;
	char	  **environment;
	pthread_mutex_t mutex;		/* protects pid */
	pid_t		pid;			/* 0: it does not run */
	char		error[128];		/* empty: no error */
	size_t		len;
	char		output[PASSWORD_MAX + 3];	/* + "\r\n" + one byte of excess */
} Command;

static dlist_head commands = DLIST_STATIC_INIT(commands);

/* The soft limit of open files for commands, as an argument of "ulimit". */
static char nofile[32] = "unlimited";

/* The command that issued the passwords that are known. */
static char *used_command = NULL;

/* ------------------------------------------------------------------------
 * In the thread
 * ------------------------------------------------------------------------
 */

static void
set_error(Command *command, const char *text)
{
	strlcpy(command->error, text, sizeof(command->error));
}

#define NO_COMMAND "The setting \"pgpool_ext.password_command\" is empty."
#define TIMED_OUT "The password command did not end within connect_timeout."
#define TOO_LONG "The password command printed more than 32768 bytes."

/*
 * Start the command in a process group of its own.  Its standard output is the
 * descriptor "out", and its standard error remains the server's log.  It has no
 * other descriptors of this process, except on musl, where those of the server
 * without close-on-exec stay open.  The first shell restores the limit of open
 * files, which the worker has raised and posix_spawn cannot change.
 */
static bool
spawn(Command *command, int out)
{
	char	   *argv[] = {"sh", "-c", "ulimit -S -n \"$1\"; exec /bin/sh -c \"$0\"",
					command->text, nofile, NULL};
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

	pthread_mutex_lock(&command->mutex);
	rc = posix_spawn(&command->pid, "/bin/sh", &actions, &attr, argv,
					 command->environment);
	if (rc != 0)
		command->pid = 0;
	pthread_mutex_unlock(&command->mutex);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	if (rc != 0)
		snprintf(command->error, sizeof(command->error),
				 "The password command could not be started (error %d).", rc);
	return rc == 0;
}

/*
 * Read the output up to its end.  Return false, with an error, if it is too
 * long, or does not end in time.
 */
static bool
read_output(Command *command, int in)
{
	while (command->len < sizeof(command->output))
	{
		struct pollfd ready = {.fd = in, .events = POLLIN};
		int64		left_ms = (command->until - pgpx_now()) / 1000;
		ssize_t		n;

		if (left_ms <= 0 ||
			(n = poll(&ready, 1, (int) Min(left_ms, PG_INT32_MAX))) == 0)
		{
			set_error(command, TIMED_OUT);
			return false;
		}
		if (n > 0)
			n = read(in, command->output + command->len,
					 sizeof(command->output) - command->len);
		if (n == 0)
			return true;
		if (n > 0)
			command->len += n;
		else if (errno != EINTR && errno != EAGAIN)
		{
			set_error(command, "The output of the password command could not be read.");
			return false;
		}
	}
	set_error(command, TOO_LONG);
	return false;
}

/* Kill all processes of the command. */
static void
kill_command(Command *command)
{
	pthread_mutex_lock(&command->mutex);
	if (command->pid > 0)
		(void) kill(-command->pid, SIGKILL);
	pthread_mutex_unlock(&command->mutex);
}

/*
 * Wait for the end of the command, which may continue after the end of its
 * output, and kill it when its time is over.  Return its status.
 */
static int
await_end(Command *command)
{
	for (;;)
	{
		int			status = -1;
		pid_t		pid;

		pthread_mutex_lock(&command->mutex);
		pid = waitpid(command->pid, &status, WNOHANG);
		if (pid != 0)
			command->pid = 0;
		pthread_mutex_unlock(&command->mutex);
		if (pid != 0)
			return status;
		if (command->error[0] == '\0' && pgpx_now() >= command->until)
		{
			set_error(command, TIMED_OUT);
			kill_command(command);
		}
		usleep(1000);
	}
}

/* Remove the line end, and check that the output is one line. */
static void
check_output(Command *command)
{
	if (command->len > 0 && command->output[command->len - 1] == '\n')
		command->len--;
	if (command->len > 0 && command->output[command->len - 1] == '\r')
		command->len--;
	command->output[command->len] = '\0';
	if (command->len == 0)
		set_error(command, "The password command printed no password.");
	else if (command->len > PASSWORD_MAX)
		set_error(command, TOO_LONG);
	else if (strlen(command->output) != command->len ||
			 strpbrk(command->output, "\r\n") != NULL)
		set_error(command, "The password command printed more than one line.");
}

static void
run_command(PgpxTask *task)
{
	Command    *command = (Command *) task;
	int			out[2];
	int			status;

	command->until = pgpx_now() + command->timeout_ms * 1000;
	if (pipe2(out, O_CLOEXEC) < 0)
	{
		set_error(command, "The pool worker could not create a pipe for the password command.");
		return;
	}
	if (!spawn(command, out[1]))
	{
		close(out[0]);
		close(out[1]);
		return;
	}
	close(out[1]);
	if (!read_output(command, out[0]))
		kill_command(command);
	close(out[0]);
	status = await_end(command);
	if (command->error[0] != '\0')
		return;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		check_output(command);
	else if (WIFEXITED(status))
		snprintf(command->error, sizeof(command->error),
				 "The password command ended with exit code %d.",
				 WEXITSTATUS(status));
	else
		snprintf(command->error, sizeof(command->error),
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

static char *
make_variable(const char *name, const char *value)
{
	return psprintf("%s=%s", name, value != NULL ? value : "");
}

/*
 * Set the environment of the command: that of this process, and the variables
 * that describe the connection.
 */
static void
make_environment(Command *command, const PgpxConninfo *ci,
				 const char *local_user)
{
	const char *host = pgpx_conninfo_param(ci, "host");
	char	   *own[] = {
		make_variable("PGPOOL_DATABASE", NameStr(command->database)),
		make_variable("PGPOOL_SERVER", NameStr(command->server)),
		make_variable("PGPOOL_LOCAL_USER", local_user),
		make_variable("PGPOOL_HOST", host != NULL ? host :
				 pgpx_conninfo_param(ci, "hostaddr")),
		make_variable("PGPOOL_PORT", pgpx_conninfo_param(ci, "port")),
		make_variable("PGPOOL_DBNAME", pgpx_conninfo_param(ci, "dbname")),
		make_variable("PGPOOL_USER", pgpx_conninfo_param(ci, "user")),
		NULL,
	};
	size_t		n = 0;

	while (environ[n] != NULL)
		n++;
	command->environment = palloc(n * sizeof(char *) + sizeof(own));
	memcpy(command->environment, environ, n * sizeof(char *));
	memcpy(command->environment + n, own, sizeof(own));
}

/* Make a run of the command. */
static Command *
make_command(const PgpxConninfo *ci, const NameData *server,
			 const char *database, const NameData *local_user,
			 int64 timeout_ms)
{
	MemoryContext cxt = AllocSetContextCreate(TopMemoryContext,
											  "pgpool_ext password",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	Command    *command = palloc0(sizeof(*command));

	command->cxt = cxt;
	pthread_mutex_init(&command->mutex, NULL);
	command->task.run = run_command;
	command->requested_at = pgpx_now();
	command->timeout_ms = timeout_ms;
	command->server = *server;
	strlcpy(NameStr(command->database), database, NAMEDATALEN);
	command->text = pstrdup(pgpx_password_command);
	make_environment(command, ci, NameStr(*local_user));
	MemoryContextSwitchTo(old);
	return command;
}

/* Wipe and free a command. */
static void
free_command(Command *command)
{
	explicit_bzero(command->output, sizeof(command->output));
	pthread_mutex_destroy(&command->mutex);
	MemoryContextDelete(command->cxt);
}

const char *
pgpx_password_request(int index, dlist_node *login, PgpxPasswordEnded ended)
{
	const PgpxWorkerPool *wp = &pgpx_wpools[index];
	PgpxPool   *pool = &pgpx_pools[index];
	PgpxPool	copy;
	Command    *command;
	dlist_iter	iter;

	dlist_foreach(iter, &commands)
	{
		command = dlist_container(Command, node, iter.cur);
		if (command->key.pool == index &&
			!pgpx_conninfo_has_changed(command->key))
		{
			dlist_push_tail(&command->waiting, login);
			return NULL;
		}
	}
	if (pgpx_password_command[0] == '\0')
		return NO_COMMAND;
	LWLockAcquire(pool->lock, LW_SHARED);
	copy = *pool;
	LWLockRelease(pool->lock);
	command = make_command(&wp->conninfo, &copy.server_name,
						   NameStr(copy.database_name), &copy.user_name,
						   copy.opts.connect_timeout);
	command->task.ended = finish_command;
	command->ended = ended;
	command->key.pool = index;
	command->key.pool_id = wp->pool_id;
	command->key.version = wp->conninfo.version;
	dlist_push_tail(&commands, &command->node);
	dlist_init(&command->waiting);
	dlist_push_tail(&command->waiting, login);
	pgpx_task_submit(&command->task, PGPX_TASK_PASSWORD, &command->key);
	return NULL;
}

PgpxTask *
pgpx_password_prepare(const PgpxConninfo *ci, const NameData *server,
					  const char *database, const NameData *local_user,
					  int64 timeout_ms)
{
	Command    *command = make_command(ci, server, database, local_user,
									   timeout_ms);

	if (command->text[0] == '\0')
		set_error(command, NO_COMMAND);
	return &command->task;
}

const char *
pgpx_password_run(PgpxTask *task, const char **error)
{
	Command    *command = (Command *) task;

	if (command->error[0] == '\0')
		run_command(task);
	*error = command->error[0] != '\0' ? command->error : NULL;
	return command->output;
}

void
pgpx_password_forget(PgpxTask *task)
{
	free_command((Command *) task);
}

/*
 * Store the password of a command that has ended, unless the conninfo or the
 * command has changed meanwhile.  The waiting logins then request another one.
 */
static void
store_password(const Command *command)
{
	PgpxWorkerPool *wp = &pgpx_wpools[command->key.pool];

	if (wp->cxt == NULL || pgpx_conninfo_has_changed(command->key) ||
		strcmp(command->text, pgpx_password_command) != 0)
		return;
	forget_if_command_changed();
	forget_password(wp);
	wp->password = MemoryContextStrdup(wp->cxt, command->output);
	wp->password_requested_at = command->requested_at;
	wp->password_at = pgpx_now();
}

/* The command has ended: store the password or log the error, and answer. */
static void
finish_command(PgpxTask *task, PgpxTaskEnd end)
{
	Command    *command = (Command *) task;

	dlist_delete(&command->node);
	if (end == PGPX_TASK_NO_THREAD)
		set_error(command, "The pool worker could not start a thread for the password command.");
	if (command->error[0] == '\0')
		store_password(command);
	else
		ereport(LOG,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("pgpool_ext could not get a password for server \"%s\" of database \"%s\"",
						NameStr(command->server), NameStr(command->database)),
				 errdetail_internal("%s", command->error)));
	while (!dlist_is_empty(&command->waiting))
		command->ended(dlist_pop_head_node(&command->waiting),
					   command->error[0] != '\0' ? command->error : NULL);
	free_command(command);
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

	dlist_foreach(iter, &commands)
		kill_command(dlist_container(Command, node, iter.cur));
}
