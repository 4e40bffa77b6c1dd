/*-------------------------------------------------------------------------
 *
 * sample.h
 *	  Samples of a soak test: numbers that must not grow over time.
 *
 * A sample is taken while all sessions are idle.  The first ones do not count, because
 * caches fill.  Of the others the last third must not exceed the first one.  The memory
 * of a process must not grow either, because its exit would hide a leak.
 *
 * This detects leaks of short-lived processes.  Slow leaks are detected in long-lived
 * ones (Life), by their minimum in a third of the time: memory in use for a moment is not
 * growth.  malloc may also keep half a MB of freed memory for minutes, so the median
 * session's growth counts.  Without leaks it was up to 132 kB in runs of 6 to 13 minutes,
 * and the worker's up to 144 kB, while memory contexts did not grow: malloc takes some
 * minutes until its arenas are large enough.
 *
 * Each open connection over TLS adds 182 kB to the worker, which is OpenSSL's memory.  So
 * a worker that has more of them than before may grow, but not by more than RELAYS_ADDED
 * of them need.  Connections that were closed leave nothing: 15,000 logins over TLS and
 * 27,000 statements with cancels added 12 kB to the worker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES 100000
#define SAMPLES_SKIPPED 3
#define PROCESS_GROWTH 4096		/* kB, of one process */

/* Of long-lived processes */
#define LIFE_SAMPLES 5			/* at least, in a third */
#define LIFE_SLOPE 1			/* kB a minute, in addition to: */
#define SESSION_NOISE 192
#define WORKER_NOISE 192
#define RELAY_MEMORY 192		/* of the worker, for a connection over TLS */
#define RELAYS_ADDED 4			/* at most */
#define SESSION_DESCRIPTORS 8	/* sockets are cached for open connections */
#define WORKER_DESCRIPTORS 2

typedef struct Series
{
	const char *what;
	long		slack;			/* permitted growth beyond a tenth */
	long		values[SAMPLES];
	int			n;
} Series;

/* A running process: its samples, and its memory when they began to count. */
typedef struct Process
{
	int			pid;
	int			samples;
	long		memory;
} Process;

/*
 * A process that runs to the end: samples of the quiet rounds, of which the first quarter
 * does not count.
 */
typedef struct Life
{
	int			pid;
	double		since;
	double		at[SAMPLES];
	long		memory[SAMPLES];
	long		descriptors[SAMPLES];
	long		relays[SAMPLES];	/* connections over TLS; 0 in sessions */
	int			n;
} Life;

/* Private memory in kB; -1 if it has exited. */
static long
memory_of(int pid)
{
	char		line[256];
	long		kb = -1;
	FILE	   *file;

	snprintf(line, sizeof(line), "/proc/%d/status", pid);
	file = fopen(line, "r");
	if (file == NULL)
		return -1;
	while (fgets(line, sizeof(line), file) != NULL)
		if (sscanf(line, "RssAnon: %ld", &kb) == 1)
			break;
	fclose(file);
	return kb;
}

static long
descriptors_of(int pid)
{
	char		path[64];
	long		n = -2;			/* . and .. */
	DIR		   *folder;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	folder = opendir(path);
	if (folder == NULL)
		return -1;
	while (readdir(folder) != NULL)
		n++;
	closedir(folder);
	return n;
}

static void
add_sample(Series *series, long value)
{
	if (value >= 0 && series->n < SAMPLES)
		series->values[series->n++] = value;
}

/* The growth of the process since its samples count, in kB. */
static long
growth_of(Process *process, int pid, long memory)
{
	if (process->pid != pid)
		*process = (Process) {.pid = pid};
	if (memory < 0)
		return 0;
	if (process->samples++ < SAMPLES_SKIPPED)
		process->memory = memory;
	return memory - process->memory;
}

static double
mean(const long *values, int n)
{
	double		sum = 0;

	for (int i = 0; i < n; i++)
		sum += values[i];
	return n > 0 ? sum / n : 0;
}

