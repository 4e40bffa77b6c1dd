# Servers whose clocks can be set while they run (clock.c).
#
#   plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
#
#   with_clock($node, sub { $node->restart });   # the server has a clock of its own now
#   set_clock($node, -3600);                     # offset of the time of day in seconds; the
#                                                # monotonic clocks are not affected
#   pass_time($node, 3600);                      # advances all clocks by these seconds
package PgpxClock;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(can_set_clocks set_clock pass_time with_clock $CLOCKS_MISSING);
our $CLOCKS_MISSING = 'the clock cannot be set: no compiler, or libraries cannot be preloaded';

my ($directory, $library);
my %offsets;                                     # of each node: time of day, monotonic clocks

sub can_set_clocks
{
	my $source = __FILE__ =~ s{PgpxClock\.pm$}{clock.c}r;

	return $library ne '' if defined $library;
	$directory = PostgreSQL::Test::Utils::tempdir();
	$library = "$directory/clock.so";
	$library = '' if $ENV{PGPX_NO_PRELOAD} || system("cc -shared -fPIC -O1 -Wall -o $library $source") != 0;
	return $library ne '';
}

sub clock_of { return "$directory/" . $_[0]->name; }

# Whole seconds, so that the offset can be subtracted exactly.
sub set_clock
{
	my ($node, $offset) = @_;

	return write_clock($node, $offset, ($offsets{ $node->name } // [ 0, 0 ])->[1]);
}

# Takes effect when a process reads the clock next: a sleep does not end earlier.
sub pass_time
{
	my ($node, $seconds) = @_;

	return write_clock($node, map { $_ + $seconds } @{ $offsets{ $node->name } });
}

sub write_clock
{
	my ($node, @offset) = @_;

	# write in place, because the servers have the file mapped
	open my $file, -e clock_of($node) ? '+<' : '>', clock_of($node) or die "clock: $!";
	syswrite($file, pack 'qq', @offset) == 16 or die "clock: $!";
	close $file;
	$offsets{ $node->name } = \@offset;
	return;
}

# Runs a function that starts the server.
sub with_clock
{
	my ($node, $function) = @_;

	can_set_clocks() or die $CLOCKS_MISSING;
	set_clock($node, 0) unless -e clock_of($node);
	local %ENV = (%ENV, PGPX_CLOCK => clock_of($node), LD_PRELOAD => join ':', grep { defined && $_ ne '' } $ENV{LD_PRELOAD}, $library);
	return $function->();
}

1;
