# Memory, descriptors, threads and computing time that a hostile remote server can use.
use strict;
use warnings;

use PgpxFakeServer qw(columns done greeting message ready row);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

# ---------- memory and descriptors
# Lengths that a remote server only announces, and unsolicited messages, cost neither
# memory nor log lines. Messages that arrive too early are not accepted as an answer.
{
	my $claim = pack 'aN', 'D', 0x3FFFF000;    # a row of 1 GB, of which nothing is sent
	my $fine = message('N', "SLOG\0VLOG\0C00000\0MLOG:  an invented line\n\0\0");

	sub hours { sleep 3600; return; }

	# Behaviour: log in, with additional messages, and then answer correctly.
	sub greets
	{
		my ($more, $behind) = @_;

		return { login => sub {
			my ($fake) = @_;

			$fake->send(greeting() . $more . ready . $behind);
			$fake->serve;
		} };
	}

	my $answer = columns(1) . row('666') . done('SELECT 1') . ready;
	my %behaviours = (
		honest => sub { $_[0]->serve },
		notices => sub { $_[0]->receive; my $some = message('N', "SNOTICE\0VNOTICE\0C00000\0Mhello\0\0") x 1000; $_[0]->send($some) foreach 1 .. 100; $_[0]->send($_[0]->answer('1')); $_[0]->serve },
		notifies => sub { $_[0]->receive; my $some = message('A', pack 'NZ*Z*', 1, 'channel', 'x' x 500) x 1000; $_[0]->send($some) foreach 1 .. 100; $_[0]->send($_[0]->answer('1')); $_[0]->serve },
		loud => sub { $_[0]->receive; $_[0]->send((map { message('N', "S$_\0V$_\0C00000\0Ma loud $_\0\0") } qw(WARNING LOG)), $_[0]->answer('1')); $_[0]->serve },
		row => sub { $_[0]->receive; $_[0]->send($_[0]->described, $claim); hours },
		talks_first => sub { $_[0]->serve(1); $_[0]->read_bytes(5); my $some = $fine x 20_000; $_[0]->send($some) foreach 1 .. 100; hours },
		huge_reset => sub { $_[0]->serve(1); $_[0]->receive; $_[0]->send($claim); hours },

		# the answer to the start commands
		start_claim => sub { $_[0]->receive; $_[0]->send(columns(1), row('x' x 1000)) ; hours },
		start_rows => sub { $_[0]->receive; $_[0]->send(columns(1)); my $rows = row('x' x 8000) x 100; $_[0]->send($rows) while 1 },
		start_some => sub { $_[0]->receive; $_[0]->send(columns(1), row('x') x 1000, done('SELECT 1000'), ready); $_[0]->serve },

		login_notices => greets($fine x 10, ''),
		behind_notice => greets('', $fine),
		behind_answer => greets('', $answer),
		behind_half => greets('', substr $answer, 0, 20),
		behind_header => greets('', 'D'),
	);

	my $fake = PgpxFakeServer->new(%behaviours);
	make_pool($local, $remote, server => 'good');
	my $session = PgpxSession->new($local);
	$fake->make_servers($session, '20s');

	# these use up the timeout
	$session->run("ALTER SERVER s_$_ OPTIONS (SET operation_timeout '2s')") foreach qw(row huge_reset);
	$session->run(q{ALTER SERVER s_start_rows OPTIONS (SET connect_timeout '2s')});

	# A query. With a parameter it uses the extended protocol.
	sub query
	{
		my ($server, @params) = @_;
		my $params = join '', map { ", '$_'" } @params;

		return "SELECT * FROM pgpool.query('s_$server', 'select 1'$params) AS t(a text)";
	}

	# Peak memory of a process in MB: VmPeak (reserved) or VmHWM (resident).
	sub most
	{
		my ($what, $pid) = @_;

		return PostgreSQL::Test::Utils::slurp_file("/proc/$pid/status") =~ /^$what:\s+(\d+) kB/m ? $1 / 1024 : die "no $what";
	}

	# The growth of a process's peak memory during a function.
	sub costs(&$$)
	{
		my ($do, $what, $pid) = @_;
		my $before = most($what, $pid);

		$do->();
		return most($what, $pid) - $before;
	}

	my $worker = worker_pid($local);
	is($session->run(query('honest')), '1', 'correct answer is accepted');

	# --- announced lengths; peaks never fall, so each test uses a new session
	foreach my $round (1 .. 3)
	{
		my $cost;
		my $more = costs
		{
			$cost = costs { is($session->run(query('huge_reset'), 20) . $session->error, '1', 'reset with an answer of 1 GB closes the connection') } 'VmPeak', $worker;
		} 'VmPeak', $session->pid;

		cmp_ok($cost + $more, '<', 500, 'no process allocates memory for the announced answer');
	}
	foreach my $params ([], ['x'])
	{
		my $other = PgpxSession->new($local);
		my $cost = costs
		{
			$other->fails("SET statement_timeout = '1s';\n" . query('row', @$params), '57014', qr/statement timeout/,
				'session waits for an announced row of 1 GB');
		} 'VmPeak', $other->pid;

		cmp_ok($cost, '<', 500, 'session does not allocate memory for the announced row');
		$other->quit;
	}

	# --- a hundred thousand notices or notifications in front of an answer
	foreach my $what (qw(notices notifies))
	{
		foreach my $params ([], ['x'])
		{
			my $other = PgpxSession->new($local);

			# memory that any statement needs is not counted
			$other->run('SET client_min_messages = error; ' . query('honest', @$params));
			my $cost = costs
			{
				is($other->run(query($what, @$params), 60) . $other->error, '1', "$what: answer behind the messages is correct");
			} 'VmHWM', $other->pid;

			cmp_ok($cost, '<', 30, "$what: memory use is small");
			note "$cost MB";
			$other->quit;
			$session->run("SELECT pgpool.reconnect('s_$what')");
		}
	}

	# --- notices for the client are not logged (the log is searched at the end)
	is($session->run(query('loud')), '1', 'answer behind a warning and a LOG message is correct');
	like($session->error, qr/WARNING:.*a loud WARNING.*NOTICE:.*a loud LOG/s, 'client receives both messages');

	# --- data that arrives before a statement has been sent is read, within bounds, so that
	# the statement can be sent
	{
		my $other = PgpxSession->new($local);
		my $lease = lease($other, 's_talks_first');
		my $large = "SELECT * FROM pgpool.query($lease, 'select 1 where \$1 is null', repeat('x', 20000000)) AS t(a text)";

		is($other->run($large), '1', 'large parameter is sent');
		my $cost = costs
		{
			$other->fails("SET statement_timeout = '1s';\n$large", '57014', qr/statement timeout/, 'statement to a remote server that sends and does not read times out');
		} 'VmHWM', $other->pid;

		cmp_ok($cost, '<', 30, 'memory use for unsolicited data is small');
		note "$cost MB";
		$other->quit;
	}
	check_invariants($local, 'invariants hold after unsolicited data');

	# --- rows of start commands, which libpq would keep
	my $cost = costs
	{
		$session->fails(query('start_rows'), '08001', qr/could not connect/, 'start_rows: login fails');
	} 'VmHWM', $worker;

	cmp_ok($cost, '<', 30, 'start_rows: memory use is small');
	note "$cost MB";
	is($session->run(query('start_some')) . $session->error, '1', 'start commands may return rows');
	is($session->run(query('login_notices')) . $session->error, '1', 'login with notices succeeds');

	# --- messages right behind the login
	is($session->run(query('behind_notice')) . $session->error, '1', 'notice behind the login does no harm');
	is($session->run(query('behind_answer')) . $session->error, '1', 'answer before the query is not accepted');
	foreach my $what (qw(behind_half behind_header))
	{
		my $got = $session->run(query($what), 20);

		ok($got eq '1' || $session->sqlstate =~ /^08/, "$what: no wrong answer is accepted") or diag($got . $session->error);
		note $got . $session->error;
	}

	# --- the worker frees the memory of each reset and of each connection, and the thread
	# stacks of each login
	my $used = sub {
		my $since = -s $local->logfile;
		my $bytes;

		$local->safe_psql('postgres', "SELECT pg_log_backend_memory_contexts($worker)");
		wait_until($local, sub { ($bytes) = PostgreSQL::Test::Utils::slurp_file($local->logfile, $since) =~ /TopMemoryContext: .* (\d+) used/; defined $bytes ? 1 : 0 }, 1) or die 'nothing was logged';
		return $bytes;
	};
	my $mapped = sub { return scalar(() = PostgreSQL::Test::Utils::slurp_file("/proc/$worker/maps") =~ /\n/g); };

	# Rounds of connections, until one of them needs no memory: a leak would need some in each.
	# (Idle connections of the other pools keep their input buffers, from the first reset that the
	# worker reads.)
	foreach my $case ([ 'memory of resets and connections', $used ], [ 'thread stacks', $mapped ])
	{
		my ($what, $measure) = @$case;
		my $before = $measure->();

		ok( wait_until($local, sub {
					foreach (1 .. 2)
					{
						$session->run(query('honest'));
						wait_until($local, q{SELECT state FROM pgpool.connections WHERE server = 's_honest'}, 'idle');
					}
					$session->run(q{SELECT pgpool.reconnect('s_honest')});
					wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 's_honest'}, 0);
					my $grown = $measure->() - $before;

					$before += $grown;
					return $grown <= 0 ? 1 : 0;
				}, 1), "worker frees $what");
	}

	is(worker_pid($local), $worker, 'worker was not restarted');
	is($local->safe_psql('postgres', query('honest')), '1', 'other pools work');
	check_invariants($local, 'invariants hold');
	$session->quit;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
	my $log = PostgreSQL::Test::Utils::slurp_file($local->logfile);
	unlike($log, qr/PANIC|TRAP|was terminated by/, 'no process crashed');
	unlike($log, qr/an invented line|a loud|arrived from server while idle/, 'no message of the remote server is in the log');
}

