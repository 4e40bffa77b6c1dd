# TLS as libpq does it: used when offered, refused if the certificate is wrong; client
# certificates; truncated and corrupted connections.
use strict;
use warnings;

use PgpxProxy;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'tested without the option --tls' if over_tls();

my $row = 'AS t(a text)';
my $home = PostgreSQL::Test::Utils::tempdir();
my $certs = "$home/certs";
my $remote = remote_node('remote', tls => 0);
my $proxy = PgpxProxy->new($remote->port);

plan skip_all => 'the server was built without TLS' if $remote->safe_psql('postgres', 'SHOW ssl_library') eq '';
mkdir $certs;
authority($_) foreach qw(ours theirs);
certificate('server', 'localhost', 'ours');
certificate('client', 'remote_super', 'ours');
certificate('stranger', 'remote_super', 'theirs');

$remote->append_conf('postgresql.conf', <<"EOT");
ssl = on
ssl_cert_file = '$certs/server.crt'
ssl_key_file = '$certs/server.key'
ssl_ca_file = '$certs/ours.crt'
EOT
$remote->restart;

# the account of the local server has a client certificate and no root.crt
mkdir "$home/.postgresql";
system "cp $certs/client.crt $home/.postgresql/postgresql.crt; cp $certs/client.key $home/.postgresql/postgresql.key";
$ENV{HOME} = $home;
my $local = local_node('local');
my $session = PgpxSession->new($local);
my $app;

sub openssl
{
	my ($what) = @_;

	system("openssl $what >>$certs/log 2>&1") == 0 or die "openssl $what failed: " . slurp_file("$certs/log");
	return;
}

sub authority
{
	my ($name) = @_;

	openssl("req -new -x509 -days 2 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1"
		  . " -subj /CN=$name -keyout $certs/$name.key -out $certs/$name.crt");
	return;
}

sub certificate
{
	my ($name, $subject, $authority) = @_;

	openssl("req -new -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=$subject"
		  . " -keyout $certs/$name.key -out $certs/$name.csr");
	openssl("x509 -req -days 2 -in $certs/$name.csr -CA $certs/$authority.crt -CAkey $certs/$authority.key"
		  . " -CAcreateserial -out $certs/$name.crt");
	chmod 0600, "$certs/$name.key";
	return;
}

# Use a server, and return the transport, TLS version and cipher of its connection.
sub transport
{
	my ($server) = @_;

	is($session->run("SELECT a FROM pgpool.query('$server', 'select $$') $row") . $session->error, $$, "$server: pool works");
	return $local->safe_psql('postgres',
		"SELECT transport, tls_version, length(tls_cipher) > 5 FROM pgpool.connections WHERE server = '$server'");
}

sub refused
{
	my ($server, $pattern, $name) = @_;

	return $session->fails("SELECT pgpool.checkout('$server')", '08001', $pattern, "$server: $name");
}

# --- negotiation
make_pool($local, $remote, server => 'preferred');
make_pool($local, $remote, server => 'direct', options => { sslmode => 'disable' });
make_pool($local, $remote, server => 'older', options => { sslmode => 'require', ssl_max_protocol_version => 'TLSv1.2' });
make_pool($local, $remote, server => 'bound', options => { channel_binding => 'require', sslmode => 'require' });
make_pool($local, $remote, server => 'unbound', options => { channel_binding => 'require', sslmode => 'disable' });
is(transport('preferred'), 'relay|TLSv1.3|t', 'preferred: TLS is used when offered');
is(transport('direct'), 'direct||', 'direct: TLS is not used when disabled');
is(transport('older'), 'relay|TLSv1.2|t', 'older: requested version is used');
is(transport('bound'), 'relay|TLSv1.3|t', 'bound: SCRAM uses channel binding');
refused('unbound', qr/channel binding/, 'connection without channel binding is refused');

# --- server certificates
my %verify = (host => 'localhost', sslmode => 'verify-full', sslrootcert => "$certs/ours.crt");
make_pool($local, $remote, server => 'verified', options => {%verify});
make_pool($local, $remote, server => 'other_name', options => { %verify, host => '127.0.0.1' });
make_pool($local, $remote, server => 'any_name', options => { %verify, host => '127.0.0.1', sslmode => 'verify-ca' });
make_pool($local, $remote, server => 'other_authority', options => { %verify, sslrootcert => "$certs/theirs.crt" });
make_pool($local, $remote, server => 'no_authority', options => { sslmode => 'verify-full', host => 'localhost' });
is(transport('verified'), 'relay|TLSv1.3|t', 'verified: right certificate is accepted');
is(transport('any_name'), 'relay|TLSv1.3|t', 'any_name: certificate of the right authority is accepted');
refused('other_name', qr/server certificate for "localhost" does not match host name "127\.0\.0\.1"/, 'certificate for another name is refused');
refused('other_authority', qr/certificate verify failed/, 'certificate of another authority is refused');
refused('no_authority', qr/root certificate file .* does not exist/, 'missing root certificate is refused');
is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.connections WHERE server IN ('unbound', 'other_name', 'other_authority', 'no_authority')"),
	'0', 'no connection of the refused attempts is left');

