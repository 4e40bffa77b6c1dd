# The password command prints the passwords of user mappings with use_password_command: it
# is run before a login if no password of it is known, or if the remote server refuses the
# known one. Only superusers decide for whom and where to a password is issued.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the password command does not depend on TLS' if over_tls();

my $folder = PostgreSQL::Test::Utils::tempdir();
my $token = 'first of the tokens';

sub put
{
	my ($file, $text) = @_;

	open my $fh, '>', "$folder/$file.new" or die "$file: $!";
	print {$fh} $text;
	close $fh or die "$file: $!";
	rename "$folder/$file.new", "$folder/$file" or die "$file: $!";
	return;
}

# The lines that the command has written, one for each run.
sub runs
{
	return -e "$folder/runs" ? split /\n/, slurp_file("$folder/runs") : ();
}

put('mode', 'cat token');
put('token', "$token\n");
put('command', <<"EOT");
cd '$folder'
echo "\$PGPOOL_DATABASE|\$PGPOOL_SERVER|\$PGPOOL_LOCAL_USER|\$PGPOOL_HOST|\$PGPOOL_PORT|\$PGPOOL_DBNAME|\$PGPOOL_USER" >>runs
. ./mode
EOT

my $remote = remote_node('remote');
my $local = local_node('local', conf => [ 'restart_after_crash = on', 'pgpool_ext.log_connections = on', 'log_min_messages = debug1', 'log_statement = none', 'log_min_error_statement = panic' ]);
my $port = $remote->port;
my $super = PgpxSession->new($local);
make_pool($local, $remote, server => 'plain');
my $app = PgpxSession->new($local, user => 'app');

$remote->safe_psql('remote_db', "ALTER ROLE remote_app PASSWORD '$token'");

# make_server NAME, OPTIONS: a server whose mappings use the password command
sub make_server
{
	my ($name, %options) = @_;

	make_pool($local, $remote, server => $name, options => { connect_timeout => '60s', retry_max => '100ms', %options });
	$local->safe_psql('postgres', "ALTER USER MAPPING FOR $_ SERVER $name OPTIONS (DROP password, ADD use_password_command 'true')") foreach 'app', 'CURRENT_USER';
	return;
}
my $one = q{SELECT a FROM pgpool.query('%s', 'select 1') AS t(a int)};
my $run = sub { my ($session, $server) = @_; return $session->run(sprintf $one, $server) . $session->error; };
my $drop_connections = sub { $super->run("SELECT pgpool.discard(l) FROM (SELECT pgpool.checkout('$_[0]') AS l) c"); };

# --- the setting
make_server('shard1', pool_size => 3);
$app->fails(sprintf($one, 'shard1'), '38000', qr/could not get a password for server "shard1"\nDETAIL:  The setting "pgpool_ext.password_command" is empty\.\nHINT:  Check the setting/, 'empty setting is reported');
$local->append_conf('postgresql.conf', "pgpool_ext.password_command = 'exec sh $folder/command'");
$local->reload;
ok(wait_until($local, sub { $run->($app, 'shard1') eq '1' ? 1 : 0 }, 1), 'connection is made with the password that the command prints');
is((runs())[-1], "postgres|shard1|app|127.0.0.1|$port|remote_db|remote_app", 'environment describes the connection');

