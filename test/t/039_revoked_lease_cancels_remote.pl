# A lease that is taken away, by an administrator or by lease_timeout, is over at the
# remote, too, although its holder keeps the socket and the remote does not look
# whether its client is still there: the place is free when the remote is at rest.
use strict;
use warnings;

use PgpxFakeServer qw(ready done failure);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Each writes down what happens to it.  A statement of the stubborn one ends at the
# second request, and the rude one does not go when it is told goodbye.
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
make_pool($local, $remote, server => 'timed', options => { pool_size => 1, lease_timeout => '2s' });
make_pool($local, $fake, server => 'stubborn', remote_dbname => 'stubborn', options => {%fake_options});
make_pool($local, $fake, server => 'rude', remote_dbname => 'rude', options => {%fake_options});

# the remote would refuse a session too many, and say so
$remote->safe_psql('postgres', "CREATE ROLE $_ LOGIN PASSWORD '$_' CONNECTION LIMIT 1"),
  $local->safe_psql('postgres', "ALTER USER MAPPING FOR CURRENT_USER SERVER $_ OPTIONS (SET user '$_', SET password '$_')")
  foreach 'one', 'timed';

my $running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ 'pg_sleep' AND pid <> pg_backend_pid()";
my ($holder, $next) = map { PgpxSession->new($local) } 1 .. 2;

foreach my $round (1 .. 5)
{
	my $lease = lease($holder, 'one');

	$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
	ok(wait_until($remote, $running, '1'), 'a statement runs');
	$next->start("SELECT * FROM pgpool.query('one', 'select 1') $row");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'and one waits');
	is($local->safe_psql('postgres', "SELECT pgpool.terminate($lease)"), 't', 'the lease is terminated');
	$holder->finish(30);
	$holder->failed('PX001', qr/was terminated/, 'its holder learns it at once');
	is($next->finish(30) . $next->error, '1', 'the next one is served');
	is($remote->safe_psql('postgres', $running), '0', 'when the statement has ended at the remote');
	$holder->run('SELECT pgpool.checkin_all()');
}

# with nothing running, idle and in a transaction
foreach my $sql ('select 1', 'begin')
{
	my $lease = lease($holder, 'one');

	$holder->run("SELECT pgpool.exec($lease, '$sql')");
	$local->safe_psql('postgres', "SELECT pgpool.terminate($lease)");
	is($next->run("SELECT * FROM pgpool.query('one', 'select 1') $row") . $next->error, '1', "$sql: the next one is served");
	$holder->fails("SELECT pgpool.exec($lease, 'select 1')", 'PX001', qr/was terminated/, "$sql: the holder learns it");
	$holder->run('SELECT pgpool.checkin_all()');
}

my $lease = lease($holder, 'timed');
$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
ok(wait_until($remote, $running, '1'), 'a statement runs on a lease with a timeout');
$holder->finish(30);
$holder->failed('PX002', qr/has timed out/, 'its holder learns it');
is($next->run("SELECT * FROM pgpool.query('timed', 'select 1') $row") . $next->error, '1', 'the next one is served');
is($remote->safe_psql('postgres', $running), '0', 'when the statement has ended at the remote');
$holder->run('SELECT pgpool.checkin_all()');
unlike(slurp_file($remote->logfile), qr/too many connections/, 'the remote never had a session too many');

# a cancel that is lost is sent again
$lease = lease($holder, 'stubborn');
$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
ok(wait_until($local, sub { noted() }, 'login begin'), 'a statement runs');
$local->safe_psql('postgres', "SELECT pgpool.terminate($lease)");
$holder->finish(30);
$holder->failed('PX001', qr/was terminated/, 'its holder learns it before it has ended');
is($next->run("SELECT * FROM pgpool.query('stubborn', 'select 1') $row", 40) . $next->error, '1', 'the next one is served');
is(noted(), 'login begin end login', 'when it has ended');
$holder->run('SELECT pgpool.checkin_all()');

# a connection that is closed is closed for all: a session keeps its socket for the
# next time
unlink $journal;
is($holder->run("SELECT * FROM pgpool.query('rude', 'select 1') $row") . $holder->error, '1', 'a session has the socket');
ok(wait_until($local, sub { noted() }, 'served'), 'and has returned the lease');
$local->safe_psql('postgres', "SELECT pgpool.reconnect('rude')");
ok(wait_until($local, sub { noted() }, 'served end of stream', 30), 'the stream ends when the worker closes the connection');

$_->quit foreach $holder, $next;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