# --- client certificates
$remote->safe_psql('postgres', 'CREATE ROLE no_cert LOGIN PASSWORD \'x\'');
unlink $remote->data_dir . '/pg_hba.conf';
$remote->append_conf('pg_hba.conf', <<"EOT");
local all all trust
hostssl all remote_super 127.0.0.1/32 cert
hostssl all remote_app 127.0.0.1/32 scram-sha-256 clientcert=verify-ca
EOT
$remote->reload;
my %super = (user => 'remote_super', options => { sslmode => 'require', pool_size => 1 });
make_pool($local, $remote, server => 'home', %super);
make_pool($local, $remote, server => 'configured', %super);
make_pool($local, $remote, server => 'strange', %super);
$local->safe_psql('postgres', <<"EOT");
CREATE ROLE maker LOGIN;
GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO maker;
ALTER USER MAPPING FOR app SERVER configured OPTIONS (ADD sslcert '$certs/client.crt', ADD sslkey '$certs/client.key', ADD password_required 'false');
ALTER USER MAPPING FOR CURRENT_USER SERVER strange OPTIONS (ADD sslcert '$certs/stranger.crt', ADD sslkey '$certs/stranger.key');
EOT
$app = PgpxSession->new($local, user => 'app');
is(transport('home'), 'relay|TLSv1.3|t', "home: superuser's pool uses the account's client certificate");
$app->fails("SELECT pgpool.checkout('home')", '08001', qr/connection requires a valid client certificate/, q{home: user's pool does not use the account's client certificate});
is($app->run("SELECT a FROM pgpool.query('configured', 'select session_user') $row") . $app->error, 'remote_super', q{configured: user's pool uses a client certificate that a superuser configured});
refused('strange', qr/unknown ca|certificate/, 'unknown client certificate is refused');
make_pool($local, $remote, server => 'second', options => { sslmode => 'require' });
$app->fails("SELECT pgpool.checkout('second')", '08001', qr/valid client certificate/, "second: account's client certificate is not used beside a password");
my $maker = PgpxSession->new($local, user => 'maker');
$maker->run("CREATE SERVER own FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host 'localhost')");
$maker->fails("ALTER SERVER own OPTIONS (ADD sslcert '$certs/client.crt')", '42501', qr/sslcert/, 'only a superuser can name a file: sslcert');
$maker->fails("ALTER SERVER own OPTIONS (ADD sslrootcert '$certs/ours.crt')", '42501', qr/sslrootcert/, 'only a superuser can name a file: sslrootcert');
$maker->fails("CREATE USER MAPPING FOR maker SERVER own OPTIONS (sslkey '$certs/client.key')", '42501', qr/sslkey/, 'only a superuser can name a file: sslkey');

# --- truncation and corruption
unlink $remote->data_dir . '/pg_hba.conf';
$remote->append_conf('pg_hba.conf', "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n");
$remote->reload;
my $worker = worker_pid($local);
make_pool($local, $proxy, server => 'way', options => { pool_size => 1, sslmode => 'require' });
foreach my $fault (qw(cut flip))
{
	my $lease = lease($session, 'way');
	my $longer = "select repeat(''x'', 1000) from generate_series(1, 1000)";

	# in the middle of a record, which have 8 kB and more here
	$proxy->command("$fault 100100");
	$session->fails("SELECT count(*) FROM pgpool.query($lease, '$longer') $row", '08006', qr/was lost/, "$fault in a record: query fails without a result");
	$session->run("SELECT pgpool.checkin($lease)");
	$proxy->command('pass');
	is($session->run("SELECT count(*) FROM pgpool.query('way', '$longer') $row") . $session->error, '1000', "$fault in a record: next call uses another connection");

	# while the connection is idle: at the remote server's next message
	is($session->run("SELECT pgpool.exec('way', 'select 1')"), '1', "$fault while idle: connection is open");
	wait_until($local, "SELECT idle FROM pgpool.pools WHERE server = 'way'", '1');
	$proxy->command("$fault 3");
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/way'");
	ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'way'", '0'), "$fault while idle: connection is closed");
	$proxy->command('pass');
	is($session->run("SELECT a FROM pgpool.query('way', 'select 7') $row") . $session->error, '7', "$fault while idle: next call succeeds");
}

# a RST before the worker has sent a pending statement; the worker handles the statement
# first
{
	my $lease = lease($session, 'way');
	my $port = sprintf ':%04X 01 ', $proxy->port;
	my $open = sub { return scalar(grep { /^\s*\d+: \S+ \w+$port/ } split /\n/, slurp_file('/proc/net/tcp')) };

	is($session->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'reset: lease is used');
	is($open->(), 1, 'reset: one connection is open');
	$proxy->command('reset 0');
	kill 'STOP', $worker;
	$session->start("SELECT pgpool.exec($lease, 'select 2')");
	wait_until($local, q{SELECT wait_event_type FROM pg_stat_activity WHERE state = 'active' AND pid = } . $session->pid, 'Extension');
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/way'");
	ok(wait_until($local, $open, 0), 'reset: RST has arrived');
	kill 'CONT', $worker;
	$session->finish(30);
	$session->failed('08006', qr/connection to server "way" was lost/, 'reset: statement fails as lost');
	$session->run('SELECT pgpool.checkin_all()');
	$proxy->command('pass');
	is($session->run("SELECT a FROM pgpool.query('way', 'select 7') $row") . $session->error, '7', 'reset: next call uses another connection');
}
is(worker_pid($local), $worker, 'worker was not restarted');
ok(wait_until($local, 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers', '0'), 'worker has no superfluous file descriptor');

$_->quit foreach $session, $app, $maker;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