# --- life of a password
my $before = runs();
my @leases = map { lease($app, 'shard1') } 1 .. 3;
is(runs(), $before, 'further connections use the same password');
$app->run("SELECT pgpool.checkin($_)") foreach @leases;
$local->append_conf('postgresql.conf', 'pgpool_ext.password_lifetime = 0');
$local->reload;
# Returns how often the command is run for one new connection. Each call begins and ends
# with three open connections.
my $once_more = sub {
	my $n = runs();

	$app->run("SELECT pgpool.discard(pgpool.checkout('shard1'))") foreach 1 .. 3;
	$run->($app, 'shard1') eq '1' or return 'failed';
	$n = runs() - $n;
	$app->run(q{SELECT count(pgpool.checkout('shard1')) FROM generate_series(1, 3); SELECT pgpool.checkin_all()});
	return $n;
};
ok(wait_until($local, $once_more, 1), 'command is run for each connection if password_lifetime is 0');
$local->append_conf('postgresql.conf', q{pgpool_ext.password_lifetime = '10min'});
$local->reload;
ok(wait_until($local, $once_more, 0), 'command is not run again within password_lifetime');
$local->append_conf('postgresql.conf', "pgpool_ext.password_command = 'exec sh $folder/command another'");
$before = runs();
$local->reload;
ok(wait_until($local, sub { $once_more->(); return runs() - $before; }, 1), 'another command is run once, because it replaces the known passwords');
ok(wait_until($local, $once_more, 0), 'another command is not run again within password_lifetime');
$app->run(q{SELECT pgpool.discard(pgpool.checkout('shard1')) FROM generate_series(1, 2)});

# --- simultaneous logins share one run
make_server('busy', pool_size => 3);
put('mode', 'while [ ! -e go ]; do sleep 0.05; done; cat token');
$before = runs();
my @waiters = map { PgpxSession->new($local, user => 'app') } 1 .. 3;
$_->start(q{SELECT pgpool.checkout('busy') > 0}) foreach @waiters;
ok(wait_until($local, q{SELECT connecting FROM pgpool.pools WHERE server = 'busy'}, 3), 'three connections are being opened');
ok(wait_until($local, sub { runs() - $before }, 1), 'command is running');
put('go', '');
is($_->finish(60) . $_->error, 't', 'waiter is granted a connection') foreach @waiters;
is(runs() - $before, 1, 'command was run once for all of them');
$_->quit foreach @waiters;
put('mode', 'cat token');

# --- rotation
my $pid = $app->run(q{SELECT a FROM pgpool.query('shard1', 'select pg_backend_pid()') AS t(a int)});
my $old = $token;

$token = 'second of the tokens';
put('token', "$token\r\n");
$remote->safe_psql('remote_db', "ALTER ROLE remote_app PASSWORD '$token'");
$before = runs();
are_idle($local, 'shard1');
is($app->run(q{SELECT a FROM pgpool.query('shard1', 'select pg_backend_pid()') AS t(a int)}), $pid, 'open connection continues after the password was changed');
is(runs() - $before, 0, 'command is not run for an open connection');
are_idle($local, 'shard1');
is($app->run(q{SELECT pgpool.discard(pgpool.checkout('shard1'))}) . $run->($app, 'shard1'), '1', 'new connection is made with the new password');
is(runs() - $before, 1, 'command was run once, when the remote server had refused the old password');

put('token', 'not the password');
$remote->safe_psql('remote_db', q{ALTER ROLE remote_app PASSWORD 'another one'});
$before = runs();
are_idle($local, 'shard1');
$app->run(q{SELECT pgpool.discard(pgpool.checkout('shard1'))});
$app->fails(sprintf($one, 'shard1'), '08001', qr/DETAIL:.*password authentication failed/, 'wrong new password is refused');
is(runs() - $before, 1, 'command was run once');
put('token', $token);
$remote->safe_psql('remote_db', "ALTER ROLE remote_app PASSWORD '$token'");
ok(wait_until($local, sub { $run->($app, 'shard1') }, '1'), 'correct password works again');

# --- the worker restarts, and pools without a session
$before = runs();
ok(terminate($local, worker_pid($local)), 'worker is terminated');
ok(wait_until($local, sub { $run->($app, 'shard1') }, '1'), 'pool works after a restart of the worker');
cmp_ok(runs() - $before, '>', 0, 'command was run for the new worker');
make_server('warm', min_size => 1);
$local->restart;
$_->quit foreach $super, $app;
ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'warm' AND idle = 1}, 2), 'pools with min_size are open after a restart of the server');
$super = PgpxSession->new($local);
$app = PgpxSession->new($local, user => 'app');