/* Print the first and the last value; returns whether it grows. */
static bool
grows(const Series *series)
{
	int			n = series->n - SAMPLES_SKIPPED;
	const long *values = series->values + SAMPLES_SKIPPED;
	double		first;
	double		last;

	if (n < 3)
	{
		printf("soak: %-40s too few samples: %d\n", series->what, series->n);
		return true;
	}
	first = mean(values, n / 3);
	last = mean(values + n - n / 3, n / 3);
	printf("soak: %-40s %10.1f %10.1f  (%d samples)%s\n", series->what, first, last,
		   series->n, last > first * 1.1 + series->slack ? " GROWS" : "");
	return last > first * 1.1 + series->slack;
}

/* Another process starts with no samples. */
static void
add_life(Life *life, int pid, double when, long descriptors, long relays)
{
	long		memory = memory_of(pid);

	if (life->pid != pid)
	{
		life->pid = pid;
		life->since = when;
		life->n = 0;
	}
	if (memory < 0 || descriptors < 0 || life->n == SAMPLES)
		return;
	life->at[life->n] = when;
	life->memory[life->n] = memory;
	life->descriptors[life->n] = descriptors;
	life->relays[life->n++] = relays;
}

/* The position of the least value. */
static int
least_at(const long *values, int n)
{
	int			at = 0;

	for (int i = 1; i < n; i++)
		if (values[i] < values[at])
			at = i;
	return at;
}

static long
greatest(const long *values, int n)
{
	long		max = values[0];

	for (int i = 1; i < n; i++)
		if (values[i] > max)
			max = values[i];
	return max;
}

/* The growth between the first third of the counted samples and the last one. */
typedef struct Growth
{
	double		minutes;
	long		memory;			/* kB */
	long		descriptors;
	long		relays;			/* growth of their maximum so far, see life_growth */
} Growth;

/* Print its age and growth; false: too few samples. */
static bool
life_growth(const Life *life, const char *what, double until, double at_least,
			Growth *growth)
{
	int			skipped = life->n / 4;
	int			third = (life->n - skipped) / 3;
	int			last = life->n - third;
	int			from;
	int			to;
	long		memory;
	long		descriptors;

	if (until - life->since < at_least || third < LIFE_SAMPLES)
	{
		printf("soak: %-10s lived for %.0f s of %.0f, %d samples: too few\n", what,
			   life->n > 0 ? until - life->since : 0, at_least, life->n);
		return false;
	}
	growth->minutes = (life->at[last] - life->at[skipped]) / 60;
	from = skipped + least_at(life->descriptors + skipped, third);
	to = last + least_at(life->descriptors + last, third);
	descriptors = life->descriptors[from];
	growth->descriptors = life->descriptors[to] - descriptors;

	/*
	 * malloc may keep the memory of connections that are closed, so the maximum of relays
	 * until then counts.  There may have been more of them during faults.
	 */
	from = skipped + least_at(life->memory + skipped, third);
	to = last + least_at(life->memory + last, third);
	memory = life->memory[from];
	growth->memory = life->memory[to] - memory;
	growth->relays = greatest(life->relays, to + 1) - greatest(life->relays, from + 1);
	printf("soak: %-10s lived for %.0f s; in %.1f minutes %ld kB became %ld, %ld descriptors %ld\n",
		   what, until - life->since, growth->minutes, memory, memory + growth->memory,
		   descriptors, descriptors + growth->descriptors);
	return true;
}

static int
compare_longs(const void *a, const void *b)
{
	long		x = *(const long *) a;
	long		y = *(const long *) b;

	return (x > y) - (x < y);
}

/* Whether the median of this number of processes of a kind has grown. */
static bool
lives_grow(const Growth *growths, int n, const char *what, long noise,
		   long more_descriptors)
{
	long		memory[n];
	long		descriptors[n];
	long		allowed;
	bool		bad;

	for (int i = 0; i < n; i++)
	{
		memory[i] = growths[i].memory;
		descriptors[i] = growths[i].descriptors;
	}
	qsort(memory, n, sizeof(long), compare_longs);
	qsort(descriptors, n, sizeof(long), compare_longs);
	allowed = noise + LIFE_SLOPE * growths[0].minutes;
	bad = memory[n / 2] > allowed || descriptors[n / 2] > more_descriptors;
	printf("soak: %-10s that lived on: %+ld kB of %ld, %+ld descriptors of %ld%s\n", what,
		   memory[n / 2], allowed, descriptors[n / 2], more_descriptors,
		   bad ? " GROWS" : "");
	return bad;
}

#endif							/* SAMPLE_H */
