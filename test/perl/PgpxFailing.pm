# Servers in which the extension's calls of system, libc or libpq functions fail on
# request (failing.c).
#
#   PgpxFailing::skip_all_without();
#   failing($node, sub { $node->start });                # requests are possible from now on
#   fail_next($node, 'socketpair', process => 'session'); # the next call; or worker, all
#   fail_next($node, 'strdup', skip => 2, times => 3);   # the third to the fifth call
#   ok(has_failed($node), ...);                          # all requested failures have occurred
#   hold_logins($node, 'db1', 'host1');       # until the next call: logins to these databases
#                                            # and lookups of these hosts do not end
#   stop_in_recv($node, $session->pid);       # until the next call: stop in the next recv
#   is_stopped_in_recv($node, $session->pid); # 1 or 0
#   stop_before_sleep($node, $postmaster);    # the same for a postmaster of 15 about to sleep
#   is_stopped_before_sleep($node, $postmaster);
#   send_endless_notices($node, $session->pid); # until the next call: receive endless notices
#   my $reason = PgpxFailing::build_library(); # for a part of a file; not '': failing cannot be used
package PgpxFailing;

use strict;
use warnings;

use Errno qw(ENOMEM);
use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;

use PgpxTest;

our @EXPORT = qw(stop_before_sleep is_stopped_before_sleep failing fail_next has_failed hold_logins libpq_cancels send_endless_notices stop_in_recv is_stopped_in_recv);

my ($library, $number);

# Builds the library that failing() loads. Returns the reason why this run cannot use it,
# or ''.
sub build_library
{
	my $source = __FILE__ =~ s{PgpxFailing\.pm$}{failing.c}r;

	return 'whether the extension made a call can only be seen if no other library is in between' if defined $ENV{PGPX_LATE};
	return 'a sanitizer has its own malloc and must be loaded first' if $ENV{PGPX_NO_PRELOAD};
	$library = PostgreSQL::Test::Utils::tempdir . '/failing.so';
	return 'no compiler' if system("cc -shared -fPIC -O1 -Wall -o $library $source -ldl") != 0;
	chmod 0755, $library;
	return '';
}

sub skip_all_without
{
	my $reason = build_library();

	plan skip_all => $reason if $reason ne '';
	return;
}

# Runs a function that starts the server.
sub failing
{
	my ($node, $function) = @_;

	local %ENV = (%ENV, LD_PRELOAD => join ':', grep { defined && $_ ne '' } $ENV{LD_PRELOAD}, $library);
	return $function->();
}

sub put
{
	my ($path, $line) = @_;

	open my $file, '>', "$path.new" or die "order: $!";
	print $file "$line\n";
	close $file;
	chmod 0644, "$path.new";
	rename "$path.new", $path or die "order: $!";
	return;
}

sub order { return $_[0]->data_dir . '/pgpool_ext.fail'; }

sub fail_next
{
	my ($node, $function, %args) = @_;

	put(order($node), join ' ', $function, $args{process} // 'worker', $args{skip} // 0, $args{times} // 1, $args{errno} // ENOMEM, ++$number);
	return;
}

sub hold_logins
{
	my ($node, @databases) = @_;

	put($node->data_dir . '/pgpool_ext.hold', " @databases ");
	return;
}

# Names processes in a file, which makes failing.c act on them. has_stopped: a named
# process has stopped.
sub name_in
{
	my ($file, $node, @pids) = @_;

	put($node->data_dir . "/pgpool_ext.$file", " @pids ");
	return;
}

sub has_stopped
{
	my ($file, $node, $pid) = @_;

	return -e $node->data_dir . "/pgpool_ext.$file.$pid" ? 1 : 0;
}

sub stop_in_recv { return name_in(stop_in_recv => @_); }
sub is_stopped_in_recv { return has_stopped(stop_in_recv => @_); }
sub stop_before_sleep { return name_in(stop_before_sleep => @_); }
sub is_stopped_before_sleep { return has_stopped(stop_before_sleep => @_); }
sub send_endless_notices { return name_in(endless => @_); }

# True if libpq can send cancel requests asynchronously (from 17 on; it may be newer
# than the server).
sub libpq_cancels
{
	chomp(my $bin = `pg_config --bindir`);
	my ($libpq) = `ldd $bin/psql` =~ /libpq\.so\S* => (\S+)/ or die 'psql has no libpq';

	return PostgreSQL::Test::Utils::slurp_file($libpq) =~ /PQcancelStart/ ? 1 : 0;
}

# Waits until all requested failures have occurred.
sub has_failed
{
	my ($node) = @_;

	return wait_until($node, sub { -e order($node) ? 0 : 1 }, 1, 30);
}

1;
