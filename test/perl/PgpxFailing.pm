# Servers in which a call of the library's to the system, to libc or to libpq fails
# when a test says so (failing.c).
#
#   PgpxFailing::skip_all_without();
#   failing($node, sub { $node->start });                # from now on it can be told to
#   fail_next($node, 'socketpair', who => 'session');    # or worker, all; the next call
#   fail_next($node, 'strdup', skip => 2, times => 3);  # the third to the fifth
#   ok(has_failed($node), ...);
#   hold_logins($node, 'db1', 'db2');    # steps of logins there do not end, until the next such call;
#                                        # nor do look-ups of these, if they are hosts
#   stand_still($node, $session->pid);   # these stand in their next recv, until the next such call
#   stands($node, $session->pid);        # 1 or 0: does it?
#   doze($node, $postmaster);            # .. or, if it is that of 15, before it goes to sleep
#   dozes($node, $postmaster);
#   never_pause($node, $session->pid);   # these receive notices without end, until the next such call
package PgpxFailing;

use strict;
use warnings;

use Errno qw(ENOMEM);
use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;

use PgpxTest;

our @EXPORT = qw(doze dozes failing fail_next has_failed hold_logins libpq_cancels never_pause stand_still stands);

my ($library, $number);

sub skip_all_without
{
	my $source = __FILE__ =~ s{PgpxFailing\.pm$}{failing.c}r;

	plan skip_all => 'it sees whether a call is ours only if nothing comes between' if defined $ENV{PGPX_LATE};
	plan skip_all => 'a sanitizer has its own malloc and must be loaded first' if $ENV{PGPX_NO_PRELOAD};
	$library = PostgreSQL::Test::Utils::tempdir . '/failing.so';
	plan skip_all => 'there is no compiler here'
	  if system("cc -shared -fPIC -O1 -Wall -o $library $source -ldl") != 0;
	chmod 0755, $library;
	return;
}

# Run a function that starts the server.
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

	put(order($node), join ' ', $function, $args{who} // 'worker', $args{skip} // 0, $args{times} // 1, $args{errno} // ENOMEM, ++$number);
	return;
}

sub hold_logins
{
	my ($node, @databases) = @_;

	put($node->data_dir . '/pgpool_ext.hold', " @databases ");
	return;
}

# Processes that a file names do what failing.c says of it; those that stop there say so.
sub name_in
{
	my ($file, $node, @pids) = @_;

	put($node->data_dir . "/pgpool_ext.$file", " @pids ");
	return;
}

sub has_stopped
{
	my ($file, $node, $pid) = @_;

	return -e $node->data_dir . "/pgpool_ext.${file}s.$pid" ? 1 : 0;
}

sub stand_still { return name_in(stand => @_); }
sub stands { return has_stopped(stand => @_); }
sub doze { return name_in(doze => @_); }
sub dozes { return has_stopped(doze => @_); }
sub never_pause { return name_in(endless => @_); }

# Whether libpq can send cancel requests without waiting, from 17 on; it may be newer
# than the server.
sub libpq_cancels
{
	chomp(my $bin = `pg_config --bindir`);
	my ($libpq) = `ldd $bin/psql` =~ /libpq\.so\S* => (\S+)/ or die 'psql has no libpq';

	return PostgreSQL::Test::Utils::slurp_file($libpq) =~ /PQcancelStart/ ? 1 : 0;
}

# It has come to all of it.
sub has_failed
{
	my ($node) = @_;

	return wait_until($node, sub { -e order($node) ? 0 : 1 }, 1, 30);
}

1;
