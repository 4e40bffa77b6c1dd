# Host names whose lookups, and logins whose computations, do not end: their attempts time out,
# other pools are not affected, the numbers of abandoned ones are limited, and nothing of new
# options is sent to the old host.
use strict;
use warnings;

use Errno qw(EAGAIN);
use IO::Select;
use IO::Socket::INET;
use PgpxFailing;
use PgpxFakeServer qw(greeting backend_key ready done);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

PgpxFailing::skip_all_without();

# "overtaken" logs in when the file $said exists, and writes the messages that it receives
# to the journal. (The server is made first, because its processes inherit the pipes of
# existing sessions.)
my $journal = PostgreSQL::Test::Utils::tempdir . '/journal';
my $said = "$journal.said";
my $fake = PgpxFakeServer->new(silent => sub { $_[0]->receive; sleep 3600 }, overtaken => { login => sub {
	my ($self) = @_;

	append_to_file($journal, "$$ login\n");
	select undef, undef, undef, 0.01 until -e $said;
	$self->send(greeting(), backend_key(), ready());
	while (my $sql = $self->receive)
	{
		append_to_file($journal, "$$ $sql\n");
		$self->send($sql =~ /^select/ ? $self->answer('1') : (done('DISCARD ALL'), ready()));
	}
} });
my $remote = remote_node('remote');
my $local = local_node('local', start => 0);

failing($local, sub { $local->start });

my %quick = (pool_size => 2, retry_min => '10 ms', retry_max => '50 ms');
make_pool($local, $remote, server => 'one', options => {%quick});
make_pool($local, $remote, server => 'named', options => { %quick, host => 'localhost' });
my ($session, $other) = map { PgpxSession->new($local) } 1 .. 2;

sub works
{
	my ($server, $name) = @_;

	return ok(wait_until($local, sub { $other->run("SELECT a FROM pgpool.query('$server', 'select 42') AS t(a int)") }, '42', 30), "$name: pool works again")
	  || diag($other->error);
}

works($_, 'without failures') foreach qw(one named);

# --- a lookup that ends after its attempt has timed out
{
	$session->run(q{SELECT pgpool.drain('named'); SELECT pgpool.resume('named'); ALTER SERVER named OPTIONS (ADD connect_timeout '300ms')});
	hold_logins($local, 'localhost');
	$session->fails(q{SELECT pgpool.checkout('named', '10 s')}, '08001', qr/The lookup of the host name did not end within connect_timeout \(0\.3 s\)/, 'lookup exceeds connect_timeout');
	hold_logins($local);
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, 0), 'lookup ends later');
	$session->run(q{ALTER SERVER named OPTIONS (SET connect_timeout '30s')});
	works('named', 'late lookup');

	# a host with a colon that is not an address is looked up, too
	make_pool($local, $remote, server => 'colon', options => { %quick, host => 'x:y.invalid', connect_timeout => '300ms' });
	hold_logins($local, 'x:y.invalid');
	$session->fails(q{SELECT pgpool.checkout('colon', '10 s')}, '08001', qr/The lookup of the host name did not end within connect_timeout/, 'name with a colon is looked up in a thread');
	hold_logins($local);
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, 0), 'lookup of the name with a colon ends');
	$session->run(q{ALTER SERVER colon OPTIONS (SET connect_timeout '30s')});
	$session->fails(q{SELECT pgpool.checkout('colon', '10 s')}, '08001', qr/could not translate host name "x:y\.invalid"/, 'name with a colon has no address');
	$session->run(q{ALTER SERVER colon OPTIONS (SET host 'fe80::1%lo')});
	$session->fails(q{SELECT pgpool.checkout('colon', '10 s')}, '08001', qr/connection to server at "fe80::1%lo"/, 'address with a scope is not looked up');
}