# --- locks
$super->run(q{SELECT pgpool.lock_setup('warm')});
like($super->run(q{SELECT pgpool.lock('warm', 'a')}), qr/^\d+$/, 'lock is acquired');
$super->quit;
ok(wait_until($local, q{SELECT count(*) FROM pgpool.locks}, 0), 'worker releases the lock on a connection with the password of the command');
$super = PgpxSession->new($local);

# --- an outage does not make the worker forget the password, which the remote has not refused
my $pinger = q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'};
my $since = -s $local->logfile;
my $fails = sub { return slurp_file($local->logfile, $since) =~ /cannot ping the locks of server "warm"/ ? 1 : 0; };
my $holder = PgpxSession->new($local);
$holder->run(q{SELECT pgpool.lock('warm', 'b', ttl => '10 min')});
ok(wait_until($remote, $pinger, 1), 'worker pings a lock');
$before = runs();
$remote->stop('immediate');
ok(wait_until($local, $fails, 1), 'worker cannot ping the lock during an outage');
$remote->start;
ok(wait_until($remote, $pinger, 1), 'worker is connected again');
is(runs() - $before, 0, 'command was not run again after the outage');

# --- a login that times out does not end the command for another login that still waits
$local->append_conf('postgresql.conf', 'pgpool_ext.password_lifetime = 0');
$local->reload;
$holder->quit;
$holder = PgpxSession->new($local);
$holder->run(q{SELECT pgpool.lock('warm', 'c', ttl => '10s')});
# (a failure is logged only after a success)
ok(wait_until($local, 'SELECT last_ping IS NOT NULL FROM pgpool.locks', 't'), 'worker pings a lock with a short ttl');
unlink "$folder/go";
put('mode', 'while [ ! -e go ]; do sleep 0.05; done; cat token');
($before, $since) = (scalar(runs()), -s $local->logfile);
$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'remote_app'});
ok(wait_until($local, sub { runs() > $before ? 1 : 0 }, 1), 'command is run for a ping');
$app->start(q{SELECT pgpool.checkout('warm') > 0});
ok(wait_until($local, $fails, 1, 60), 'ping times out while the command runs');
put('go', '');
is($app->finish(60) . $app->error, 't', 'session that waits for the same command is granted a connection');
$app->run('SELECT pgpool.checkin_all()');
$holder->quit;
put('mode', 'cat token');
$local->append_conf('postgresql.conf', q{pgpool_ext.password_lifetime = '10min'});
$local->reload;

# --- commands that fail
make_server('failing', connect_timeout => '60s');
foreach my $case (
	[ 'exit 3', qr/ended with exit code 3\./, 'exit code' ],
	[ 'kill -9 $$', qr/was terminated by signal 9\./, 'signal' ],
	[ ':', qr/printed no password\./, 'no output' ],
	[ 'echo', qr/printed no password\./, 'empty line' ],
	[ 'cat token; echo; echo two', qr/printed more than one line\./, 'two lines' ],
	[ q{cat token; printf 'a\000b'}, qr/printed more than one line\./, 'zero byte' ],
	[ 'while :; do cat token; done', qr/printed more than 32768 bytes\./, 'endless output' ],
	[ 'head -c 1000000 /dev/zero', qr/printed more than 32768 bytes\./, 'one megabyte' ],
	[ 'cat token; exit 1', qr/ended with exit code 1\./, 'password and exit code' ])
{
	my ($mode, $error, $name) = @{$case};

	put('mode', $mode);
	ok(wait_until($local, sub { $run->($app, 'failing') =~ /DETAIL:  The password command $error/ ? 1 : 0 }, 1), "$name: error is reported");
	is($app->sqlstate, '38000', "$name: SQLSTATE is 38000");
}
my $last = slurp_file($local->logfile);
like($last, qr/LOG:.* pgpool_ext could not get a password for server "failing" of database "postgres"\n.*DETAIL:  The password command ended with exit code 3\./, 'failure is logged');

