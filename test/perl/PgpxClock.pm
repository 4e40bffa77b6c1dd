# Servers whose time of day can be set while they run (clock.c). Their monotonic clocks
# are not affected.
#
#   plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
#
#   with_clock($node, sub { $node->restart });   # the server has a clock of its own now
#   set_clock($node, -3600);                     # offset in seconds, takes effect at once
package PgpxClock;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(can_set_clocks set_clock with_clock $CLOCKS_MISSING);
our $CLOCKS_MISSING = 'the clock cannot be set: no compiler, or libraries cannot be preloaded';

my ($directory, $library);

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

	# write in place, because the servers have the file mapped
	open my $file, -e clock_of($node) ? '+<' : '>', clock_of($node) or die "clock: $!";
	syswrite($file, pack 'q', $offset) == 8 or die "clock: $!";
	close $file;
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
