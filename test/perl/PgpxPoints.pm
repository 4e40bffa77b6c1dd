# Debug points (src/base/debug_point.h), for tests of suite points.
#
#   use PgpxPoints;
#
#   points_of($local);                               # all functions are for this server
#   arm(debug_point => 'worker_connects wait');      # for all processes
#   $session->run("SET pgpool_ext.debug_point = 'granted exit'");
#   ok(reached('granted'));
#   resume('worker_connects');
#   disarm();                                        # the points can be reached again
package PgpxPoints;

use strict;
use warnings;

use Exporter 'import';
use PgpxTest;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(points_of path reached resume disarm arm);

my $local;

sub points_of
{
	($local) = @_;
	return;
}

sub path { return $local->data_dir . "/pgpool_ext.$_[0].$_[1]"; }

# True if a process has reached the debug point.
sub reached
{
	my ($name) = @_;

	return wait_until($local, sub { -e path($name, 'at') ? 'yes' : 'no' }, 'yes', 30);
}

sub resume
{
	my ($name) = @_;

	append_to_file(path($name, 'go'), '');
	return;
}

sub disarm
{
	unlink glob $local->data_dir . '/pgpool_ext.*.at ' . $local->data_dir . '/pgpool_ext.*.go';
	return;
}

# Arm a debug point for all processes, including the worker. New processes have the setting; a
# worker that runs reads it at the end of a round of its event loop.
sub arm
{
	my ($setting, $value) = @_;

	disarm();
	$local->safe_psql('postgres', "ALTER SYSTEM SET pgpool_ext.$setting = '$value'");
	$local->reload;
	wait_until($local, "SHOW pgpool_ext.$setting", $value);
	return;
}

1;
