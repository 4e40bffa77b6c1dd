#!/usr/bin/env perl
# Prints the circles of files inside a layer of src/ that call each other's functions, one a
# line, as names of files without ".c" in alphabetical order.
#
# A call is a function's name before a parenthesis.  Passing a function as a callback is no
# call: events go up in this way.
use strict;
use warnings;

my (%file_of, %called);    # function => file; file => functions that it calls

for my $file (glob 'src/*/*.c')
{
	open my $in, '<', $file or die "$file: $!\n";
	local $/ = undef;
	my $text = <$in>;
	close $in;
	$text =~ s{/\*.*?\*/}{}gs;
	$text =~ s{"(?:\\.|[^"\\])*"}{""}g;
	$file_of{$1} = $file while $text =~ /^(pgpx_\w+)\(/mg;
	$called{$file}{$1} = 1 while $text =~ /\b(pgpx_\w+)\s*\(/g;
}

sub layer
{
	my ($file) = @_;
	return $file =~ m{^src/(\w+)/} ? $1 : '';
}

my %next;    # file => files of its layer that it calls
for my $file (keys %called)
{
	for my $function (keys %{ $called{$file} })
	{
		my $other = $file_of{$function};
		next if !defined $other || $other eq $file || layer($other) ne layer($file);
		$next{$file}{$other} = 1;
	}
}

# Tarjan's strongly connected components
my ($count, %index, %low, %on_stack, @stack, @circles) = (0);

sub visit
{
	my ($file) = @_;

	$index{$file} = $low{$file} = ++$count;
	push @stack, $file;
	$on_stack{$file} = 1;
	for my $other (sort keys %{ $next{$file} })
	{
		if (!$index{$other})
		{
			visit($other);
			$low{$file} = $low{$other} if $low{$other} < $low{$file};
		}
		elsif ($on_stack{$other} && $index{$other} < $low{$file})
		{
			$low{$file} = $index{$other};
		}
	}
	return if $low{$file} != $index{$file};
	my @members;
	do
	{
		push @members, pop @stack;
		$on_stack{ $members[-1] } = 0;
	} while ($members[-1] ne $file);
	push @circles, [@members] if @members > 1;
	return;
}

visit($_) for grep { !$index{$_} } sort keys %called;
for my $circle (@circles)
{
	print join(' ', sort map { s{^src/}{}r =~ s{\.c$}{}r } @$circle), "\n";
}
