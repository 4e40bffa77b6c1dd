# All processes of a server, so that a test can stop the whole server.
#
#   my @processes = processes($node);                # the postmaster is the first
#   kill 'STOP', @processes;
#   kill 'CONT', reverse @processes;
package PgpxProcesses;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;

our @EXPORT = qw(processes);

# From /proc, because a small Debian has no ps.
sub processes
{
	my ($node) = @_;
	my ($postmaster) = split /\n/, slurp_file($node->data_dir . '/postmaster.pid');
	my @children;

	foreach my $stat (glob '/proc/[0-9]*/stat')
	{
		open my $file, '<', $stat or next;
		my $line = <$file> // next;
		push @children, $1 if $line =~ /^(\d+) \(.*\) \S $postmaster /;
	}
	die "postmaster $postmaster has no children" unless @children;
	return ($postmaster, @children);
}

1;
