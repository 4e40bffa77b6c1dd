#!/usr/bin/env bash
# Compare the documents with the tree.  Each link must lead to a file or heading.
# doc/errors.md must have all messages of src/ and no others.  Each error that doc/faq.md
# explains must be a message of src/ or be raised by t/operating/documentation.pl.  The wait events in
# doc/operating.md must be those of src/. The counters of a pool must be the columns of view stats.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

perl - <<'PERL'
use strict;
use warnings;
use File::Basename;

my $wrong = 0;

sub complain
{
	print "documents: $_[0]\n";
	$wrong = 1;
}

sub slurp
{
	open my $file, '<', $_[0] or die "could not read $_[0]: $!\n";
	local $/;
	return <$file>;
}

# --- links
my %anchors;

sub anchors
{
	my ($path) = @_;

	$anchors{$path} //= { map { lc =~ s/[^\w -]//gr =~ s/ /-/gr => 1 } slurp($path) =~ /^#+ (.*)$/mg };
	return $anchors{$path};
}

foreach my $document (glob('README.md doc/*.md'))
{
	my $page = slurp($document);

	while ($page =~ /^```sql\n(.*?)^```$/msg)
	{
		# psql reads a pasted block as one line, which a command ends only by \\
		complain("$document: \"\\$1\" takes the rest of a pasted block as arguments") if $1 =~ /^[^\n]*\\(\w+)(?!.* \\\\$)[^\n]*\n./m;
	}
}

foreach my $document (glob('*.md src/README.md doc/*.md test/README.md test/*/*.md'))
{
	my $text = slurp($document) =~ s/^```.*?^```$//msgr;

	foreach my $link ($text =~ /\]\(([^)\s]+)\)/g)
	{
		next if $link =~ /^https?:/;
		my ($file, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;
		my $path = $file eq '' ? $document : dirname($document) . "/$file";

		if (!-e $path) { complain("$document: there is no $link"); }
		elsif (defined $anchor && !anchors($path)->{$anchor}) { complain("$document: no heading is #$anchor"); }
	}
}

# --- messages of src/: format => file
my %message;

foreach my $path (glob('src/*.c src/*/*.[ch] src/*/*.sql'))
{
	my $text = slurp($path);

	while ($text =~ /\berrmsg(?:_internal)?\(((?:\s*(?:"(?:[^"\\]|\\.)*"|\b[A-Z0-9_]+_FORMAT\b))+)/g)
	{
		my $parts = $1;
		my $format = join '', map { /^"/ ? s/^"|"$//gr : '%d' } $parts =~ /"(?:[^"\\]|\\.)*"|\w+/g;

		$format =~ s/\\"/"/g;
		$message{$format} = $path unless $format =~ /^%s(?::|$)/;
	}
	$message{$1} = $path while $text =~ /primary =\s*(?:pstrdup\()?"([^"]*)"/g;
	$message{ $1 =~ s/\\"/"/gr =~ s/%/%s/gr } = $path while $text =~ /RAISE EXCEPTION '([^']*)'/g;
}

sub pattern
{
	my ($format) = @_;

	return join '', map { /^%[^%]/ ? '.+' : quotemeta } split /(%[-.*0-9]*(?:ll|l|z)?[a-zA-Z])/, $format;
}

sub found
{
	my ($text) = @_;

	return grep { my $pattern = pattern(s/: %m$//r); $text =~ /^$pattern$/ } keys %message;
}

my $errors = slurp('doc/errors.md');
my $faq = slurp('doc/faq.md');
my $raised = slurp('test/t/operating/documentation.pl');
my (%known, $n);

foreach my $row (grep { /^\| \w{5} \|/ } split /\n/, $errors)
{
	my (undef, undef, $cell) = split /\s*\|\s*/, $row;

	foreach my $text (split /; /, $cell)
	{
		next if $text =~ /^the same/;
		$text =~ s/\*\w+\*/x/g;
		$text =~ s/`//g;
		my @found = found($text);

		$known{$_} = 1 foreach @found, grep { index(s/%s/x/gr, $text) == 0 } keys %message;
		complain("table of errors: \"$text\" is no message of src/") unless @found || $text =~ /^must be owner of/;
	}
}

# log messages begin with the extension's name, except for two; the rest is the server's
# own
my @not_ours = ('pgpool_ext ', 'checkout from server "%s" waited', 'could not create control socket',
	'out of memory', 'incorrect binary data format', 'server "%.*s..."');

foreach my $format (sort keys %message)
{
	next if $known{$format} || $format =~ /must not be null$/ || grep { index($format, $_) == 0 } @not_ours;
	complain("table of errors: $message{$format} has \"$format\", too");
}

foreach my $text ($faq =~ /`(?:ERROR|FATAL|WARNING): (.*?)`/sg)
{
	$text =~ s/\s+/ /g;
	$n++;
	complain("FAQ: \"$text\" is no message of src/, and t/operating/documentation.pl does not raise it")
	  unless found($text) || index($raised, $text) >= 0;
}
complain("the FAQ explains no errors") unless $n;

# --- the counters of PGPX_COUNTERS are the columns of view stats between local_user and wait_histogram
my ($list) = slurp('src/shared/shmem.h') =~ /^#define PGPX_COUNTERS\(.*?\n\n/ms ? $& : '';
my $counters = join ' ', $list =~ /^\t[A-Z_]+\((\w+)\)/mg;
my ($columns) = slurp('sql/pgpool_ext--1.0.sql') =~ /^CREATE TYPE pgpool\.stats_row AS \(.*?local_user \S+\n(.*?)\twait_histogram /ms;
my $columns_are = join ' ', $columns =~ /^\t(\w+) /mg;

complain("PGPX_COUNTERS: src/ has $counters, view stats $columns_are") unless $counters eq $columns_are;

# --- wait events
my $events = join ' ', sort map { slurp($_) =~ /"(Pgpool[A-Z]\w*)"/g } glob('src/*.c src/*/*.c');
my @documented = slurp('doc/operating.md') =~ /^\| `(Pgpool\w+)` \|/mg;
my $documented = join ' ', sort @documented;

$events =~ s/\b(\w+)(?: \1\b)+/$1/g;
complain("wait events: src/ has $events, doc/operating.md $documented") unless $events eq $documented;

# --- files
my $inside = slurp('src/README.md');

foreach my $name (map { basename($_) } glob('src/*.c src/*/*.c'))
{
	complain("src/README.md: no row for $name") unless $inside =~ /^\|.*`\Q$name\E`: /m;
}
foreach my $name ($inside =~ /`(\w+\.[ch])`: /g)
{
	complain("src/README.md: there is no $name") unless grep { -e } glob("src/$name src/*/$name");
}

exit $wrong if $wrong;
print "documents: ok\n";
PERL
