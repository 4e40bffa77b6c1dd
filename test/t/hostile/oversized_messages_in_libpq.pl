# Messages of a gigabyte that are announced, and sent, while libpq reads: in a login, in
# the answer to start commands, in answers to lock pings. The worker closes the
# connection long before it has read that much, also if the data arrives faster than
# libpq reads it.
use strict;
use warnings;

use POSIX ();

use PgpxFailing;
use PgpxFakeServer qw(message greeting backend_key ready done columns row);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'usleep';

my $folder = PostgreSQL::Test::Utils::tempdir_short;

# Send the header of a huge message, and then its data, with pauses: libpq reads on as long
# as data arrives.
sub flood
{
	my ($fake, $type) = @_;

	$fake->send(pack 'aN', $type, 0x3FFFF000);
	while (1)
	{
		$fake->send('x' x 100_000);
		usleep(2000);
	}
	return;
}

# The same without pauses, so that libpq does not return before it has read the message.
sub flood_fast
{
	my ($fake, $type) = @_;

	$fake->send(pack 'aN', $type, 0x3FFFF000);
	append_to_file("$folder/begun", "$$\n");
	my $part = 'x' x 8_000_000;
	1 while defined syswrite $fake->{socket}, $part;
	append_to_file("$folder/ended", "$$\n");
	POSIX::_exit(0);
}

# Answers sessions correctly. $does is called for the pinger's connection: after the
# login if $after is set.
sub keeper
{
	my ($does, $after) = @_;

	return { login => sub {
		my ($fake) = @_;
		my $is_pinger = $fake->{startup}{application_name} eq 'pgpool_ext lock';

		$fake->send(greeting());
		$does->($fake) if $is_pinger && !$after;
		$fake->send(backend_key(), ready);
		while (1)
		{
			my $sql = $fake->receive;

			if ($sql =~ /^WITH got /)
			{
				# the first command verifies the owners of the tables
				$fake->send(message('1', '') . message('2', '') . done('DO')
					  . message('1', '') . message('2', '') . columns(7)
					  . message('D', pack 'n N/a N6', 7, '1234', (0xFFFFFFFF) x 6) . done('SELECT 1') . ready);
			}
			elsif ($is_pinger && $sql =~ /^WITH confirmed /)
			{
				$fake->send(message('1', '') . message('2', '') . columns(1));
				$does->($fake);
			}
			else
			{
				$fake->send(done('SET'), ready);
			}
		}
	} };
}

# Confirm the lock of a ping. The arguments are further messages of the answer.
sub confirm
{
	my ($fake, @messages) = @_;
	my ($request) = $fake->{bind} =~ /\{"a lock"\}.{4}\{(\d+)\}/s or die 'unexpected ping';

	return $fake->send(@messages, row($request), done('SELECT 1'), ready);
}

# ParameterStatus messages of 2 kB with new names.
my $names = 0;
sub names { return map { message('S', 'p' . $names++ . "\0" . ('v' x 2000) . "\0") } 1 .. $_[0]; }

my %reason_of = (
	(map { $_ => 'The remote server sent too much data during the login.' } qw(login_n login_e login_a lock_login lock_names fast_login)),
	(map { $_ => 'The remote server sent a message that is too long.' } qw(start_row start_notice lock_ping start_fast fast_ping fast_again)),
	(map { $_ => 'The remote server sent too much data besides rows.' } qw(start_names ping_rows)));
