# Run TAP files, as prove does, and leave the counts in a file:
#
#   tap.pl --counts=FILE [--jobs=N] [--exec=WORD ...] -- FILE ...
#
# --exec, once for each word, is the command that runs a file (default: perl).
# A file that died or broke its plan without a failed assertion counts as one.
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
foreach my $parser ($sum->parsers)
{
	$failed++ if $parser->has_problems && !$parser->failed;
}

open my $out, '>', $counts or die "could not write $counts: $!\n";
printf $out "%d %d\n", scalar $sum->passed, $failed;
close $out;
exit($failed ? 1 : 0);
