# Runs the jobs of a test run from one queue, and writes their counts to a file:
#
#   jobs.pl --counts=FILE --logs=FOLDER <LIST
#
# Each line of the list is one job: SUITE NAME FORM SCRIPT [alone].  The output of the
# script goes to FOLDER/SUITE.NAME.log, from which the counts are read.  FORM tells how:
#
#   tap      the lines of the Test Anything Protocol
#   regress  the lines of pg_regress
#   runner   the last line is "N passed, N failed[, N skipped]"
#   status   the exit status; "NAME: skipped" in the output is a skip
#
# Most jobs wait for servers most of the time.  So more jobs run than the machine has
# processors, as long as processes do not queue for a processor.  Jobs that are "alone"
# run after all others, one at a time.  Each line of the file is: SUITE PASSED FAILED
# SKIPPED.  The exit status is 0 if nothing failed.
use strict;
use warnings;

use Getopt::Long;
use IO::Handle;
use List::Util qw(max);
use POSIX qw(WNOHANG setpgid);
use TAP::Parser;
use Time::HiRes qw(time usleep);

# A job that runs for longer has failed.
use constant LIMIT => 1800;

my ($counts, $logs);
GetOptions('counts=s' => \$counts, 'logs=s' => \$logs) or exit 2;
STDOUT->autoflush(1);

my $processors = grep { /^processor\b/ } do { open my $f, '<', '/proc/cpuinfo'; $f ? <$f> : () };
$processors = max(1, $processors);
my (@queue, @alone, %running, %sum, @order);
my ($failures, $done, $total) = ('', 0, 0);

while (my $line = <STDIN>)
{
	my ($suite, $name, $form, $script, $alone) = split ' ', $line;
	my $job = { suite => $suite, name => $name, form => $form, script => $script };

	push @{ $alone ? \@alone : \@queue }, $job;
	push @order, $suite unless $sum{$suite};
	$sum{$suite} //= [ 0, 0, 0 ];
	$total++;
}

# The number of processes that run or wait for a processor, averaged over about a second.
my $busy = 0;

