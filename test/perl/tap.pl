# Runs TAP files like prove, and writes the counts to a file:
#
#   tap.pl --counts=FILE [--jobs=N] [--exec=WORD ...] -- FILE ...
#
# --exec, once for each word, is the command that runs a file (default: perl). The
# counts are: passed, failed, skipped. A file that died or broke its plan without a
# failed assertion counts as one failure, a file that is skipped as a whole as one skip.
use strict;
use warnings;

use File::Basename;
use Getopt::Long;
use TAP::Harness;

my ($counts, $jobs, @exec);
$jobs = 1;
GetOptions(
	'counts=s' => \$counts,
	'jobs=i' => \$jobs,
	'exec=s' => \@exec) or exit 2;

my $harness = TAP::Harness->new({
	jobs => $jobs,
	merge => @exec ? 1 : 0,
	failures => 1,
	comments => 1,
	timer => 1,
	@exec ? (exec => \@exec) : () });
my $sum = $harness->runtests(map { [ $_, basename($_) ] } @ARGV);

my $failed = $sum->failed;
my $skipped = $sum->skipped;
foreach my $parser ($sum->parsers)
{
	$skipped++ if defined $parser->skip_all;
	$failed++ if $parser->has_problems && !$parser->failed;
}

open my $out, '>', $counts or die "could not write $counts: $!\n";
# TAP::Harness counts a skipped assertion as passed, too
printf $out "%d %d %d\n", $sum->passed - $sum->skipped, $failed, $skipped;
close $out;
exit($failed ? 1 : 0);
