# The remote server stops and starts, with the default pauses between connection attempts: a
# checkout reports the outage within a second, and succeeds within two seconds of the restart.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote', conf => ['restart_after_crash = on']);
my $local = local_node('local', conf => ['pgpool_ext.log_connections = on']);
my @sessions = map { PgpxSession->new($local) } 1 .. 2;

make_pool($local, $remote, server => 'idle');
is($local->safe_psql('postgres', q{SELECT current_setting('pgpool_ext.default_retry_max', true), option_value IS NULL FROM pg_foreign_server LEFT JOIN LATERAL pg_options_to_table(srvoptions) ON option_name ~ 'retry' WHERE srvname = 'idle'}),
	'|t', 'pauses between connection attempts have their defaults');

# by the server's clock: the result and the duration of a checkout, and the time until
# one succeeds
$local->safe_psql('postgres', <<'EOT');
CREATE FUNCTION try(server text, OUT state text, OUT detail text, OUT took float8) LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
BEGIN
	state := '00000';
	BEGIN
		PERFORM pgpool.checkin(pgpool.checkout(server, '8 s'));
	EXCEPTION WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, detail = PG_EXCEPTION_DETAIL;
	END;
	took := extract(epoch FROM clock_timestamp() - began);
END $$;
CREATE FUNCTION works_after(server text, since timestamptz) RETURNS float8 LANGUAGE plpgsql AS $$
BEGIN
	WHILE (SELECT state FROM try(server)) <> '00000' LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN extract(epoch FROM clock_timestamp() - since);
END $$;
EOT

sub now { return $local->safe_psql('postgres', 'SELECT clock_timestamp()'); }

# --- the pool is idle when the remote server stops
foreach my $mode (qw(fast immediate))
{
	is($sessions[0]->run("SELECT pgpool.exec('idle', 'select 1')") . $sessions[0]->error, '1', "$mode: pool has an idle connection");
	$remote->stop($mode);
	my ($state, $detail, $took) = split /\|/, $sessions[0]->run(q{SELECT * FROM try('idle')});
	is($state, '08001', "$mode: checkout reports the outage");
	like($detail, qr/refused|shutting down|terminating|closed the connection/, "$mode: checkout reports the reason");
	cmp_ok($took, '<', 1, "$mode: error follows within a second ($took s)");
	$remote->start;
	my $back = now();
	$took = $sessions[0]->run("SELECT works_after('idle', '$back')");
	cmp_ok($took, '<=', 2, "$mode: first checkout succeeds within two seconds of the restart ($took s)");
}

# --- a connection of the same server that closes may have made room, so the next attempt
# follows soon; otherwise two attempts are at least 0.75 s apart
make_pool($local, $remote, server => 'shared', options => { pool_size => 8, retry_min => '1min', retry_max => '1min' });
$local->safe_psql('postgres', 'CREATE ROLE other LOGIN; GRANT USAGE ON FOREIGN SERVER shared TO other');
$local->safe_psql('postgres', "CREATE USER MAPPING FOR other SERVER shared OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')");
my @leases = map { lease($sessions[0], 'shared') } 1 .. 8;
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 0');
my $other = PgpxSession->new($local, user => 'other');
my $last_attempt = q{SELECT last_error_at FROM pgpool.pools WHERE server = 'shared' AND local_user = 'other'};
my $apart = 1;
$other->start(q{SELECT pgpool.checkout('shared', '5 min')});
ok(wait_until($local, "SELECT count(*) FROM ($last_attempt) AS t WHERE last_error_at IS NOT NULL", '1'), 'pool of another user waits');
while (@leases && $apart >= 0.7)
{
	my ($before, $after) = ($local->safe_psql('postgres', $last_attempt)) x 2;

	wait_until($local, sub { ($before = $local->safe_psql('postgres', $last_attempt)) ne $after }, 1);
	$sessions[0]->run('SELECT pgpool.discard(' . shift(@leases) . ')');
	wait_until($local, sub { ($after = $local->safe_psql('postgres', $last_attempt)) ne $before }, 1);
	$apart = $local->safe_psql('postgres', "SELECT date_part('epoch', '$after'::timestamptz - '$before')");
}
cmp_ok($apart, '<', 0.7, 'next attempt is made soon after a connection of another pool has closed');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT -1');
like($other->finish(30), qr/^\d+$/, 'pool of another user is granted a connection');
$sessions[0]->run('SELECT pgpool.checkin_all()');
$other->run('SELECT pgpool.checkin_all()');

$_->quit foreach @sessions, $other;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
