# The host name is looked up for each connection attempt, so that changes are followed. A
# name server that does not answer delays only the pools that need it.
use strict;
use warnings;

use PgpxClock;
use PgpxNetwork 'names';
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'host names do not depend on TLS' if over_tls();

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
PgpxNetwork::skip_all_without();
my $network = PgpxNetwork->new;
my $remote = remote_node('remote', conf => ["listen_addresses = '127.0.0.1, 127.0.0.2, 127.0.0.3'"]);
my $local = local_node('local', start => 0);
with_clock($local, sub { $local->start });
my $session = PgpxSession->new($local);

sub where { return $session->run("SELECT a FROM pgpool.query('$_[0]', 'select inet_server_addr()') AS t(a inet)") . $session->error; }

# --- a name whose address changes
$network->hosts('db.example' => '127.0.0.1');
make_pool($local, $remote, server => 'named', options => { host => 'db.example', pool_size => 2 });
is(where('named'), '127.0.0.1', 'name is resolved');
$network->hosts('db.example' => '127.0.0.2');
are_idle($local, 'named');
is(where('named'), '127.0.0.1', 'open connection stays after a change of the address');
are_idle($local, 'named');
my $lease = lease($session, 'named');
is(where('named'), '127.0.0.2', 'new connection uses the new address');
$session->run('SELECT pgpool.checkin_all()');
$network->hosts('db.example' => '127.0.0.3');
$session->run("SELECT pgpool.reconnect('named')");
is(where('named'), '127.0.0.3', 'all connections use the new address after reconnect');
$network->hosts();
$session->run("SELECT pgpool.reconnect('named')");
$session->run("SELECT pgpool.checkout('named')");
is($session->sqlstate, '08001', 'unknown name is an error');
like($session->error, qr/DETAIL:.*db\.example/, 'error has the name');
$network->hosts('db.example' => '127.0.0.1');
ok(wait_until($local, sub { where('named') }, '127.0.0.1', 30), 'pool works when the name is known again');

# --- lists of names, ports and addresses
my $port = $remote->port;
$network->hosts('db.example' => '127.0.0.1', 'nobody.example' => '127.0.0.9');
make_pool($local, $remote, server => 'listed', options => { host => 'nobody.example,db.example', port => "$port,$port" });
is(where('listed'), '127.0.0.1', 'second name of a list is used');
make_pool($local, $remote, server => 'mixed', options => { host => '127.0.0.9,db.example' });
is(where('mixed'), '127.0.0.1', 'name behind an address is used, with one port for both');
make_pool($local, $remote, server => 'unmatched', options => { host => 'db.example,nobody.example,db.example', port => "$port,$port" });
$session->fails("SELECT pgpool.checkout('unmatched')", '08001', qr/DETAIL:.*could not match 2 port numbers to 3 hosts/, 'mismatched numbers of ports and names are reported');

make_pool($local, $remote, server => 'beside', options => { host => 'nobody.example,db.example', hostaddr => '127.0.0.9,' });
is(where('beside'), '127.0.0.1', 'name without an address behind one with an address is used');
make_pool($local, $remote, server => 'own', options => { host => 'no.example,db.example', hostaddr => '127.0.0.1,', port => "$port,1" });
is(where('own'), '127.0.0.1', 'name with an address is not looked up');
make_pool($local, $remote, server => 'addresses', options => { host => '', hostaddr => '127.0.0.9,127.0.0.1' });
is(where('addresses'), '127.0.0.1', 'second address of a list without names is used');
make_pool($local, $remote, server => 'uneven', options => { host => 'db.example', hostaddr => ',127.0.0.1' });
$session->fails("SELECT pgpool.checkout('uneven')", '08001', qr/DETAIL:.*could not match 1 host names to 2 hostaddr values/, 'mismatched numbers of addresses and names are reported');

# --- the connection for lock pings resolves names in the same way
sub end_pinger
{
	return $remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'});
}

sub logs
{
	my ($since, $pattern, $name) = @_;

	return ok(wait_until($local, sub { slurp_file($local->logfile, $since) =~ $pattern ? 1 : 0 }, 1, 30), $name);
}