my %behaviours = (
	honest => sub { $_[0]->serve },
	login_n => { login => sub { $_[0]->send(greeting()); flood($_[0], 'N') } },
	login_e => { login => sub { $_[0]->send(greeting()); flood($_[0], 'E') } },
	login_a => { login => sub { $_[0]->send(greeting()); flood($_[0], 'A') } },

	# an unsolicited row with a column that is longer than the row
	login_row => { login => sub { $_[0]->send(greeting(), message('D', pack 'nNa4', 1, 0x7FFFFFF0, 'abcd'), backend_key(), ready); $_[0]->serve } },
	lock_row => keeper(sub { $_[0]->send(message('D', pack 'nNa4', 1, 0x7FFFFFF0, 'abcd')) }),
	start_row => sub { $_[0]->receive; $_[0]->send(columns(1)); flood($_[0], 'D') },
	start_notice => sub { $_[0]->receive; flood($_[0], 'N') },

	# libpq stores reported parameters; each row is a result, which must not permit more of them
	start_names => sub { $_[0]->receive; $_[0]->send(columns(1)); while (1) { $_[0]->send(names(200), row('x')) } },

	# endless short rows use the permitted time, and no memory
	start_large => sub { $_[0]->receive; $_[0]->send(columns(1), (row('x' x 500_000)) x 20, done('SELECT 20'), ready); $_[0]->serve },
	lock_login => keeper(sub { flood($_[0], 'N') }),
	fast_login => { login => sub { $_[0]->send(greeting()); flood_fast($_[0], 'N') } },
	start_fast => sub { $_[0]->receive; $_[0]->send(columns(1)); flood_fast($_[0], 'D') },
	fast_ping => keeper(sub { flood_fast($_[0], 'D') }, 1),

	# the second ping of a connection
	fast_again => keeper(do { my $pings = 0; sub { flood_fast($_[0], 'D') if $pings++ > 0; confirm($_[0]) } }, 1),
	lock_names => keeper(sub { my $n = 0; while (1) { $_[0]->send(map { message('S', "p$n.$_\0" . ('v' x 2000) . "\0") } 1 .. 100); $n++ } }),
	lock_ping => keeper(sub { flood($_[0], 'D') }, 1),
	ping_rows => keeper(sub { while (1) { $_[0]->send(names(200), row('0')) } }, 1),

	# less than the limit in each answer, which confirms the lock
	ping_names => keeper(sub {
		append_to_file("$folder/pings", "$$\n");
		confirm($_[0], names(250));
	}, 1),
);

my $remote = remote_node('remote');
my $local = local_node('local');
my $fake = PgpxFakeServer->new(%behaviours);
my $near = PgpxFakeServer->new(folder => $folder, login_n => { login => sub { $_[0]->send(greeting()); flood($_[0], 'N') } });
make_pool($local, $remote, server => 'good');
my $session = PgpxSession->new($local);
$fake->make_servers($session, '20s');

# The worker's peak memory in MB.
sub most
{
	return slurp_file('/proc/' . worker_pid($local) . '/status') =~ /^VmHWM:\s+(\d+) kB/m ? $1 / 1024 : die 'no VmHWM';
}

