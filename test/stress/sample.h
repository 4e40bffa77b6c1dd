/*-------------------------------------------------------------------------
 *
 * sample.h
 *	  What a soak looks at: numbers that must not grow as time goes by.
 *
 * A sample is taken when nobody does anything.  The first ones do not count: caches
 * fill.  Of the others the last third must not be above the first one.  A process's
 * own memory must not grow either, lest its end hide what it has lost.
 *
 * That sees what processes lose while many come and go.  What one loses slowly is seen
 * in those that live long (Life), of which the least that they had in a third of the
 * time counts: what is in use for a moment is no growth.  A session may also keep half
 * a MB for minutes that it has freed, as malloc has it; so it is the median session's
 * growth that counts.  Where nothing is lost that was up to 132 kB in runs of 6 to 13
 * minutes, and the worker's up to 144 kB, and memory contexts stayed as they were:
 * it takes some minutes until malloc has room for whatever comes.
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

/* Of those that live long */
#define LIFE_SAMPLES 5			/* at least, in a third */
#define LIFE_SLOPE 1			/* kB a minute, beside what is no growth: */
#define SESSION_NOISE 192
#define WORKER_NOISE 192
#define SESSION_DESCRIPTORS 8	/* sockets are kept for connections that are there */
#define WORKER_DESCRIPTORS 2

typedef struct Series
{
	const char *what;
	long		slack;			/* what may come on top of a tenth */
	long		values[SAMPLES];
	int			n;
} Series;

/* A process that is there: its samples, and its memory when they began to count. */
typedef struct Process
{
	int			pid;
	int			samples;
	long		memory;
} Process;

/*
 * A process that is to live to the end: samples of the quiet rounds, of which the first
 * quarter does not count.
 */
typedef struct Life
{
	int			pid;
	double		since;
	double		at[SAMPLES];
	long		memory[SAMPLES];
	long		descriptors[SAMPLES];
	int			n;
} Life;

/* Memory of its own in kB; -1 if it has gone. */
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

/* How much the process has grown since its samples count, in kB. */
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

/* Say what it was at first and at last; does it grow? */
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

/* Another process is another life. */
static void
add_life(Life *life, int pid, double when, long descriptors)
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
	life->descriptors[life->n++] = descriptors;
}

static long
least(const long *values, int n)
{
	long		min = values[0];

	for (int i = 1; i < n; i++)
		if (values[i] < min)
			min = values[i];
	return min;
}

/* By how much it has grown between the first third of what counts and the last one. */
typedef struct Growth
{
	double		minutes;
	long		memory;			/* kB */
	long		descriptors;
} Growth;

/* Say how old it is and how it has grown; false: it is too young to tell. */
static bool
life_growth(const Life *life, const char *what, double until, double at_least,
			Growth *growth)
{
	int			skipped = life->n / 4;
	int			third = (life->n - skipped) / 3;
	int			last = life->n - third;
	long		memory;
	long		descriptors;

	if (until - life->since < at_least || third < LIFE_SAMPLES)
	{
		printf("soak: %-10s lived for %.0f s of %.0f, %d samples: too few\n", what,
			   life->n > 0 ? until - life->since : 0, at_least, life->n);
		return false;
	}
	memory = least(life->memory + skipped, third);
	descriptors = least(life->descriptors + skipped, third);
	growth->minutes = (life->at[last] - life->at[skipped]) / 60;
	growth->memory = least(life->memory + last, third) - memory;
	growth->descriptors = least(life->descriptors + last, third) - descriptors;
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

/* Have so many of a kind grown, the median of them? */
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
