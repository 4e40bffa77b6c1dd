# The connection for lock pings.
use strict;
use warnings;

use POSIX;
use PgpxClock;
use PgpxFakeServer qw(columns done failure message ready row);
use PgpxTest;
use PgpxTransfers qw(commits_synchronously commits_wait);
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
my $remote = remote_node('remote', conf => ['wal_level = replica', 'max_wal_senders = 1' ]);
my $local = local_node('local', start => 0);
with_clock($local, sub { $local->start });

# ---------- failures
# The worker's connection for lock pings fails in different ways: it is refused, does
# not answer, answers wrongly, ends. Each failure is logged once with the reason, and
# does not affect other servers. When it works again, the lock (which has a long ttl) is pinged
# again and still held.
{
	# only the pinger's connection fails; the pools' connections receive correct answers
	sub fake
	{
		my ($do) = @_;

		return sub { ($_[0]{startup}{application_name} // '') eq 'pgpool_ext lock' ? $do->($_[0]) : $_[0]->serve };
	}

	# the answer to the settings of a connection, in two parts
	sub settings
	{
		my ($self) = @_;

		$self->receive;
		$self->send(done('SET'));
		select undef, undef, undef, 0.05;
		$self->send(done('SET'), done('SET'), columns(1), done('SELECT 0'), ready());
		return;
	}

	# a file that records the end of the worker's connection
	my $endless_ended = PostgreSQL::Test::Utils::tempdir . '/endless_ended';
	sub endless
	{
		my ($self) = @_;
		my $ended = sub { open my $file, '>', $endless_ended; POSIX::_exit(0) };

		local $SIG{PIPE} = 'IGNORE';
		$self->{ended} = $ended;
		settings($self);
		$self->receive;
		$self->send(message('1', ''), message('2', ''), columns(1), row('f'), done('SELECT 1'), ready());
		select undef, undef, undef, 0.05;

		# more than a socket buffer holds; data that arrives together with an answer does
		# not count
		$self->send(pack('aN', 'N', 1 << 28), 'x' x 32_000_000);
		$self->read_to_end;
		$ended->();
	}

	# over TLS: records without data, instead of an answer
	my @flood_files = map { PostgreSQL::Test::Utils::tempdir . "/flood_$_" } qw(begun taken);

	# after an answer to a ping: a message whose length is not valid
	my $invalid_sent = PostgreSQL::Test::Utils::tempdir . '/invalid_sent';
	sub invalid
	{
		my ($self) = @_;

		settings($self);
		$self->receive;
		$self->send(message('1', ''), message('2', ''), columns(1), row('f'), done('SELECT 1'), ready());
		select undef, undef, undef, 0.05;
		$self->send(pack('aN', 'N', 1));
		open my $file, '>', $invalid_sent;
		sleep;
	}

	my $fake = PgpxFakeServer->new(
		invalid => fake(\&invalid),
		flood => fake(sub { $_[0]->receive; $_[0]->flood(@flood_files); sleep }),
		endless => fake(\&endless),
		mute => fake(sub { $_[0]->receive; sleep }),
		garbage => fake(sub { $_[0]->receive; $_[0]->send("\x9F" x 100); sleep }),
		wide => fake(sub { settings($_[0]); $_[0]->receive; $_[0]->send(message('1', ''), message('2', ''), columns(2), row('1', '2'), done('SELECT 1'), ready()); sleep }),
		no_login => { login => sub { sleep } },
		gone => fake(sub { $_[0]->receive; }));
	my $fake_host = sub { return "SET port '" . $fake->port . "', SET dbname '$_[0]'" };

	# the failure, and the logged reason
	my %cases = (
		start_error => [ q{ADD start_commands 'SELECT 1/0'}, qr/division by zero/ ],
		start_copy => [ q{ADD start_commands 'COPY pg_am TO STDOUT'}, qr/The start commands contain a COPY/ ],
		start_begin => [ q{ADD start_commands 'BEGIN'}, qr/The start commands left a transaction open/ ],
		database => [ q{SET dbname 'nowhere'}, qr/database "nowhere" does not exist/ ],
		mute => [ $fake_host->('mute'), qr/did not answer in time|did not end within/ ],
		garbage => [ $fake_host->('garbage'), qr/lost synchronization|message type/ ],
		wide => [ $fake_host->('wide'), qr/unexpected result/ ],
		no_login => [ $fake_host->('no_login'), qr/The connection attempt did not end within/ ],
		gone => [ $fake_host->('gone'), qr{closed the connection unexpectedly|SSL (?:connection has been closed|error|SYSCALL)} ]);

	my $holder = PgpxSession->new($local);
	my $caller = PgpxSession->new($local);
	my %token;

	sub option_list { return $_[0] =~ /ADD/ ? 'DROP start_commands' : "SET host '127.0.0.1', SET port '" . $remote->port . q{', SET dbname 'remote_db'}; }

	# the last log line about a server
	sub log_has
	{
		my ($server, $since, $line, $detail) = @_;
		my $log = slurp_file($local->logfile, $since);

		return $log =~ /pgpool_ext \Q$line\E "$server" of database .*(?:\n.*DETAIL:  (.*))?/ && (!$detail || $& =~ $detail) ? 1 : 0;
	}

	make_pool($local, $remote, server => $_, options => { sslmode => PgpxFakeServer::sslmode(), retry_max => '200ms' }) foreach sort keys %cases, 'password';
	$holder->run(q{SELECT pgpool.lock_setup('mute')});
	foreach my $name (sort keys %cases)
	{
		$token{$name} = $holder->run("SELECT pgpool.lock('$name', '$name', ttl => '10 min')");
	}
	is(scalar(grep { /^\d+$/ } values %token), scalar keys %cases, 'one lock is held on each server');

	# an ordinary user must not use a connection without a password
	my $ordinary = PgpxSession->new($local, user => 'app');
	$token{password} = $ordinary->run(q{SELECT pgpool.lock('password', 'password', ttl => '10 min')});
	like($token{password}, qr/^\d+$/, 'ordinary user holds a lock, too') or diag($ordinary->error);
	ok(wait_until($local, 'SELECT bool_and(last_ping IS NOT NULL) FROM pgpool.locks', 't'), 'all locks are pinged');

	# --- a connection that is lost during a ping: the ping is repeated on another one
	my $stuck = q{pg_stat_activity WHERE application_name = 'pgpool_ext lock' AND wait_event_type = 'Lock'};
	my $blocker = PgpxSession->new($remote, dbname => 'remote_db');
	$blocker->run('BEGIN; LOCK TABLE pgpool_lock.locks');
	ok(wait_until($remote, "SELECT count(*) > 0 FROM $stuck", 't'), 'pings are in progress');
	my $ending = $remote->safe_psql('postgres', "SELECT string_agg(pid::text, ',') FROM (SELECT pid FROM $stuck OFFSET 0) AS s WHERE pg_terminate_backend(pid)");
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid IN ($ending)", 0), 'connections of the pings end');
	$blocker->run('COMMIT');
	my $since = $local->safe_psql('postgres', 'SELECT now()');
	ok(wait_until($local, "SELECT bool_and(last_ping > '$since') FROM pgpool.locks", 't'), 'pings are repeated when their connections are lost');
	$blocker->quit;

	my $log = -s $local->logfile;
	foreach my $name (sort keys %cases)
	{
		$local->safe_psql('postgres', "ALTER SERVER $name OPTIONS ($cases{$name}[0])");

		# the conninfo is published to the worker by the next call
		$caller->run("SELECT pgpool.try_checkout('$name'); SELECT pgpool.checkin_all()");
	}
	# those last that do not answer, for which an attempt ends in time
	foreach my $name ((grep { !/mute|no_login/ } sort keys %cases), qw(mute no_login))
	{
		let_time_pass($local, 11) if $name eq 'mute';
		ok(wait_until($local, sub { log_has($name, $log, 'cannot ping the locks of server', $cases{$name}[1]) }, 1, 30), "$name: reason is logged")
		  or diag(join "\n", grep { /"$name"|DETAIL/ } split /\n/, slurp_file($local->logfile, $log));
	}
	$remote->safe_psql('postgres', q{SELECT 1});
	my $hba = slurp_file($remote->data_dir . '/pg_hba.conf');
	PostgreSQL::Test::Utils::append_to_file($remote->data_dir . '/pg_hba.conf.new', $hba =~ s/scram-sha-256/trust/r);
	rename $remote->data_dir . '/pg_hba.conf.new', $remote->data_dir . '/pg_hba.conf' or die "rename: $!";
	$remote->reload;
	ok(wait_until($remote, q{SELECT count(*) FROM pg_hba_file_rules WHERE auth_method = 'scram-sha-256'}, 0), 'remote server requests no password');

	# (other options, because the end of a session during a ping would be logged as the cause)
	$local->safe_psql('postgres', q{ALTER SERVER password OPTIONS (ADD keepalives '1')});
	$ordinary->run(q{SELECT pgpool.try_checkout('password'); SELECT pgpool.checkin_all()});
	ok(wait_until($local, sub { log_has('password', $log, 'cannot ping the locks of server', qr/must be authenticated by a password/) }, 1, 30), 'password: ping without a password is refused')
	  or diag(slurp_file($local->logfile, $log));
	is($local->safe_psql('postgres', q{SELECT count(*) FROM pgpool.locks WHERE state = 'held'}), keys(%cases) + 1, 'no lock is lost so far');
	check_invariants($local);

	# --- everything works again
	PostgreSQL::Test::Utils::append_to_file($remote->data_dir . '/pg_hba.conf.new', $hba);
	rename $remote->data_dir . '/pg_hba.conf.new', $remote->data_dir . '/pg_hba.conf' or die "rename: $!";
	$remote->reload;
	foreach my $name (sort keys %cases)
	{
		$local->safe_psql('postgres', "ALTER SERVER $name OPTIONS (@{[ option_list($cases{$name}[0]) ]})");
		$caller->run("SELECT pgpool.try_checkout('$name'); SELECT pgpool.checkin_all()");
	}
	foreach my $name (sort keys %token)
	{
		ok(wait_until($local, sub { log_has($name, $log, 'pings the locks of server', qr/ again/) }, 1, 30), "$name: lock is pinged again");
	}
	is($holder->run("SELECT pgpool.lock_valid('$_', '$_', $token{$_})"), 't', "$_: lock is still held") foreach sort keys %cases;
	is($ordinary->run("SELECT pgpool.lock_valid('password', 'password', $token{password})"), 't', 'password: lock is still held');

	# --- a table of another role, whose triggers would run as the user of the pings
	$log = -s $local->logfile;
	$remote->safe_psql('remote_db', 'CREATE ROLE stranger; ALTER TABLE pgpool_lock.locks OWNER TO stranger; GRANT ALL ON pgpool_lock.locks TO PUBLIC');
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'});
	# (only the first cause is logged for a server, and that can be the termination of its session)
	my $refused;
	ok(wait_until($local, sub { ($refused) = grep { log_has($_, $log, 'cannot ping the locks of server', qr/belongs to role "stranger"/) } sort keys %cases; defined $refused ? 1 : 0 }, 1, 30),
		'a table that belongs to another role is not used for pings')
	  or diag(slurp_file($local->logfile, $log));
	$remote->safe_psql('remote_db', 'ALTER TABLE pgpool_lock.locks OWNER TO remote_app; DROP ROLE stranger');
	ok(wait_until($local, sub { log_has($refused, $log, 'pings the locks of server', qr/ again/) }, 1, 30), 'lock is pinged when the tables belong to the owner of the database again');

	# --- the worker is restarted while the holder makes no calls
	terminate($local, worker_pid($local));
	ok(wait_until($local, sub { worker_pid($local) ne '' }, 1), 'new worker runs');
	is($holder->run("SELECT pgpool.unlock('mute', 'mute', $token{mute})") . $holder->error, 't', 'unlock publishes the conninfo');
	is($holder->run("SELECT pgpool.unlock('gone', 'gone', $token{gone})"), 't', 'unlock publishes the conninfo of each server');

	# --- between two pings the remote server begins a huge message: the worker does not
	# read it (the lock is lost, because the fake server does not store it)
	make_pool($local, $remote, server => 'endless', options => { sslmode => PgpxFakeServer::sslmode() });
	like($holder->run(q{SELECT pgpool.lock('endless', 'endless', ttl => '1 min')}), qr/^\d+$/, 'endless: lock is held');
	$local->safe_psql('postgres', 'ALTER SERVER endless OPTIONS (' . $fake_host->('endless') . ')');
	$caller->run(q{SELECT pgpool.try_checkout('endless'); SELECT pgpool.checkin_all()});
	ok(wait_until($local, sub { -e $endless_ended ? 1 : 0 }, 1, 30), 'endless: connection is closed');

	# --- libpq closes the socket after an invalid message: another connection whose socket
	# has the same number is not affected
	make_pool($local, $remote, server => 'invalid', options => { sslmode => PgpxFakeServer::sslmode() });
	like($holder->run(q{SELECT pgpool.lock('invalid', 'invalid', ttl => '10 s')}), qr/^\d+$/, 'invalid: lock is held');
	my $worker = worker_pid($local);
	$local->safe_psql('postgres', 'ALTER SERVER invalid OPTIONS (' . $fake_host->('invalid') . ')');
	$caller->run(q{SELECT pgpool.try_checkout('invalid'); SELECT pgpool.checkin_all()});
	ok(wait_until($local, sub { -e $invalid_sent ? 1 : 0 }, 1, 30), 'invalid: message was sent');
	is($caller->run(q{SELECT count(pgpool.checkout('mute')) FROM generate_series(1, 10)}), 10, 'invalid: connections to another server are opened');
	$caller->run('SELECT pgpool.checkin_all()');
	$local->safe_psql('postgres', "ALTER SERVER $_ OPTIONS (" . option_list('') . ')') foreach qw(invalid endless);
	$holder->run('SELECT pgpool.unlock_all()');
	like($holder->run(q{SELECT pgpool.lock('invalid', 'another', ttl => '30 s')}), qr/^\d+$/, 'invalid: another lock is held');
	ok(wait_until($local, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE name = 'another'}, 't', 30), 'invalid: lock is pinged by another connection');
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE datname = 'remote_db' AND application_name <> 'pgpool_ext lock'});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'mute'}, 0, 30), 'invalid: worker notices the end of each connection');
	is(worker_pid($local), $worker, 'invalid: the worker is the same');

	SKIP:
	{
		skip 'TLS records without data need TLS', 4 if !over_tls();
		make_pool($local, $remote, server => 'flood', options => { sslmode => PgpxFakeServer::sslmode() });
		like($holder->run(q{SELECT pgpool.lock('flood', 'flood', ttl => '20 s')}), qr/^\d+$/, 'flood: lock is held');
		$local->safe_psql('postgres', 'ALTER SERVER flood OPTIONS (' . $fake_host->('flood') . ')');
		$caller->run(q{SELECT pgpool.try_checkout('flood'); SELECT pgpool.checkin_all()});
		ok(wait_until($local, sub { -e $flood_files[0] ? 1 : 0 }, 1, 30), 'flood: flood has begun');
		is($caller->run(q{SELECT * FROM pgpool.query('mute', 'select 1') AS t(a int)}) . $caller->error, '1', 'flood: another pool works during the flood');
		ok(!-e $flood_files[1], 'flood: other pool did not wait for the end of the flood');
	}

	$_->quit foreach $holder, $caller, $ordinary;
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.locks', 0, 60), 'locks of sessions that end are released');
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- locks of one server
# Locks of one server. Pools that connect to different databases have different locks.
# The connection for pings ends between the commit of a release and its answer. It does
# not answer while another lock must be pinged.
SKIP:
{
	skip 'locks do not depend on TLS', 1 if over_tls();

	my $holder = PgpxSession->new($local);
	my $other = PgpxSession->new($local);
	my $pinger = q{FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'};

	make_pool($local, $remote, server => 'locks');
	$holder->run(q{SELECT pgpool.lock_setup('locks')});

	# --- without the option dbname, each remote user has a database of its own
	make_pool($local, $remote, server => 'by_user');
	$local->safe_psql('postgres', qq{
		ALTER SERVER by_user OPTIONS (DROP dbname);
		ALTER USER MAPPING FOR CURRENT_USER SERVER by_user OPTIONS (SET user 'remote_super', SET password '$REMOTE_SUPER_PASSWORD')});
	$remote->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(remote_app remote_super);
	is($holder->run(q{SELECT pgpool.lock_setup('by_user')}) . $holder->error, '', 'tables of one database are created');
	$remote->safe_psql('remote_app', 'GRANT CREATE ON DATABASE remote_app TO remote_app');
	is($holder->run(q{SET ROLE app; SELECT pgpool.lock_setup('by_user'); RESET ROLE}) . $holder->error, '', 'tables of the other database are created');
	my $token = $holder->run(q{SELECT pgpool.lock('by_user', 'name')});
	like($token, qr/^\d+$/, 'lock in one database is acquired');
	my $second = $holder->run(q{SET ROLE app; SELECT pgpool.try_lock('by_user', 'name'); RESET ROLE});
	like($second . $holder->error, qr/^\d+$/, 'the same session acquires the lock of this name in the other database');
	is($holder->run(qq{SET ROLE app; SELECT pgpool.unlock('by_user', 'name', $second); RESET ROLE}) . $holder->error, 't', 'lock in the other database is released');
	my $app = PgpxSession->new($local, user => 'app');
	my $third = $app->run(q{SELECT pgpool.try_lock('by_user', 'name')});
	like($third . $app->error, qr/^\d+$/, 'another session acquires the lock in the other database');
	is($other->run(q{SELECT pgpool.try_lock('by_user', 'name') IS NULL}), 't', 'lock in the first database is not free');
	is($app->run("SELECT pgpool.unlock('by_user', 'name', $third)") . $holder->run("SELECT pgpool.unlock('by_user', 'name', $token)"), 'tt', 'both locks are released');
	$app->quit;

	# --- the release is committed, and the connection ends before the answer; before it is
	# repeated, another server acquires the lock
	$token = $holder->run(q{SELECT pgpool.lock('locks', 'first', ttl => '10 min')});
	is($holder->run("SELECT pgpool.unlock('locks', 'first', $token)"), 't', 'release without a fault');
	# The worker sends a ping each second. If a ping waits, the release is not sent. Then try
	# again.
	my $waiting = "$pinger AND wait_event = 'SyncRep'";
	my $sent = '';
	my $watch = PgpxSession->new($remote);
	my $taker = PgpxSession->new($remote, dbname => 'remote_db');
	foreach my $attempt (1 .. 20)
	{
		$token = $holder->run(q{SELECT pgpool.lock('locks', 'first', ttl => '10 min')});
		commits_wait($remote);
		$holder->start("SELECT pgpool.unlock('locks', 'first', $token)");
		wait_until($remote, sub { $watch->run("SELECT count(*) $waiting") }, 1);
		$sent = $watch->run("SELECT query LIKE '%pgpool_lock.release%' $waiting");
		last if $sent eq 't';
		commits_synchronously($remote);
		$holder->finish(30);
	}
	is($sent, 't', 'release waits after its commit');
	$taker->start(q{SET synchronous_commit = local; UPDATE pgpool_lock.locks SET instance = 'elsewhere', state = 'held', token = token + 1 WHERE name = 'first'});
	ok(wait_until($remote, sub { $watch->run(q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%elsewhere%' AND pid <> pg_backend_pid()}) }, 1, 30), 'another server waits for the row');
	is($watch->run("SELECT pg_terminate_backend(pid, 20000) $waiting"), 't', 'connection ends before the answer');
	commits_synchronously($remote);
	is($holder->finish(30), '', 'unlock returns NULL');
	like($holder->error, qr/WARNING:  01000: lock "first" of server "locks" was released, but the remote server has not confirmed it/, 'unlock does not report the lock as lost');
	$taker->finish(30);
	is($remote->safe_psql('remote_db', q{SELECT instance, state FROM pgpool_lock.locks WHERE name = 'first'}), 'elsewhere|held', 'other server holds the lock');
	$_->quit foreach $watch, $taker;

	# --- a release is not answered while a lock with a short ttl must be pinged
	$token = $holder->run(q{SELECT pgpool.lock('locks', 'long', ttl => '1 h')});
	ok(wait_until($remote, "SELECT count(*) $pinger AND datname = 'remote_db' AND state = 'idle'", 1), 'connection for pings is idle');
	my $pid = $remote->safe_psql('postgres', "SELECT pid $pinger AND datname = 'remote_db'");
	kill 'STOP', $pid;
	$holder->start("SELECT pgpool.unlock('locks', 'long', $token)");
	ok(wait_until($local, q{SELECT state FROM pgpool.locks WHERE name = 'long'}, 'releasing'), 'release is not answered');
	like($other->run(q{SELECT pgpool.lock('locks', 'short', ttl => '15 s')}), qr/^\d+$/, 'another lock is acquired');
	ok(wait_until($local, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE name = 'short'}), 'lock with a shorter ttl is pinged by another connection');
	kill 'CONT', $pid;
	$holder->finish;
	$other->run('SELECT pgpool.unlock_all()');

	$_->quit foreach $holder, $other;
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.locks', 0, 60), 'locks of sessions that end are released');
	check_invariants($local);
}

# ---------- the back-off of a pool
# The pool tries to connect again an hour after its login was refused. The locks have a
# back-off of their own.
{
	my $holder = PgpxSession->new($local);
	my $pinged = q{SELECT last_ping > '%s' FROM pgpool.locks};

	make_pool($local, $remote, server => 'paused', options => { retry_min => '1h', retry_max => '1h' });
	$holder->run(q{SELECT pgpool.lock_setup('paused')});
	my $token = $holder->run(q{SELECT pgpool.lock('paused', 'own', ttl => '10 min')});
	ok(wait_until($local, sprintf $pinged, '-infinity'), 'paused: lock is pinged');
	my $log = -s $local->logfile;
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app NOLOGIN');
	$local->safe_psql('postgres', q{ALTER SERVER paused OPTIONS (ADD keepalives '1')});
	$holder->fails(q{SELECT pgpool.exec('paused', 'select 1')}, '08001', qr/not permitted to log in/, 'paused: login for the pool is refused');
	is_logged($local, $log, qr/cannot ping the locks of server "paused" .*\n.*not permitted to log in/, 'paused: login for the pings is refused');
	my $since = $local->safe_psql('postgres', 'SELECT now()');
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app LOGIN');
	ok(wait_until($local, sprintf $pinged, $since), 'paused: lock is pinged again');
	is($local->safe_psql('postgres', q{SELECT state FROM pgpool.pools WHERE server = 'paused'}), 'unavailable', 'paused: pool still waits');
	is($holder->run("SELECT pgpool.lock_valid('paused', 'own', $token)") . $holder->error, 't', 'paused: lock is still held');
	$holder->quit;
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.locks', 0), 'paused: lock is released');
	clean_slate($local, $remote);
}

leak_check($local, $remote);
done_testing();
