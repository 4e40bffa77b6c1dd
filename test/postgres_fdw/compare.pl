# Compare the output of the tests of postgres_fdw and dblink with the output that PostgreSQL expects:
# compare.pl DIFFERENCES MAJOR EXPECTED,.. RESULTS ... -- TEST ...
#
# DIFFERENCES lists the permitted differences in their order (an empty argument: none);
# its head describes its form.  Each test passes if it has exactly these differences.
# The last line is "N passed, N failed, N skipped".
use strict;
use warnings;

my ($list, $major, $expected, @rest) = @ARGV;
my @results;

push @results, shift @rest while @rest && $rest[0] ne '--';
shift @rest;

my %listed = $list eq '' ? () : read_list($list);
my ($passed, $failed) = (0, 0);

foreach my $test (@rest)
{
	my ($result) = grep { -f $_ } map { "$_/$test.out" } @results;
	my @files = grep { -f $_ } map { my $n = $_; map { "$_/$test$n.out" } split /,/, $expected } '', map { "_$_" } 0 .. 9;
	my @listed = @{ $listed{$test} // [] };
	my @wrong = defined $result ? () : ("$test: it has printed nothing\n");

	# of several expected files, the one that is closest
	if (defined $result)
	{
		my ($best) = sort { @$a <=> @$b } map { [ unexpected($_, $result, @listed) ] } @files;

		@wrong = @$best;
	}
	if (@wrong)
	{
		$failed++;
		print "$test FAILED: it differs from what is expected and listed\n", @wrong;
	}
	else
	{
		$passed++;
		print "$test ok, with " . @listed . " listed differences\n";
	}
}
print "$passed passed, $failed failed, 0 skipped\n";
exit($failed == 0 ? 0 : 1);

# The hunks of a difference, as text: the lines that are missing and those that are new,
# without numbers, because earlier hunks may move them.  As pg_regress, without regard to
# blanks.
sub hunks
{
	my ($old, $new) = @_;
	my @hunks;

	open my $diff, '-|', 'diff', '-w', '-U0', $old, $new or die "no diff: $!\n";
	while (my $line = <$diff>)
	{
		next if $line =~ /^(---|\+\+\+) / && !@hunks;
		if ($line =~ /^@@ -(\d+)/)
		{
			push @hunks, { line => $1, text => '' };
		}
		else
		{
			$hunks[-1]{text} .= $line;
		}
	}
	close $diff;
	return @hunks;
}

sub unexpected
{
	my ($old, $new, @listed) = @_;
	my @wrong;

	foreach my $hunk (hunks($old, $new))
	{
		# lines of optional differences, if no other is listed before them
		my %optional;
		foreach my $next (@listed)
		{
			last unless $next->{optional};
			$optional{$_} = 1 foreach split /^/m, $next->{text};
		}
		next unless grep { !$optional{$_} } split /^/m, $hunk->{text};

		# those that are listed before and have not occurred are missing
		my ($at) = grep { !$listed[$_]{optional} && $listed[$_]{text} eq $hunk->{text} } 0 .. $#listed;

		if (defined $at)
		{
			push @wrong, missing(splice @listed, 0, $at);
			shift @listed;
		}
		else
		{
			push @wrong, "not listed, line $hunk->{line} of the expected output:\n$hunk->{text}";
		}
	}
	return @wrong, missing(@listed);
}

sub missing
{
	return map { "listed, but not there:\n$_->{text}" } grep { !$_->{optional} } @_;
}

sub read_list
{
	my ($file) = @_;
	my (%tests, $test, $hunk, $applies, $reason, $optional);
	my $previous = '';

	open my $in, '<', $file or die "$file: $!\n";
	while (my $line = <$in>)
	{
		if ($line =~ /^== (\S+)(?: (.*))?$/)
		{
			($test, my $majors) = ($1, $2);
			$applies = !defined $majors || grep { $_ eq $major } split ' ', $majors;
			$reason = 0;
			$hunk = undef;
		}
		elsif ($line =~ /^#/)
		{
			$optional = $line =~ /^# Not always:/ if $previous !~ /^#/;
			$reason = 1;
			$hunk = undef;
		}
		elsif ($line =~ /^\s*$/)
		{
			$hunk = undef;
		}
		elsif ($line =~ /^[-+\\]/ && defined $test)
		{
			die "$file, line $.: a difference without a reason\n" unless $reason;
			next unless $applies;
			if (!defined $hunk)
			{
				$hunk = { text => '', optional => $optional };
				push @{ $tests{$test} }, $hunk;
			}
			$hunk->{text} .= $line;
		}
		else
		{
			die "$file, line $.: neither a heading, a reason, nor a difference\n";
		}
		$previous = $line;
	}
	return %tests;
}
