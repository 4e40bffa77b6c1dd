# TLS as libpq knows it: used when it is offered, refused when the certificate is
# not the right one; client certificates of those who were given one; and what
# happens to a connection that is cut or falsified on its way.
use strict;
use warnings;

use PgpxProxy;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'over TLS in any case, and run without the switch' if over_tls();

my $row = 'AS t(a text)';
my $home = PostgreSQL::Test::Utils::tempdir();
my $certs = "$home/certs";
my $remote = remote_node('remote', tls => 0);
my $proxy = PgpxProxy->new($remote->port);

plan skip_all => 'a server without TLS' if $remote->safe_psql('postgres', 'SHOW ssl_library') eq '';
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

# the account of the local server has a client certificate, and no root.crt
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

# A server that is used; how its connection is: transport, version and cipher.
sub transport
{
	my ($server) = @_;

	is($session->run("SELECT a FROM pgpool.query('$server', 'select $$') $row") . $session->error, $$, "$server: works");
	return $local->safe_psql('postgres',
		"SELECT p.transport, p.tls_version, length(p.tls_cipher) > 5, p.transport = c.transport"
		  . " AND p.tls_version IS NOT DISTINCT FROM c.tls_version AND p.tls_cipher IS NOT DISTINCT FROM c.tls_cipher"
		  . " FROM pgpool.pools p JOIN pgpool.connections c USING (pool_id) WHERE p.server = '$server'");
}

sub refused
{
	my ($server, $pattern, $name) = @_;

	return $session->fails("SELECT pgpool.checkout('$server')", '08001', $pattern, "$server: $name");
}

# --- what is negotiated
make_pool($local, $remote, server => 'preferred');
make_pool($local, $remote, server => 'direct', options => { sslmode => 'disable' });
make_pool($local, $remote, server => 'older', options => { sslmode => 'require', ssl_max_protocol_version => 'TLSv1.2' });
make_pool($local, $remote, server => 'bound', options => { channel_binding => 'require', sslmode => 'require' });
make_pool($local, $remote, server => 'unbound', options => { channel_binding => 'require', sslmode => 'disable' });
is(transport('preferred'), 'relay|TLSv1.3|t|t', 'preferred: TLS is used when it is offered');
is(transport('direct'), 'direct|||t', 'direct: and not when it is disabled');
is(transport('older'), 'relay|TLSv1.2|t|t', 'older: in the version that was asked for');
is(transport('bound'), 'relay|TLSv1.3|t|t', 'bound: SCRAM binds itself to the channel');
refused('unbound', qr/channel binding/, 'and not without one');

# --- whose certificate it is
my %verify = (host => 'localhost', sslmode => 'verify-full', sslrootcert => "$certs/ours.crt");
make_pool($local, $remote, server => 'verified', options => {%verify});
make_pool($local, $remote, server => 'other_name', options => { %verify, host => '127.0.0.1' });
make_pool($local, $remote, server => 'any_name', options => { %verify, host => '127.0.0.1', sslmode => 'verify-ca' });
make_pool($local, $remote, server => 'other_authority', options => { %verify, sslrootcert => "$certs/theirs.crt" });
make_pool($local, $remote, server => 'no_authority', options => { sslmode => 'verify-full', host => 'localhost' });
is(transport('verified'), 'relay|TLSv1.3|t|t', 'verified: the right certificate');
is(transport('any_name'), 'relay|TLSv1.3|t|t', 'any_name: of the right authority');
refused('other_name', qr/server certificate for "localhost" does not match host name "127\.0\.0\.1"/, 'a certificate for another name');
refused('other_authority', qr/certificate verify failed/, 'a certificate of another authority');
refused('no_authority', qr/root certificate file .* does not exist/, 'nobody to verify by');
is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.connections WHERE server IN ('unbound', 'other_name', 'other_authority', 'no_authority')"),
	'0', 'no connection is left of the refused ones');

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
make_pool($local, $remote, server => 'given', %super);
make_pool($local, $remote, server => 'strange', %super);
$local->safe_psql('postgres', <<"EOT");
CREATE ROLE maker LOGIN;
GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO maker;
ALTER USER MAPPING FOR app SERVER given OPTIONS (ADD sslcert '$certs/client.crt', ADD sslkey '$certs/client.key', ADD password_required 'false');
ALTER USER MAPPING FOR CURRENT_USER SERVER strange OPTIONS (ADD sslcert '$certs/stranger.crt', ADD sslkey '$certs/stranger.key');
EOT
$app = PgpxSession->new($local, user => 'app');
is(transport('home'), 'relay|TLSv1.3|t|t', "home: a superuser's pool has the account's certificate");
$app->fails("SELECT pgpool.checkout('home')", '08001', qr/connection requires a valid client certificate/, 'home: that of a user has not');
is($app->run("SELECT a FROM pgpool.query('given', 'select session_user') $row") . $app->error, 'remote_super', 'given: but one that a superuser gave him');
refused('strange', qr/unknown ca|certificate/, 'a certificate that the remote does not know');
make_pool($local, $remote, server => 'second', options => { sslmode => 'require' });
$app->fails("SELECT pgpool.checkout('second')", '08001', qr/valid client certificate/, "second: nor is it lent beside a password");
my $maker = PgpxSession->new($local, user => 'maker');
$maker->run("CREATE SERVER own FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host 'localhost')");
$maker->fails("ALTER SERVER own OPTIONS (ADD sslcert '$certs/client.crt')", '42501', qr/sslcert/, 'nobody but a superuser names a file: sslcert');
$maker->fails("ALTER SERVER own OPTIONS (ADD sslrootcert '$certs/ours.crt')", '42501', qr/sslrootcert/, 'sslrootcert');
$maker->fails("CREATE USER MAPPING FOR maker SERVER own OPTIONS (sslkey '$certs/client.key')", '42501', qr/sslkey/, 'sslkey');