# --- options change while the host of the old ones is looked up: nothing of the new
# options may be sent to the old host, neither by the pool nor by the pinger
{
	my $old = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die "no socket: $!";
	my $pinged = q{SELECT count(*) FROM pgpool.locks WHERE server = 'moved' AND last_ping > '%s'};

	make_pool($local, $remote, server => 'moved', options => { %quick, pool_size => 4, host => 'localhost', connect_timeout => '10min' });
	$session->run(q{SELECT pgpool.lock_setup('moved')});
	my $moved = $session->run(q{SELECT pgpool.lock('moved', 'a', ttl => '10 min')});
	ok(wait_until($local, sprintf($pinged, '-infinity'), 1), 'lock is pinged');
	$session->run('SELECT pgpool.checkin_all()');
	hold_logins($local, 'localhost');
	$session->run(q{ALTER SERVER moved OPTIONS (SET port '} . $old->sockport . q{')});
	$other->start(q{SELECT pgpool.checkout('moved', '10 min')});
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, 2, 60), 'host is looked up by the pool and by the pinger');
	$session->run(q{ALTER SERVER moved OPTIONS (SET host '127.0.0.1', SET port '} . $remote->port . q{')});
	$session->start(q{SELECT a FROM pgpool.query('moved', 'select 1') AS t(a int)});
	like($other->finish(60), qr/^\d+$/, 'connection with the new options opens meanwhile') or diag($other->error);
	my $now = $local->safe_psql('postgres', 'SELECT now()');
	hold_logins($local);
	is($session->finish(60) . $session->error, '1', 'waiting call succeeds');
	ok(wait_until($local, sprintf($pinged, $now), 1, 60), 'lock is pinged again');
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, 0), 'lookups have ended');

	# the worker releases the lock after it has handled the ends of the lookups
	is($session->run("SELECT pgpool.unlock('moved', 'a', $moved)"), 't', 'lock is released');
	ok(!IO::Select->new($old)->can_read(0), 'no connection to the old host is opened');
	$other->run('SELECT pgpool.checkin_all()');
}

# --- options change, and no session can publish them: the worker does not connect with
# the old ones for the waiters
{
	make_pool($local, $remote, server => 'unpublished', options => { %quick, pool_size => 1 });
	my $lease = lease($session, 'unpublished');
	$session->run("SELECT pgpool.exec($lease, 'select 1')");
	$other->start(q{SELECT a FROM pgpool.query('unpublished', 'select current_database()') AS t(a text)});
	ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'unpublished'}, 1), 'unpublished: session waits');
	fail_next($local, 'sendmsg', process => 'session', errno => EAGAIN, times => 1_000_000_000);
	$local->safe_psql('postgres', q{ALTER SERVER unpublished OPTIONS (SET dbname 'postgres')});
	is($session->run("SELECT pgpool.checkin($lease)") . $session->error, '', 'unpublished: connection with the old options is returned');
	ok(wait_until($local, q{SELECT total, waiters FROM pgpool.pools WHERE server = 'unpublished'}, '0|0'), 'unpublished: connection with the old options closes');
	ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $other->pid, 'Extension'), 'unpublished: session waits until it can publish the new options');
	unlink PgpxFailing::order($local);
	is($other->finish(60) . $other->error, 'postgres', 'unpublished: waiter is granted a connection with the new options');
	is($local->safe_psql('postgres', q{SELECT connects FROM pgpool.stats WHERE server = 'unpublished'}), '2', 'unpublished: no superfluous connection was opened');
}

