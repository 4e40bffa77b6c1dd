# The runner of TAP files (perl/tap.pl) counts passed, failed and skipped assertions. A
# file that is skipped as a whole counts as one skip.
use strict;
use warnings;

use FindBin;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = PostgreSQL::Test::Utils::tempdir();

# Write the TAP files, run them, and return the three counts.
sub counts_of
{
	my %content = @_;
	my @files = map { "$folder/$_.pl" } sort keys %content;

	append_to_file("$folder/$_.pl", "use Test::More;\n$content{$_}") foreach keys %content;
	IPC::Run::run(
		[ $^X, "$FindBin::Bin/../perl/tap.pl", "--counts=$folder/counts", '--', @files ],
		'>', \my $output, '2>&1');
	return slurp_file("$folder/counts") =~ s/\n//r;
}

is( counts_of(
		passes => 'ok(1); ok(1); done_testing();',
		skips => 'SKIP: { skip "not here", 3; } ok(1); done_testing();',
		whole => 'plan skip_all => "not here";'),
	'3 0 4',
	'skipped assertions are not counted as passed');
is(counts_of(fails => 'ok(0); ok(1); done_testing();', dies => 'die;'), '1 2 0', 'file that dies counts as one failure');
done_testing();
