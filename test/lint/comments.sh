#!/usr/bin/env bash
# Comments have at most 80 columns, except for addresses of the web, and their lines are
# filled: no line inside a sentence ends long before the next word would not fit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

exec perl - src/*.c src/*/*.[ch] <<'PERL'
use strict;
use warnings;

use constant {
	COLUMNS => 80,
	FILLED => 79,
	SLACK => 12    # columns that may be left after the next word
};

my $wrong = 0;

sub complain
{
	print "comments: $_[0]\n";
	$wrong = 1;
}

foreach my $path (@ARGV)
{
	open my $file, '<', $path or die "could not read $path: $!\n";
	my $open = 0;    # in a comment
	my ($previous, $indent) = ('', 0);

	while (my $line = <$file>)
	{
		chomp $line;
		my $shown = $line;
		1 while $shown =~ s/\t/' ' x (4 - length($`) % 4)/e;

		# is there a comment in this line, and does one go on after it?
		my $was_open = $open;
		my $code = $line =~ s/"(?:[^"\\]|\\.)*"//gr;
		my $has_comment = $open || $code =~ m{/\*};
		while ($open ? $code =~ s{^.*?\*/}{} : $code =~ s{^.*?/\*}{})
		{
			$open = !$open;
		}
		complain("$path:$.: more than " . COLUMNS . ' columns')
		  if $has_comment && length $shown > COLUMNS && $line !~ m{https?://|NOLINT};

		# lines of a paragraph; a tab within a line makes it a table
		my ($star, $text) = $shown =~ /^( *\* +)(\S.*)/;
		if (!$was_open || !$open || !defined $text || $line =~ /\*.*\S\t+\S|[|>]/)
		{
			$previous = '';
			next;
		}
		my ($word) = $text =~ /^(\S+)/;
		complain("$path:" . ($. - 1) . ': the line ends too early')
		  if $previous =~ / .*[^.:;]$/
		  && $indent == length $star
		  && $text !~ /^(?:[-*]|\d+\.) /
		  && FILLED - $indent - length($previous) - 1 - length($word) >= SLACK;
		($previous, $indent) = ($text, length $star);
	}
	close $file;
}
print "comments: ok\n" unless $wrong;
exit $wrong;
PERL