sub check_memory
{
	my ($what, $do, $limit) = @_;
	my $before = most();

	$do->();
	my $cost = most() - $before;
	SKIP:
	{
		skip "$what: a sanitizer uses memory of its own", 1 if $ENV{PGPX_NO_PRELOAD};
		cmp_ok($cost, '<', $limit // 100, "$what: memory use is small");
	}
	note sprintf '%s: %.1f MB', $what, $cost;
	return;
}

sub query
{
	my ($server) = @_;

	return "SELECT * FROM pgpool.query('s_$server', 'select 1') AS t(a text)";
}

is($session->run(query('honest')), '1', 'correct answer is accepted');
check_memory($_, sub { $session->fails(query($_), '08001', qr/\Q$reason_of{$_}\E/, "$_: reason is reported") })
  foreach qw(login_n login_e login_a);

# the same on a Unix-domain socket, which does not report the number of received bytes
make_pool($local, $near, server => 's_near', remote_dbname => 'login_n', options => { host => $folder, pool_size => 1, connect_timeout => '20s' });
check_memory('near', sub { $session->fails(query('near'), '08001', qr/\Q$reason_of{login_n}\E/, 'near: reason is reported') });

check_memory($_, sub { $session->fails(query($_), '08001', qr/\Q$reason_of{$_}\E/, "$_: reason is reported") })
  foreach qw(start_row start_notice start_names);
is($session->run(query('start_large')) . $session->error, '1', 'many large rows of start commands are accepted');

# --- lengths inside a message that libpq does not check
$session->run(query('login_row'));
is($local->safe_psql('postgres', 'SELECT restarts FROM pgpool.workers'), '0', 'login_row: worker was not restarted');
$session->run("SELECT pgpool.lock('s_lock_row', 'a lock', '10 s', '2 s')");
ok(wait_until($local, "SELECT state FROM pgpool.locks WHERE server = 's_lock_row'", 'lost'), 'lock_row: lock is lost');
is($local->safe_psql('postgres', 'SELECT restarts FROM pgpool.workers'), '0', 'lock_row: worker was not restarted');

# --- the connection for lock pings. A third of the ttl is the time limit of an attempt.
my @pinged = qw(lock_login lock_names lock_ping ping_rows);

# Acquire a lock on the server, whose pings fail.
sub check_pings
{
	my ($what, $limit) = @_;
	my $log = -s $local->logfile;

	check_memory($what, sub {
		like($session->run("SELECT pgpool.lock('s_$what', 'a lock', '10 s', '9 s')"), qr/^1234$/, "$what: lock is granted");
		# If the fake server is too slow, the first attempt to ping times out. A later
		# attempt reaches the limit, and the message about the release has its reason.
		my $of_first = qr/cannot ping the locks of server "s_$what".*\n.*DETAIL:  \Q$reason_of{$what}\E/;
		my $of_last = qr/could not release lock "a lock" of server "s_$what".*\n.*DETAIL:  .* the last one: \Q$reason_of{$what}\E/;
		ok(wait_until($local, sub { slurp_file($local->logfile, $log) =~ /$of_first|$of_last/ ? 1 : 0 }, 1),
			"$what: reason is logged");
	}, $limit);
	return;
}
check_pings($_) foreach @pinged;
ok(wait_until($local, "SELECT state FROM pgpool.locks WHERE server = 's_$_'", 'lost'), "$_: lock is lost") foreach @pinged;

# a connection on which the remote server has sent much is replaced, and the lock is held
check_memory('ping_names', sub {
	my $logins = sub { my %pids = map { $_ => 1 } split /\n/, slurp_file("$folder/pings"); return keys %pids > 3 ? 1 : 0; };

	like($session->run(q{SELECT pgpool.lock('s_ping_names', 'a lock', '30 s', '30 s')}), qr/^1234$/, 'ping_names: lock is granted');
	ok(wait_until($local, sub { -e "$folder/pings" ? $logins->() : 0 }, 1, 60), 'ping_names: connection of the pings is replaced');
	is($local->safe_psql('postgres', q{SELECT state FROM pgpool.locks WHERE server = 's_ping_names'}), 'held', 'ping_names: lock is held');
});

# --- remote servers that send faster than libpq reads, so that a call of libpq does not
# return before it has read the whole message
SKIP:
{
	my $reason = PgpxFailing::build_library();

	skip $reason, 1 if $reason ne '';
	$session->quit;
	failing($local, sub { $local->restart });
	slow_down_reads($local);
	$session = PgpxSession->new($local);
	check_memory($_, sub { $session->fails(query($_), '08001', qr/\Q$reason_of{$_}\E/, "$_: reason is reported") }, 500)
	  foreach qw(fast_login start_fast);
	check_pings($_, 500) foreach qw(fast_ping fast_again);
	my $floods = sub { return -e "$folder/$_[0]" ? scalar(() = slurp_file("$folder/$_[0]") =~ /\n/g) : 0; };
	ok(wait_until($local, sub { $floods->('begun') == $floods->('ended') ? 1 : 0 }, 1, 40), 'fast: each remote server notices that its connection is closed')
	  or diag($floods->('begun') . ' have begun, ' . $floods->('ended') . ' have ended');
}

is($local->safe_psql('postgres', query('honest')), '1', 'other pools work');
is($local->safe_psql('postgres', 'SELECT restarts FROM pgpool.workers'), '0', 'worker was not restarted');
$session->quit;
check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
unlike(slurp_file($local->logfile), qr/PANIC|TRAP|was terminated by/, 'no process crashed');
done_testing();
