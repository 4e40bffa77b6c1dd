#!/usr/bin/env perl
# The list of mutants (*.mutants), read and applied: mutate.pl check | list [WHAT] |
# apply NAME.  WHAT: a part of a name, or a file of src/.  See README.md for the form.
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

# NAME FILE: TESTS, and lines that begin with ' ' (stay), '-' (go), '+' (come).
sub read_list
{
	my ($file) = @_;
	my $mutant;
	my $line = 0;

	foreach (split /\n/, slurp($file))
	{
		$line++;
		if (/^(\w+) (\w+\.[ch]): (.+)$/)
		{
			$mutant = { name => $1, file => $2, tests => $3, before => '', after => '', where => basename($file) . ":$line" };
			push @mutants, $mutant;
		}
		elsif ($mutant && /^([-+ ])(.*)$/)
		{
			$mutant->{before} .= "$2\n" if $1 ne '+';
			$mutant->{after} .= "$2\n" if $1 ne '-';
		}
		elsif (/^#|^$/)
		{
			undef $mutant;
		}
		else
		{
			complain(basename($file) . ":$line: cannot be read");
		}
	}
	return;
}

# The file of src/ that a mutant is in: its name is there once.
sub path
{
	my ($mutant) = @_;
	my ($path) = grep { -e } "$src/$mutant->{file}", glob "$src/*/$mutant->{file}";

	return $path;
}

# How often the mutant's lines are in the source.
sub places
{
	my ($mutant, $text) = @_;
	my $n = () = "\n$text" =~ /(?<=\n)\Q$mutant->{before}\E/g;

	return $n;
}

read_list($_) foreach glob "$here/*.mutants";
my ($command, $what) = @ARGV;

if ($command eq 'check')
{
	my %seen;

	foreach my $mutant (@mutants)
	{
		my $n = defined path($mutant) ? places($mutant, slurp(path($mutant))) : 0;

		complain("$mutant->{where}: $mutant->{name} is there twice") if $seen{ $mutant->{name} }++;
		complain("$mutant->{where}: $mutant->{name} changes nothing") if $mutant->{before} eq $mutant->{after};
		complain("$mutant->{where}: $mutant->{name}: its lines are $n times in $mutant->{file}") if $n != 1;
		foreach my $test ($mutant->{tests} =~ /T=(\w+)/g)
		{
			complain("$mutant->{where}: $mutant->{name}: there is no test $test")
			  unless grep { -e "$here/../$_" } "t/$test.pl", "sql/$test.sql", "specs/$test.spec", "fuzz/$test.c";
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

	die "$mutant->{where}: its lines are not once in $mutant->{file}\n" if places($mutant, $text) != 1;
	$text =~ s/^\Q$mutant->{before}\E/$mutant->{after}/m;
	open my $out, '>', path($mutant) or die "$mutant->{file}: $!\n";
	print $out $text;
	close $out or die "$mutant->{file}: $!\n";
}
exit($wrong ? 1 : 0);
