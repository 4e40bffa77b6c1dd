# Servers whose clocks can be set while they run (clock.c).
#
#   plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
#
#   with_clock($node, sub { $node->restart });   # the server has a clock of its own now
#   set_clock($node, -3600);                     # time of day: offset in seconds, takes effect at once
#   let_time_pass($node, 60);                    # all clocks: a minute has passed
package PgpxClock;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(can_set_clocks set_clock let_time_pass with_clock $CLOCKS_MISSING);
our $CLOCKS_MISSING = 'the clock cannot be set: no compiler, or libraries cannot be preloaded';

my ($directory, $library);
my %passed;    # seconds that let_time_pass has added, by node

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

# Writes in place, because the servers have the file mapped. Position 0: the offset of the time
# of day; 1: the time that has passed.
sub put
{
	my ($node, $position, $seconds) = @_;

	open my $file, -e clock_of($node) ? '+<' : '>', clock_of($node) or die "clock: $!";
	sysseek($file, 8 * $position, 0);
	syswrite($file, pack 'q', $seconds) == 8 or die "clock: $!";
	close $file;
	return;
}

# Whole seconds, so that the offset can be subtracted exactly.
sub set_clock
{
	my ($node, $offset) = @_;

	put($node, 0, $offset);
	return;
}

# The processes that sleep are woken by a reload, and compute their timeouts again.
# asleep => 1: they are not.
sub let_time_pass
{
	my ($node, $seconds, %args) = @_;

	$passed{ $node->name } += $seconds;
	put($node, 1, $passed{ $node->name });
	$node->reload unless $args{asleep};
	return;
}

# Runs a function that starts the server.
sub with_clock
{
	my ($node, $function) = @_;

	can_set_clocks() or die $CLOCKS_MISSING;
	put($node, $_, 0) foreach -e clock_of($node) ? () : (0, 1);
	local %ENV = (%ENV, PGPX_CLOCK => clock_of($node), LD_PRELOAD => join ':', grep { defined && $_ ne '' } $ENV{LD_PRELOAD}, $library);
	return $function->();
}

1;
