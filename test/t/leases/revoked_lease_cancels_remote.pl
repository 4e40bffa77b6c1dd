# A lease that is revoked, by terminate or by lease_timeout, also ends its statement on
# the remote server, although the holder keeps the socket and the remote server does not
# check its client connections. The slot is free when the statement has ended.
use strict;
use warnings;

use PgpxFakeServer qw(ready done failure);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Each behaviour writes events to the journal. The statement of "stubborn" ends at the
# second cancel request. "rude" does not close after Terminate.
my $journal = PostgreSQL::Test::Utils::tempdir . '/journal';

sub note_down { append_to_file($journal, "$_[0]\n"); return; }
sub noted { return -e $journal ? join(' ', split /\n/, slurp_file($journal)) : ''; }

my $fake = PgpxFakeServer->new(
	stubborn => sub {
		my ($self) = @_;
		my $cancelled = 0;

		local $SIG{USR1} = sub { $cancelled++ };
		note_down('login');
		while (my $sql = $self->receive)
		{
			if ($sql !~ /sleep/)
			{
				$self->send($sql =~ /^select/ ? $self->answer('1') : (done('DISCARD ALL'), ready));
				next;
			}
			note_down('begin');
			select undef, undef, undef, 0.02 until $cancelled > 1;
			note_down('end');
			return;
		}
	},
	rude => sub {
		my ($self) = @_;

		$self->serve(2);
		note_down('served');
		$self->read_to_end;
		note_down('end of stream');
	},
	cancel => sub { kill 'USR1', $_[0] });

my $remote = remote_node('remote');
my $local = local_node('local');
my $row = 'AS t(a int)';
my %fake_options = (sslmode => PgpxFakeServer::sslmode(), pool_size => 1, operation_timeout => '60s');

make_pool($local, $remote, server => 'one', options => { pool_size => 1 });
make_pool($local, $remote, server => 'timed', options => { pool_size => 1 });
make_pool($local, $fake, server => 'stubborn', remote_dbname => 'stubborn', options => {%fake_options});
make_pool($local, $fake, server => 'rude', remote_dbname => 'rude', options => {%fake_options});

# the remote server would refuse a superfluous session and log that
$remote->safe_psql('postgres', "CREATE ROLE $_ LOGIN PASSWORD '$_' CONNECTION LIMIT 1"),
  $local->safe_psql('postgres', "ALTER USER MAPPING FOR CURRENT_USER SERVER $_ OPTIONS (SET user '$_', SET password '$_')")
  foreach 'one', 'timed';

my $running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ 'pg_sleep' AND pid <> pg_backend_pid()";
my ($holder, $next) = map { PgpxSession->new($local) } 1 .. 2;

foreach my $round (1 .. 5)
{
	my $lease = lease($holder, 'one');

	$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
	ok(wait_until($remote, $running, '1'), 'statement runs');
	$next->start("SELECT * FROM pgpool.query('one', 'select 1') $row");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'session waits');
	is($local->safe_psql('postgres', "SELECT pgpool.terminate($lease)"), 't', 'lease is terminated');
	$holder->finish(30);
	$holder->failed('PX001', qr/was terminated/, 'holder receives the error at once');
	is($next->finish(30) . $next->error, '1', 'waiter is granted a connection');
	is($remote->safe_psql('postgres', $running), '0', 'statement has ended on the remote server before the grant');
	$holder->run('SELECT pgpool.checkin_all()');
}

# without a running statement: idle, and in a transaction
foreach my $sql ('select 1', 'begin')
{
	my $lease = lease($holder, 'one');

	$holder->run("SELECT pgpool.exec($lease, '$sql')");
	$local->safe_psql('postgres', "SELECT pgpool.terminate($lease)");
	is($next->run("SELECT * FROM pgpool.query('one', 'select 1') $row") . $next->error, '1', "$sql: next session is granted a connection");
	$holder->fails("SELECT pgpool.exec($lease, 'select 1')", 'PX001', qr/was terminated/, "$sql: holder receives the error");
	$holder->run('SELECT pgpool.checkin_all()');
}

my $lease = lease($holder, 'timed');
$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
ok(wait_until($remote, $running, '1'), 'statement runs on a lease');
$local->safe_psql('postgres', q{ALTER SERVER timed OPTIONS (ADD lease_timeout '2s')});
$holder->finish(30);
$holder->failed('PX002', qr/has timed out/, 'holder receives the error of the timeout');
is($next->run("SELECT * FROM pgpool.query('timed', 'select 1') $row") . $next->error, '1', 'next session is granted a connection after the timeout');
is($remote->safe_psql('postgres', $running), '0', 'timed out statement has ended on the remote server before the grant');
$holder->run('SELECT pgpool.checkin_all()');
unlike(slurp_file($remote->logfile), qr/too many connections/, 'remote server never had a superfluous session');

# a cancel request that is ignored is repeated
$lease = lease($holder, 'stubborn');
$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
ok(wait_until($local, sub { noted() }, 'login begin'), 'stubborn statement runs');
$local->safe_psql('postgres', "SELECT pgpool.terminate($lease)");
$holder->finish(30);
$holder->failed('PX001', qr/was terminated/, 'holder receives the error before the statement has ended');
is($next->run("SELECT * FROM pgpool.query('stubborn', 'select 1') $row", 40) . $next->error, '1', 'next session is granted a connection after an ignored cancel request');
is(noted(), 'login begin end login', 'new connection is opened only after the end of the stubborn statement');
$holder->run('SELECT pgpool.checkin_all()');

# when a connection closes, the socket that a session has cached is shut down, too
unlink $journal;
is($holder->run("SELECT * FROM pgpool.query('rude', 'select 1') $row") . $holder->error, '1', 'session has the socket in its cache');
ok(wait_until($local, sub { noted() }, 'served'), 'lease was returned');
$local->safe_psql('postgres', "SELECT pgpool.reconnect('rude')");
ok(wait_until($local, sub { noted() }, 'served end of stream', 30), 'stream ends when the worker closes the connection');

$_->quit foreach $holder, $next;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
