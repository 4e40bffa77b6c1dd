# Servers whose clock can be set while they run, with libfaketime (Debian:
# libfaketime; PGPX_FAKETIME: where it is).  Their monotonic clocks go on as they are.
#
#   plan skip_all => 'there is no libfaketime here' unless clock_library();
#   with_clock($node, sub { $node->restart });   # it has a clock of its own from now on
#   set_clock($node, -3600);                     # seconds from the right time
package PgpxClock;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(clock_library set_clock with_clock);

my $directory;
my %offsets;

sub clock_library
{
	my ($library) = grep { -f } $ENV{PGPX_FAKETIME} //
	  glob('/usr/lib/*/faketime/libfaketime.so.1 /usr/lib*/faketime/libfaketime.so.1');

	return $library;
}

# By whole seconds, so that who knows the offset has the right time.
sub set_clock
{
	my ($node, $offset) = @_;

	$directory //= PostgreSQL::Test::Utils::tempdir();
	my $path = "$directory/" . $node->name;

	open my $file, '>', "$path.new" or die;
	printf $file "%+d\n", $offset;
	close $file;
	rename "$path.new", $path or die;
	$offsets{ $node->name } = $offset;
	return;
}

# Run a function that starts the server.
sub with_clock
{
	my ($node, $function) = @_;

	set_clock($node, 0) unless defined $offsets{ $node->name };
	local %ENV = (%ENV, LD_PRELOAD => clock_library(), FAKETIME_TIMESTAMP_FILE => "$directory/" . $node->name,
		FAKETIME_NO_CACHE => 1, FAKETIME_DONT_FAKE_MONOTONIC => 1);
	return $function->();
}

1;