# --- the worker learns of new options and of the end of a lookup, or of a login, at
# the same time
{
	my $old = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die "no socket: $!";
	my $worker = worker_pid($local);
	my $busy = PgpxSession->new($local);

	# The worker is stopped in a recv for another pool. When it continues, it sees all events
	# of that time at once.
	my $at_once = sub {
		my ($server, $name, $change) = @_;

		ok(wait_until($local, sub { threads_of($worker) }, 1), "$name is in progress");
		stop_in_recv($local, $worker);

		# the worker reads the answer to the reset of a lease
		$busy->start(q{DO $$ DECLARE lease bigint := pgpool.checkout('one'); BEGIN
			PERFORM pgpool.exec(lease, 'select 1'); PERFORM pgpool.checkin(lease); END $$});
		ok(wait_until($local, sub { is_stopped_in_recv($local, $worker) }, 1), "$name: worker is stopped in another pool's work");
		$session->run("ALTER SERVER $server OPTIONS ($change)");
		$session->start("SELECT a FROM pgpool.query('$server', 'select 1') AS t(a int)");
		ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = '$server'", 2), "$name: new options are published");
		hold_logins($local);
		ok(wait_until($local, sub { threads_of($worker) }, 0), "$name: thread has ended");
		stop_in_recv($local);
		is($session->finish(60) . $session->error, '1', "$name: session that published is granted a connection");
		like($other->finish(60), qr/^\d+$/, "$name: earlier waiter is granted a connection") or diag($other->error);
		is($busy->finish(60) . $busy->error, '', "$name: statement of the other pool is answered");
		$_->run('SELECT pgpool.checkin_all()') foreach $session, $other;
	};

	make_pool($local, $remote, server => 'at_once', options => { %quick, connect_timeout => '10min', host => 'localhost', port => $old->sockport });
	hold_logins($local, 'localhost');
	$other->start(q{SELECT pgpool.checkout('at_once', '10 min')});
	$at_once->('at_once', 'a lookup', q{SET host '127.0.0.1', SET port '} . $remote->port . q{'});
	ok(!IO::Select->new($old)->can_read(0), 'no connection to the old host is opened');

	make_pool($local, $fake, server => 'overtaken', remote_dbname => 'overtaken', options => { %quick, connect_timeout => '10min', sslmode => PgpxFakeServer::sslmode() });
	$other->start(q{SELECT pgpool.checkout('overtaken', '10 min')});
	ok(wait_until($local, sub { -e $journal ? 1 : 0 }, 1), 'login begins');
	hold_logins($local, 'overtaken');
	append_to_file($said, '');
	$at_once->('overtaken', 'the end of a login', q{ADD start_commands 'set geqo = on'});
	my ($first, $rest) = slurp_file($journal) =~ /^(\d+) login\n(.*)/s;
	unlike($rest, qr/^$first set geqo/m, 'new start commands are not sent on the old connection');
	like($rest, qr/ set geqo/, 'new start commands are sent on the next connection');
	$busy->quit;
}

# --- lookups: at most four for a pool with the same conninfo, abandoned ones included, and
# they look up no further names. Other pools of the same user are not affected.
{
	my $worker = worker_pid($local);

	make_pool($local, $remote, server => 'dead', options => { %quick, connect_timeout => '50ms', host => 'localhost,held.example' });
	make_pool($local, $remote, server => 'alive', options => { %quick, host => 'LOCALHOST' });
	hold_logins($local, 'localhost', 'held.example');
	ok(wait_until($local, sub {
		$session->run(q{SELECT pgpool.checkout('dead', '10 s')});
		return $session->sqlstate eq '08001' && $session->error =~ /The lookup of the host name did not end within connect_timeout \(0\.05 s\): earlier host name lookups of the pool have not ended/ ? 1 : 0;
	}, 1, 60), 'further lookup of the pool has to wait') or diag($session->error);
	is(threads_of($worker), 4, 'four lookups are abandoned');
	works('alive', 'another pool during the lookups');
	hold_logins($local, 'held.example');
	ok(wait_until($local, sub { threads_of($worker) }, 0), 'abandoned lookup does not look up further names');
	hold_logins($local);

	make_pool($local, $remote, server => 'names', options => { host => 'LocalHost', pool_size => 20, connect_timeout => '10min' });
	hold_logins($local, 'LocalHost');
	$other->start(q{SELECT pgpool.prewarm('names', 20, '9 min')});
	ok(wait_until($local, sub { threads_of($worker) }, 4, 30), 'four lookups of a pool run at a time');
	hold_logins($local);
	is($other->finish(600) . $other->error, 20, 'lookups that waited follow');
	is($local->safe_psql('postgres', q{SELECT connects_failed FROM pgpool.stats WHERE server = 'names'}), 0, 'no attempt has failed');
	$other->run(q{SELECT pgpool.drain('names', '30 s')});
}

