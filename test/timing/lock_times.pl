# Distributed locks, as far as they depend on times: a remote server that is too slow for locks with a short ttl does not affect others. A lock with
# the shortest ttl, which equals the interval of pings, is pinged before it expires.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the queue of a lock does not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $one = local_node('one');
make_pool($one, $remote, server => 'keeper', options => { pool_size => 8 });
my $holder = PgpxSession->new($one);
my @busy = map { PgpxSession->new($one) } 0 .. 2;
my $token;
$holder->run(q{SELECT pgpool.lock_setup('keeper')});

# --- a remote server that is too slow for locks with a short ttl, of which there is
# always one: these are lost, locks with a longer ttl are not
$token = $holder->run(q{SELECT pgpool.lock('keeper', 'patient', '10 s', '20 s')});
my $began = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION sluggish() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.45); RETURN NULL; END';
CREATE TRIGGER sluggish BEFORE UPDATE ON pgpool_lock.locks EXECUTE FUNCTION sluggish();
EOT
foreach my $i (0 .. 2)
{
	$busy[$i]->start(<<"EOT");
DO \$\$ BEGIN
	FOR n IN 1 .. 30 LOOP
		EXIT WHEN clock_timestamp() > statement_timestamp() + interval '8 s';
		PERFORM pgpool.try_lock('keeper', 'short $i ' || n, '1 s');
	END LOOP;
END \$\$
EOT
}
$_->finish(60) foreach @busy[ 0 .. 2 ];
cmp_ok($one->safe_psql('postgres', q{SELECT count(*) FROM pgpool.locks WHERE name LIKE 'short%' AND state = 'lost'}), '>', 2, 'locks with a short ttl are lost on a slow remote server');
is($one->safe_psql('postgres', "SELECT state, last_ping > timestamptz '$began' + '2 s' FROM pgpool.locks WHERE name = 'patient'"), 'held|t', 'lock with a longer ttl is pinged');
$_->run('DISCARD ALL') foreach @busy;
$remote->safe_psql('remote_db', 'DROP TRIGGER sluggish ON pgpool_lock.locks');
is($holder->run("SELECT pgpool.lock_valid('keeper', 'patient', $token)"), 't', 'lock with a longer ttl is kept');

# --- a row that is locked for long: pings are repeated, and earlier attempts end on the
# remote server
my $log = -s $remote->logfile;
my $blocker = PgpxSession->new($remote, dbname => 'remote_db');
$blocker->run(q{BEGIN; SELECT FROM pgpool_lock.locks WHERE name = 'patient' FOR NO KEY UPDATE});
$holder->run(q{SELECT pgpool.lock('keeper', 'stuck', '10 s', '1 min')});
ok(wait_until($remote, sub { slurp_file($remote->logfile, $log) =~ /canceling statement due to lock timeout/ ? 1 : 0 }, 1, 40), 'statement on the remote server ends by lock_timeout');
$blocker->run('ROLLBACK');
my $pinged = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
ok(wait_until($one, "SELECT last_ping > '$pinged' FROM pgpool.locks WHERE name = 'stuck'", 't', 20), 'locks are pinged again');
$holder->run('DISCARD ALL');

# --- the shortest ttl
my $short = $holder->run(q{SELECT pgpool.lock('keeper', 'short', ttl => '1 s')});
ok(wait_until($one, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE name = 'short'}), 'lock with the shortest ttl is pinged');
is($one->safe_psql('postgres', q{SELECT state FROM pgpool.locks WHERE name = 'short'}), 'held', 'lock with the shortest ttl is pinged in time');

$_->quit foreach $holder, $blocker, @busy;
check_invariants($one);
stats_add_up($one);
leak_check($one, $remote);
done_testing();
