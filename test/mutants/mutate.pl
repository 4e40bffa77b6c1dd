#!/usr/bin/env perl
# Reads the list of mutants (*.mutants), checks it against the sources, and applies a mutant:
#
#   mutate.pl check          verify the list
#   mutate.pl list [WHAT]    print the mutants; WHAT: a part of a name, or a file of src/
#   mutate.pl apply NAME     change the source file
#
# README.md describes the form of the list.  The text of a mutant is compared with the source
# token by token, so that neither white space nor comments matter.
use strict;
use warnings;

use File::Basename;

my $here = dirname(__FILE__);
my $src = "$here/../../src";
my (@mutants, $wrong);

sub slurp
{
	my ($file) = @_;

	open my $in, '<', $file or die "$file: $!\n";
	local $/ = undef;
	return scalar <$in>;
}

sub complain
{
	print "mutants: @_\n";
	$wrong = 1;
	return;
}

# Return the tokens of C source text as [text, start, end].  Comments are skipped.
sub tokens
{
	my ($text) = @_;
	my @tokens;

	while ($text =~ m{\G(?:\s+|\\\n|/\*.*?\*/|//[^\n]*)*
		("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\w+|->|\+\+|--|<<=|>>=|<<|>>|\.\.\.|\#\#|[-+*/%&|^<>=!]=|&&|\|\||\S)}gsx)
	{
		push @tokens, [ $1, $-[1], $+[1] ];
	}
	return @tokens;
}

# Return where a function begins and ends in the text of its file.  '-' is the whole file.
sub extent
{
	my ($text, $function) = @_;

	return (0, length $text) if $function eq '-';
	return ($-[0], $+[0]) if $text =~ /^\Q$function\E\([^;{]*?\n\{\n.*?^\}$/ms;
	return;
}

# A list has entries of two lines or more:
#
#   NAME FILE FUNCTION: [world] TESTS
#   <tab> drop TOKENS         or         OLD => NEW
sub read_list
{
	my ($file) = @_;
	my $mutant;
	my $line = 0;

	foreach (split /\n/, slurp($file))
	{
		$line++;
		if (/^(\w+) (\w+\.[ch]) (\w+|-): (world )?(.+)$/)
		{
			$mutant = { name => $1, file => $2, function => $3, world => $4, tests => $5, rule => '', where => basename($file) . ":$line" };
			push @mutants, $mutant;
		}
		elsif ($mutant && /^\t(.*)$/)
		{
			$mutant->{rule} .= ' ' . $1;
		}
		elsif (/^#|^$/)
		{
			undef $mutant;
		}
		else
		{
			complain(basename($file) . ":$line: the line is not part of an entry");
		}
	}
	return;
}

# The path of a mutant's file, whose name is unique in src/.
sub path
{
	my ($mutant) = @_;
	my ($path) = grep { -e } "$src/$mutant->{file}", glob "$src/*/$mutant->{file}";

	return $path;
}

# Return the ranges of the text that a mutant replaces, and the replacement.
sub places
{
	my ($mutant, $text) = @_;
	my ($begin, $end) = extent($text, $mutant->{function});
	my ($old, $new) = split /\s=>(?:\s|$)/, $mutant->{rule}, 2;
	my (@ranges, @old, @all);

	return ([], '') if !defined $begin;
	if (!defined $new)
	{
		$new = '';
		$old =~ s/^\s*drop\s//;
	}
	@old = map { $_->[0] } tokens($old);
	return ([], '') if !@old;
	@all = tokens(substr($text, $begin, $end - $begin));
	for my $i (0 .. $#all - $#old)
	{
		next if grep { $all[ $i + $_ ][0] ne $old[$_] } 0 .. $#old;
		push @ranges, [ $begin + $all[$i][1], $begin + $all[ $i + $#old ][2] ];
	}
	return (\@ranges, $new);
}

read_list($_) foreach glob "$here/*.mutants";
my ($command, $what) = @ARGV;

if ($command eq 'check')
{
	my %seen;
	my ($required) = slurp("$here/../run") =~ /^suites_of_test="(.*)"$/m;

	foreach my $mutant (@mutants)
	{
		my $path = path($mutant);
		my ($ranges) = defined $path ? places($mutant, slurp($path)) : [];

		complain("$mutant->{where}: $mutant->{name} is in the list twice") if $seen{ $mutant->{name} }++;
		complain("$mutant->{where}: $mutant->{name}: the tokens occur " . @$ranges . " times in $mutant->{function} of $mutant->{file}")
		  if @$ranges != 1;
		foreach my $suite (grep { !/=/ } split / /, $mutant->{tests})
		{
			complain("$mutant->{where}: $mutant->{name}: suite $suite runs only in check-world")
			  unless $mutant->{world} || " $required " =~ / \Q$suite\E /;
		}
		foreach my $test ($mutant->{tests} =~ /T=(\w+)/g)
		{
			complain("$mutant->{where}: $mutant->{name}: there is no test $test")
			  unless (() = glob("$here/../t/*/$test.pl")) || grep { -e "$here/../$_" } "sql/$test.sql", "specs/$test.spec", "points/$test.pl", "fuzz/$test.c";
		}
	}
	print 'mutants: ok, ', scalar @mutants, "\n" unless $wrong;
}
elsif ($command eq 'list')
{
	foreach my $mutant (@mutants)
	{
		print "$mutant->{name} $mutant->{file} $mutant->{tests}\n"
		  if !defined $what || $what eq $mutant->{file} || index($mutant->{name}, $what) >= 0;
	}
}
elsif ($command eq 'apply')
{
	my ($mutant) = grep { $_->{name} eq $what } @mutants;
	my $text = slurp(path($mutant));
	my ($ranges, $new) = places($mutant, $text);

	die "$mutant->{where}: the tokens do not occur exactly once\n" if @$ranges != 1;
	substr($text, $ranges->[0][0], $ranges->[0][1] - $ranges->[0][0]) = $new;
	open my $out, '>', path($mutant) or die "$mutant->{file}: $!\n";
	print $out $text;
	close $out or die "$mutant->{file}: $!\n";
}
exit($wrong ? 1 : 0);