# --- two hosts, and logins that compute until the time is up: two logins that began together
# exclude the same host, and each attempt after them starts with the other host
{
	my $second = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die "no socket: $!";
	my $tried = 0;

	make_pool($local, $remote, server => 'two_hosts', options => { %quick, host => '127.0.0.1,127.0.0.1', port => $remote->port . ',' . $second->sockport, connect_timeout => '1s' });
	hold_logins($local, 'remote_db');
	$other->start(q{SELECT pgpool.checkout('two_hosts', '10 s')});
	ok(wait_until($local, sub {
		$session->run(q{SELECT pgpool.checkout('two_hosts', '10 s')});
		return $local->safe_psql('postgres', q{SELECT connects_failed FROM pgpool.stats WHERE server = 'two_hosts'});
	}, 5), 'five attempts fail');
	$tried++ while IO::Select->new($second)->can_read(0) && $second->accept;
	is($tried, 2, 'third and fifth attempts start with the second host, the fourth one with the first host');
	$other->finish;
	hold_logins($local);
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, 0), 'logins end');
}

# --- abandoned logins that compute: at most four for a pool with the same conninfo, and
# 64 for a user, whatever options and user mappings change
{
	my %hasty = (pool_size => 8, connect_timeout => '300ms', retry_min => '10 ms', retry_max => '10 ms');
	my @held = map { "held$_" } 0 .. 4;
	my $worker = worker_pid($local);
	my $threads = sub { return threads_of($worker) };
	my $before_it = qr/did not end within connect_timeout \(0\.3 s\): earlier logins of the pool have not ended/;

	# on a busy machine another attempt may be needed to reach the computation
	my $leave_behind = sub {
		my ($wanted, @servers) = @_;
		my %callers = map { $_ => PgpxSession->new($local, $_ eq 'held4' ? (user => 'app') : ()) } @servers;
		my %begun;

		ok(wait_until($local, sub {
			foreach my $server (@servers)
			{
				$callers{$server}->start("SELECT pgpool.prewarm('$server', 4, timeout => '10 min')")
				  if !$begun{$server}++ || $callers{$server}->done;
			}
			return $threads->();
		}, $wanted), "$wanted threads are abandoned");
		$session->run('SELECT pg_terminate_backend(' . $_->pid . ')') foreach values %callers;
		ok(wait_until($local, q{SELECT sum(connecting) FROM pgpool.pools}, 0), 'no attempt is left');
		return;
	};
	# not every attempt reaches the point at which it has to wait, so attempts are repeated
	my $fails_with = sub {
		my ($server, $why, $name) = @_;

		ok(wait_until($local, sub {
			$session->run("SELECT pgpool.checkout('$server', '10 s')");
			return $session->sqlstate eq '08001' && $session->error =~ $why ? 1 : 0;
		}, 1), $name) or diag($session->error);
		return;
	};
	my $change_mappings = sub {
		$session->run("ALTER USER MAPPING FOR CURRENT_USER SERVER $_ OPTIONS (SET password '$REMOTE_APP_PASSWORD')") foreach @_;
		return;
	};

	# in a pool that is in use, and so stays the same with other options, new logins do
	# not queue behind logins with the old options
	make_pool($local, $remote, server => 'in_use', options => { %hasty, connect_timeout => '30s' });
	my $lease = lease($session, 'in_use');
	$session->run(qq{ALTER SERVER in_use OPTIONS (SET connect_timeout '$hasty{connect_timeout}')});
	hold_logins($local, 'remote_db');
	$leave_behind->(4, 'in_use');
	$session->run(q{ALTER SERVER in_use OPTIONS (SET dbname 'postgres', SET connect_timeout '10min')});
	is($other->run(q{SELECT a FROM pgpool.query('in_use', 'select 1') AS t(a int)}) . $other->error, '1', 'pool connects at once with other options');
	ok(wait_until($local, $threads, 4), 'abandoned logins still compute');
	hold_logins($local);
	ok(wait_until($local, $threads, 0), 'abandoned logins end');
	$session->run("SELECT pgpool.checkin($lease)");

	make_pool($local, $remote, server => $_, options => \%hasty, $_ eq 'held4' ? (remote_dbname => 'template1') : ()) foreach @held;
	$session->run('ALTER SERVER held4 OWNER TO app; GRANT EXECUTE ON FUNCTION pgpool.prewarm TO app');
	make_pool($local, $remote, server => 'newcomer', remote_dbname => 'postgres', options => \%quick);
	hold_logins($local, 'remote_db', 'template1');
	$leave_behind->(20, @held);
	$change_mappings->('held1');
	$leave_behind->(24, 'held1');
	$fails_with->('held1', $before_it, 'further login of the pool has to wait');
	works('newcomer', 'pool without abandoned logins');
	check_invariants($local);

	# the logins of a user that can change user mappings and create servers are limited
	$remote->safe_psql('postgres', 'CREATE DATABASE more_db OWNER remote_app');
	make_pool($local, $remote, server => $_, remote_dbname => 'more_db', options => \%hasty) foreach map { "more$_" } 0 .. 11;
	make_pool($local, $remote, server => 'of_others', remote_dbname => 'postgres', options => \%quick);
	hold_logins($local, 'remote_db', 'template1', 'more_db');
	$leave_behind->(68, map { "more$_" } 0 .. 10);
	my $too_many = qr/did not end within connect_timeout \(0\.3 s\): too many logins of this user have not ended/;
	$fails_with->('more11', $too_many, 'further server of the same user has to wait');
	$session->run("DROP USER MAPPING FOR CURRENT_USER SERVER held1; CREATE USER MAPPING FOR CURRENT_USER SERVER held1 OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')");
	$fails_with->('held1', $too_many, 'new user mapping does not lift the limit');
	ok(wait_until($local, $threads, 68), 'no login has started another thread');
	is($local->safe_psql('postgres', q{SELECT a FROM pgpool.query('of_others', 'select 1') AS t(a int)}, extra_params => [ '-U', 'app' ]), '1', 'another user can connect');
	check_invariants($local);
	hold_logins($local, 'remote_db', 'template1');
	ok(wait_until($local, $threads, 24), 'abandoned logins of these servers end');

	$session->run("ALTER SERVER $_ OPTIONS (SET connect_timeout '10min')") foreach @held;
	$session->start(q{SELECT pgpool.checkout('held2', '10 min')});
	$other->start(q{SELECT pgpool.checkout('held0', '10 min')});
	ok(wait_until($local, q{SELECT sum(connecting) FROM pgpool.pools}, 2), 'two logins queue for a thread');
	ok(wait_until($local, $threads, 24), 'queued logins have no thread');
	hold_logins($local, 'remote_db');
	ok(wait_until($local, $threads, 20), 'queued logins have no thread after the end of the logins of another user');
	hold_logins($local);
	like($_->finish(60), qr/^\d+$/, 'login succeeds when the abandoned logins have ended') or diag($_->error) foreach $session, $other;
	ok(wait_until($local, $threads, 0), 'no thread is left');
	$_->quit foreach $session, $other;

	# The number of abandoned logins is also limited by the file descriptors of the worker,
	# apart from those of the server's own files: at most a third of them is for other
	# purposes than connections, and over TLS a login needs two.
	my $most = over_tls() ? 250 : 130;
	$local->append_conf('postgresql.conf', "max_files_per_process = $most");
	failing($local, sub { $local->restart });
	my ($postmaster) = split /\n/, slurp_file($local->data_dir . '/postmaster.pid');
	is(system('prlimit', '--pid', $postmaster, "--nofile=$most:$most"), 0, "limit is $most descriptors");
	terminate($local, worker_pid($local));
	ok(wait_until($local, 'SELECT state FROM pgpool.workers', 'running'), 'new worker has this limit');
	$worker = worker_pid($local);
	($session, $other) = map { PgpxSession->new($local) } 1 .. 2;
	$session->run("ALTER SERVER $_ OPTIONS (SET connect_timeout '300ms')") foreach @held;
	foreach (1 .. 3)
	{
		hold_logins($local, 'remote_db', 'template1');
		$leave_behind->(20, @held);
		hold_logins($local);
		ok(wait_until($local, $threads, 0), 'abandoned logins end');
	}
	works('one', 'file descriptors of abandoned logins');
}

$_->quit foreach $session, $other;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