# --- on the way
unlink $remote->data_dir . '/pg_hba.conf';
$remote->append_conf('pg_hba.conf', "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n");
$remote->reload;
my $worker = worker_pid($local);
make_pool($local, $proxy, server => 'way', options => { pool_size => 1, sslmode => 'require' });
foreach my $fault (qw(cut flip))
{
	my $lease = lease($session, 'way');
	my $longer = "select repeat(''x'', 1000) from generate_series(1, 1000)";

	# in mid-record: records have 8 kB and more here
	$proxy->tell("$fault 100100");
	$session->fails("SELECT count(*) FROM pgpool.query($lease, '$longer') $row", '08006', qr/was lost/, "$fault in mid-record: an error, no result");
	$session->run("SELECT pgpool.checkin($lease)");
	$proxy->tell('pass');
	is($session->run("SELECT count(*) FROM pgpool.query('way', '$longer') $row") . $session->error, '1000', "$fault in mid-record: another one serves");

	# while it is nobody's: as soon as the remote says something
	is($session->run("SELECT pgpool.exec('way', 'select 1')"), '1', "$fault while idle: it is open");
	wait_until($local, "SELECT idle FROM pgpool.pools WHERE server = 'way'", '1');
	$proxy->tell("$fault 3");
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/way'");
	ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'way'", '0'), "$fault while idle: it is closed");
	$proxy->tell('pass');
	is($session->run("SELECT a FROM pgpool.query('way', 'select 7') $row") . $session->error, '7', "$fault while idle: nobody notices");
}

# .. with a statement that the worker has still to send: it comes to that first
{
	my $lease = lease($session, 'way');
	my $port = sprintf ':%04X 01 ', $proxy->port;
	my $open = sub { return scalar(grep { /^\s*\d+: \S+ \w+$port/ } split /\n/, slurp_file('/proc/net/tcp')) };

	is($session->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'reset: it is open');
	is($open->(), 1, 'reset: by one connection');
	$proxy->tell('reset 0');
	kill 'STOP', $worker;
	$session->start("SELECT pgpool.exec($lease, 'select 2')");
	wait_until($local, q{SELECT wait_event_type FROM pg_stat_activity WHERE state = 'active' AND pid = } . $session->pid, 'Extension');
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/way'");
	ok(wait_until($local, $open, 0), 'reset: it has come');
	kill 'CONT', $worker;
	$session->finish(30);
	$session->failed('08006', qr/connection to server "way" was lost/, 'reset: the statement could not be sent');
	$session->run('SELECT pgpool.checkin_all()');
	$proxy->tell('pass');
	is($session->run("SELECT a FROM pgpool.query('way', 'select 7') $row") . $session->error, '7', 'reset: another one serves');
}
is(worker_pid($local), $worker, 'the worker has lived through it all');
is($local->safe_psql('postgres', 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers'), '0', 'and has no descriptor too many');

$_->quit foreach $session, $app, $maker;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