$session->run(q{SELECT pgpool.lock_setup('named')});
my $token = $session->run(q{SELECT pgpool.lock('named', 'a', ttl => '1 h')});
ok(wait_until($local, 'SELECT last_ping IS NOT NULL FROM pgpool.locks', 't'), 'lock of a server with a host name is pinged');
my $log = -s $local->logfile;
$network->hosts();
end_pinger();
logs($log, qr/cannot ping the locks of server "named".*\n.*DETAIL:.*db\.example/, 'unknown name in a ping is logged');
$network->hosts('db.example' => '127.0.0.2');
logs($log, qr/pings the locks of server "named" .* again/, 'lock is pinged again when the name is known');

# --- a name server that does not answer because its packets are lost
$network->hosts('good.example' => '127.0.0.1', 'db.example' => '127.0.0.1');
$network->cut;
$network->resolver($network->address);
make_pool($local, $remote, server => 'good', options => { host => 'good.example', pool_size => 3 });
make_pool($local, $remote, server => "slow$_", options => { host => "slow$_.example", connect_timeout => '1h', pool_size => 3 }) foreach 1 .. 3;

# libpq itself must not look up the name that follows a name that is too long
make_pool($local, $remote, server => 'slow4', options => { host => 'x' x 600 . ',slow4.example', connect_timeout => '1h', pool_size => 3 });

# libpq itself must not look up a name without an address in front of one with an address
make_pool($local, $remote, server => 'slow5', options => { host => 'slow5.example,x', hostaddr => ',127.0.0.9', connect_timeout => '1h', pool_size => 3 });
my @lost = map { PgpxSession->new($local) } 1 .. 5;

# the worker opens connections with a name of its own meanwhile
$lost[ $_ - 1 ]->start("SELECT pgpool.checkout('slow$_', '2 h')") foreach 1 .. 5;
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server ~ 'slow' AND state = 'connecting'}, '5'), 'five names are being looked up');
is($session->run(q{SELECT pgpool.discard(pgpool.checkout('good', '1 h')) FROM generate_series(1, 10)}) =~ tr/\n// . $session->error, '9', 'another pool opens ten connections meanwhile');
is(scalar(grep { $_->done } @lost), 0, 'lookups have not ended');
is($local->safe_psql('postgres', q{SELECT count(*) FROM pgpool.connections WHERE server ~ 'slow' AND state = 'connecting'}), '5', 'five names are still being looked up');
$session->run("ALTER SERVER slow$_ OPTIONS (SET connect_timeout '200ms')") foreach 1 .. 5;
foreach my $n (1 .. 5)
{
	$lost[ $n - 1 ]->finish(60);
	$lost[ $n - 1 ]->failed('08001', qr/DETAIL:.*within connect_timeout \(0\.2 s\)/, "slow$n: lookup ends at connect_timeout");
}

# --- at most 64 simultaneous lookups of one user; the mapping names no remote user, so each
# local user has pools of its own
$session->run(<<"EOT");
DO \$\$ BEGIN
	FOR n IN 1 .. 70 LOOP
		EXECUTE format(\$s\$CREATE SERVER many%s FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host 'many%s.example', port '$port', dbname 'remote_db', connect_timeout '1h')\$s\$, n, n);
		EXECUTE format('CREATE USER MAPPING FOR PUBLIC SERVER many%s OPTIONS (password \$s\$x\$s\$)', n);
		EXECUTE format('GRANT USAGE ON FOREIGN SERVER many%s TO app', n);
	END LOOP;
END \$\$;
SELECT pgpool.try_checkout('many' || n) FROM generate_series(1, 70) n;
EOT
is($session->error, '', 'seventy names are requested at once');
my $worker = worker_pid($local);
ok(wait_until($local, sub { threads_of($worker) }, 64, 30), 'lookups beyond the limit of the user wait');
$local->safe_psql('postgres', q{SELECT pgpool.try_checkout('many' || n) FROM generate_series(1, 20) n}, extra_params => [ '-U', 'app' ]);
ok(wait_until($local, sub { threads_of($worker) }, 84, 30), 'lookups of another user do not wait');
is($local->safe_psql('postgres', q{SELECT count(*) FROM pgpool.pools WHERE server ~ 'many' AND last_error IS NOT NULL}), 0, 'no lookup is refused');
end_pinger();
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'}, '1', 30), 'connection for locks does not wait for the lookups of its user');
ok(wait_until($local, sub { threads_of($worker) }, 84, 30), 'lookups have not ended');
is($session->run(qq{SELECT pgpool.lock_valid('named', 'a', $token)}), 't', 'lock is still valid');

$_->quit foreach $session, @lost;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