sub sample_load
{
	open my $stat, '<', '/proc/stat' or return;
	my ($runnable) = map { /^procs_running (\d+)/ ? $1 - 1 : () } <$stat>;

	$busy += (($runnable // 0) - $busy) / 20;
	return;
}

sub log_of
{
	my ($job) = @_;

	return "$logs/$job->{suite}." . ($job->{name} =~ s{/}{.}gr) . '.log';
}

sub start
{
	my ($job) = @_;
	my $pid = fork // die "fork: $!\n";

	if ($pid == 0)
	{
		setpgid(0, 0);
		open STDIN, '<', '/dev/null';
		open STDOUT, '>', log_of($job) or die log_of($job) . ": $!\n";
		open STDERR, '>&', \*STDOUT;
		exec 'bash', $job->{script} or die "exec: $!\n";
	}
	setpgid($pid, $pid);
	$job->{began} = time;
	$running{$pid} = $job;
	return;
}

sub slurp
{
	my ($file) = @_;

	open my $in, '<', $file or return '';
	local $/ = undef;
	return scalar(<$in>) // '';
}

# Returns the numbers of passed, failed and skipped assertions of a job.
sub counts_of
{
	my ($job, $status) = @_;
	my $said = slurp(log_of($job));
	my ($passed, $failed, $skipped) = (0, 0, 0);

	if ($job->{form} eq 'tap')
	{
		# (a test that has died at once has printed nothing, which the parser refuses)
		my $parser = TAP::Parser->new({ tap => $said =~ /\S/ ? $said : "1..1\n" });

		$parser->run;
		$skipped = $parser->skipped + (defined $parser->skip_all ? 1 : 0);
		$failed = $parser->failed;
		$passed = $parser->passed - $parser->skipped;
		$failed = 1 if !$failed && ($status != 0 || $parser->has_problems);
	}
	elsif ($job->{form} eq 'regress')
	{
		# the lines are "test x ... ok" up to 15, "ok 1 - x" from 16 on
		$passed = () = $said =~ /\.\.\. ok|^ok \d+/mg;
		$failed = () = $said =~ /\.\.\. FAILED|^not ok \d+/mg;
	}
	elsif ($job->{form} eq 'runner')
	{
		($passed, $failed, $skipped) = ($1, $2, $3 // 0)
		  if $said =~ /^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*\z/m;
		$failed = 1 if $passed + $failed + $skipped == 0;
	}
	elsif ($status == 0)
	{
		$said =~ /^\S+: skipped/m ? $skipped++ : $passed++;
	}
	$failed = 1 if $status != 0 && !$failed;
	return ($passed, $failed, $skipped);
}

# The lines of a log that show the failure, shortened.
sub excerpt
{
	my ($job) = @_;
	my @lines = split /\n/, slurp(log_of($job));
	my @found;

	foreach my $i (0 .. $#lines)
	{
		push @found, @lines[ $i .. ($i + 4 > $#lines ? $#lines : $i + 4) ]
		  if $lines[$i] =~ /Failed test|FAILED|^not ok|^[-+] /;
		last if @found > 40;
	}
	@found = @lines[ max(0, $#lines - 9) .. $#lines ] if !@found;
	return join '', map { '  | ' . substr($_, 0, 200) . "\n" } @found;
}

sub finish
{
	my ($pid, $status) = @_;
	my $job = delete $running{$pid};
	my @counts = counts_of($job, $status);

	$sum{ $job->{suite} }[$_] += $counts[$_] foreach 0 .. 2;
	$done++;
	printf "%-4s %-11s %-44s %5d passed%s%s %6.1f s  (%d/%d)\n",
	  $counts[1] ? 'FAIL' : 'ok', $job->{suite}, $job->{name}, $counts[0],
	  $counts[1] ? ", $counts[1] failed" : '', $counts[2] ? ", $counts[2] skipped" : '',
	  time - $job->{began}, $done, $total;
	if ($counts[1])
	{
		my $excerpt = excerpt($job);

		print $excerpt;
		$failures .= "# $job->{suite} $job->{name}: $counts[1] failed\n$excerpt";
	}
	return;
}

sub end_all
{
	kill 'TERM', map { -$_ } keys %running;
	for (1 .. 50)
	{
		while ((my $pid = waitpid(-1, WNOHANG)) > 0) { delete $running{$pid}; }
		last if !%running;
		usleep(100_000);
	}
	kill 'KILL', map { -$_ } keys %running;
	exit 143;
}

$SIG{TERM} = $SIG{INT} = $SIG{HUP} = \&end_all;

# a script that has ended may have left processes: servers have groups of their own
my $last_start = 0;

while (@queue || @alone || %running)
{
	my $now = time;

	sample_load();
	while ((my $pid = waitpid(-1, WNOHANG)) > 0)
	{
		my $status = $?;

		finish($pid, $status) if $running{$pid};
	}
	foreach my $pid (grep { $now - $running{$_}{began} > LIMIT } keys %running)
	{
		open my $log, '>>', log_of($running{$pid});
		print $log "FAILED: the job did not end within " . LIMIT . " s\n" if $log;
		kill 'KILL', -$pid;
	}
	if (@queue)
	{
		my $jobs = keys %running;

		if ($jobs < 2 * $processors
			|| ($jobs < 8 * $processors && $busy < 2 * $processors && $now - $last_start > 0.3))
		{
			start(shift @queue);
			$last_start = $now;
		}
	}
	elsif (@alone && !%running)
	{
		start(shift @alone);
	}
	usleep(50_000);
}

open my $out, '>', $counts or die "could not write $counts: $!\n";
print $out "$_ @{ $sum{$_} }\n" foreach @order;
close $out;
open $out, '>', "$counts.failures" or die "could not write $counts.failures: $!\n";
print $out $failures;
close $out;
exit($failures eq '' ? 0 : 1);