# a command that hangs is killed, with the processes that it has started
make_server('hanging', connect_timeout => '3s');
put('mode', 'echo $$ >pid; sleep 1000 & echo $! >>pid; wait');
ok(wait_until($local, sub { $run->($app, 'hanging') =~ /38000.*The password command did not end within connect_timeout/s ? 1 : 0 }, 1), 'command that hangs is reported');
put('mode', 'cat token');
my @pids = split ' ', slurp_file("$folder/pid");
ok(wait_until($local, sub { scalar grep { kill 0, $_ } @pids }, 0), 'processes of the command that hangs are killed');
ok(wait_until($local, sub { $run->($app, 'hanging') }, '1'), 'next attempt succeeds');
ok(wait_until($local, sub { $run->($app, 'failing') }, '1'), 'pool works again when the command does');

# the same when the worker ends
make_server('ending');
put('mode', 'echo $$ >pid.new; sleep 1000 & echo $! >>pid.new; mv pid.new pid; wait');
unlink "$folder/pid";
my $waiter = PgpxSession->new($local, user => 'app');
$waiter->start(sprintf $one, 'ending');
ok(wait_until($local, sub { -e "$folder/pid" ? 1 : 0 }, 1), 'command is running');
put('mode', 'cat token');
@pids = split ' ', slurp_file("$folder/pid");
ok(terminate($local, worker_pid($local)), 'worker is terminated');
is($waiter->finish(60) . $waiter->error, '1', 'waiter is granted a connection by the next worker');
ok(wait_until($local, sub { scalar grep { kill 0, $_ } @pids }, 0), 'processes of the command are killed');
$waiter->quit;

# --- privileges
$super->run(q{CREATE ROLE tenant LOGIN; GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO tenant; GRANT USAGE ON FOREIGN SERVER shard1 TO tenant});
my $tenant = PgpxSession->new($local, user => 'tenant');

$tenant->fails(q{CREATE USER MAPPING FOR tenant SERVER shard1 OPTIONS (user 'remote_super', use_password_command 'true')}, '42501', qr/permission denied to set option "use_password_command"/, 'user cannot have a password issued');
$app->fails(q{ALTER USER MAPPING FOR app SERVER shard1 OPTIONS (SET user 'remote_super')}, '42501', qr/permission denied to set option "use_password_command"/, 'user cannot change a mapping that uses the command');
$app->fails(q{SET pgpool_ext.password_command = 'true'}, '55P02', qr/cannot be changed now/, 'user cannot set the command');
$app->fails(q{ALTER ROLE app SET pgpool_ext.password_command = 'true'}, '55P02', qr/cannot be changed now/, 'user cannot set the command for the sessions of a role');
$app->fails(q{ALTER SYSTEM SET pgpool_ext.password_command = 'true'}, '42501', qr/permission denied/, 'user cannot set the command for the server');
$app->fails(q{SHOW pgpool_ext.password_command}, '42501', qr/examine "pgpool_ext.password_command"/, 'user cannot read the command');
$super->run(q{GRANT CREATE ON DATABASE postgres TO tenant});
$tenant->run("CREATE SERVER own FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db')");
$super->run(q{CREATE USER MAPPING FOR tenant SERVER own OPTIONS (user 'remote_app', use_password_command 'true')});
$tenant->fails(sprintf($one, 'own'), '42501', qr/permission denied to use option "use_password_command" of server "own"\nDETAIL:  Its owner "tenant" is not a superuser/, 'server must be owned by a superuser, because its owner can change the host');
$super->run(q{CREATE SERVER based FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'own'); GRANT USAGE ON FOREIGN SERVER based TO tenant});
$tenant->fails(sprintf($one, 'based'), '42501', qr/of server "own"/, 'base server must be owned by a superuser, too');

unlike(slurp_file($local->logfile), qr/of the tokens|not the password/, 'log contains no password');
$_->quit foreach $super, $app, $tenant;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