# ---------- computations of SCRAM
# A remote server requests a SCRAM iteration count whose computation lasts too long. It
# is computed in threads beside the event loop, so other pools are not affected.
# Abandoned computations continue in a bounded number of threads, even if
# options change, affect no other login, and leave nothing in the end.
SKIP:
{
	skip 'the computations of SCRAM do not depend on TLS', 1 if over_tls();

	# iteration counts: at least a minute of computation on any machine, and longer than connect_timeout
	my $FOR_EVER = 1_000_000_000;
	my $SOME_TIME = 1_500_000;

	sub asks_for
	{
		my ($iterations) = @_;

		return { login => sub {
			my ($fake) = @_;

			$fake->send(message('R', pack('N', 10) . "SCRAM-SHA-256\0\0"));
			my ($type, $length) = unpack 'aN', $fake->read_bytes(5);
			my ($nonce) = $fake->read_bytes($length - 4) =~ /,r=([^,]+)/;
			$fake->send(message('R', pack('N', 11) . "r=${nonce}more,s=c2FsdHNhbHRzYWx0c2FsdA==,i=$iterations"));
			sleep 3600;
		} };
	}

	my $fake = PgpxFakeServer->new(forever => asks_for($FOR_EVER), late => asks_for($SOME_TIME));
	my %options = (port => $fake->port, sslmode => PgpxFakeServer::sslmode(), pool_size => 8, retry_min => '10 ms', retry_max => '10 ms');
	my @sessions = map { PgpxSession->new($local) } 1 .. 6;
	my $other = PgpxSession->new($local);

	make_pool($local, $remote, server => 'other');
	make_pool($local, $remote, server => 'forever', remote_dbname => 'forever', options => { %options, connect_timeout => '1h' });
	make_pool($local, $remote, server => 'late', remote_dbname => 'late', options => { %options, connect_timeout => '100ms' });

	my $worker = worker_pid($local);

	sub threads { return threads_of($worker); }

	# The number of threads, and of those that block all handled signals. (A thread whose
	# step has ended exists for a moment longer.)
	sub masks
	{
		my %threads = (all => 0, blocked => 0);

		foreach my $status (glob "/proc/$worker/task/*/status")
		{
			next if $status =~ m{/task/$worker/};
			open my $file, '<', $status or next;
			my ($mask) = map { /^SigBlk:\s+\w*(\w{8})$/ ? hex $1 : () } <$file>;
			next if !defined $mask;
			$threads{all}++;
			$threads{blocked}++ if 6 == grep { $mask >> ($_ - 1) & 1 } 1, 2, 10, 12, 14, 15;
		}
		return "$threads{all} $threads{blocked}";
	}

	my $kept = q{SELECT sum(descriptors) - } . descriptors_wanted() . q{ FROM pgpool.workers};

	# --- connect_timeout
	ok(wait_until($local, sub {
		# on a busy machine another attempt may be needed to reach the computation
		$other->run(q{SELECT pgpool.checkout('late', '30 s')});
		return $other->sqlstate eq '08001' && $other->error =~ /did not end within connect_timeout \(0\.1 s\): what the remote server asks for takes longer to compute/ ? 1 : 0;
	}, 1), 'waiter receives the reason') or diag($other->error);
	ok(wait_until($local, \&threads, 0), 'abandoned login ends');
	ok(wait_until($local, $kept, 0), 'socket of the abandoned login is closed');

	# --- other pools do not wait
	$_->start(q{SELECT pgpool.checkout('forever', '1 h')}) foreach @sessions;
	ok(wait_until($local, \&threads, 4), 'pool has four logins in threads');
	ok(wait_until($local, \&masks, '4 4'), 'threads block signals');
	like($other->run(q{SELECT pgpool.checkout('other', '20 s')}), qr/^\d+$/, 'another pool of the worker connects meanwhile')
	  or diag($other->error);
	is($other->run(q{SELECT * FROM pgpool.query('other', 'select 7') AS (x int)}), 7, 'another pool executes statements');
	is($other->run(q{SELECT pgpool.checkin_all()}), 1, q{another pool's lease is returned});
	ok(wait_until($local, q{SELECT connecting FROM pgpool.pools WHERE server = 'forever'}, 6), 'other logins are still connecting');
	check_invariants($local);

	# --- the waiters end, and the pool is drained
	terminate($local, $_->pid) foreach @sessions;
	$local->safe_psql('postgres', q{ALTER SERVER forever OPTIONS (SET connect_timeout '500ms')});
	$local->safe_psql('postgres', q{SELECT pgpool.drain('forever')});
	ok(wait_until($local, \&threads, 4), 'four threads are left');
	ok(wait_until($local, $kept, 4), 'abandoned logins keep their sockets');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'forever'}, 0), 'pool has no connections');
	check_invariants($local);

	# --- further attempts start no thread
	$local->safe_psql('postgres', q{SELECT pgpool.resume('forever')});
	$other->fails(q{SELECT pgpool.checkout('forever', '10 s')}, '08001', qr/did not end within connect_timeout \(0\.5 s\): earlier logins of the pool have not ended/, 'attempt after a change of an option in place has to wait');
	is(threads(), 4, "attempt after a change of an option in place has no thread");

	# --- a working address does not queue behind an unresponsive one
	$local->safe_psql('postgres', q{ALTER SERVER forever OPTIONS (SET port '} . $remote->port . q{', SET dbname 'remote_db', SET connect_timeout '1min', SET sslmode 'prefer')});
	like($other->run(q{SELECT pgpool.checkout('forever', '30 s')}), qr/^\d+$/, 'pool connects to its new address') or diag($other->error);
	is($other->run(q{SELECT pgpool.checkin_all()}), 1, 'lease can be returned');

	# --- the worker exits in order
	my $log = -s $local->logfile;
	terminate($local, $worker);
	ok(wait_until($local, sub { my $pid = worker_pid($local); $pid ne '' && $pid ne $worker ? 1 : 0 }, 1), 'worker starts again');
	unlike(slurp_file($local->logfile, $log), qr/was terminated by signal|terminating any other active/, 'worker has not crashed');
	like($other->run(q{SELECT pgpool.checkout('other', '30 s')}), qr/^\d+$/, 'pools of the new worker work');
	$_->quit foreach @sessions, $other;
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
