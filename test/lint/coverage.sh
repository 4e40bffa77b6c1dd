#!/usr/bin/env bash
# The lines and functions that test/coverage/unreachable explains are in the sources.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec perl - test/coverage/unreachable <<'EOT'
use strict;
use warnings;

my ($wrong, $n) = (0, 0);
foreach my $line (<>)
{
	chomp $line;
	next if $line =~ /^(#|$)/;
	my ($file, $text) = split /: /, $line, 2;
	my ($path) = grep { -f } glob("src/$file src/*/$file");
	my $source = defined $path ? do { local (@ARGV, $/) = $path; <> } : '';

	# a function, or a line in it
	if ($text =~ /^(\w+)\(\)(?:: (.*))?$/)
	{
		($source, $text) = ($source =~ /^(\Q$1\E\(.*?^\})/ms ? $1 : '', $2 // $1);
	}
	$n++;
	next if index($source, $text) >= 0;
	print "coverage: unreachable has a line that is nowhere: $line\n";
	$wrong = 1;
}
print "coverage: ok, $n reasons\n" unless $wrong;
exit $wrong;
EOT
