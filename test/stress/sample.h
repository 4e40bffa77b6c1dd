/*-------------------------------------------------------------------------
 *
 * sample.h
 *	  Samples of a soak test: numbers that must not grow over time.
 *
 * A sample is taken while all sessions are idle.  The first ones do not count, because
 * caches fill.  Of the others the last third must not exceed the first one.  The memory
 * of a process must not grow either, because its exit would hide a leak.
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

#endif							/* SAMPLE_H */
