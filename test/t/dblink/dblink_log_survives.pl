# An autonomous log: transactions of TPC-B write lines to a remote server by dblink_exec, and then
# commit or roll back.  Sessions, remote sessions and the worker are killed meanwhile.  Each line
# whose call has returned is in the log.
# PGPX_TEST_SESSIONS: number of sessions.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nsessions = $ENV{PGPX_TEST_SESSIONS} // 60;
my $per_session = 20;
my $remote = remote_node('remote');
my $local = local_node('local');

make_pool($local, $remote, options => { pool_size => 4 });
$remote->safe_psql('remote_db', 'CREATE TABLE log(id text); GRANT ALL ON log TO remote_app');
$local->safe_psql('postgres', <<'EOT');
CREATE EXTENSION dblink;
SELECT pgpool.attach_dblink();
CREATE TABLE accounts(aid int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE tellers(tid int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE branches(bid int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE history(aid int, tid int, bid int, delta int);
INSERT INTO accounts SELECT i, 0 FROM generate_series(0, 999) AS i;
INSERT INTO tellers SELECT i, 0 FROM generate_series(0, 99) AS i;
INSERT INTO branches SELECT i, 0 FROM generate_series(0, 9) AS i;
EOT

my @sessions = map { PgpxSession->new($local) } 1 .. $nsessions;
my @acknowledged;
my %done;

foreach my $s (0 .. $#sessions)
{
	# each line is printed when its call has returned; every second transaction rolls back
	$sessions[$s]->start(join '', map { my $end = $_ % 2 ? 'COMMIT' : 'ROLLBACK'; <<"EOT" } 1 .. $per_session);
BEGIN;
UPDATE accounts SET balance = balance + $_ WHERE aid = ($s * 17 + $_) % 1000;
UPDATE tellers SET balance = balance + $_ WHERE tid = ($s + $_) % 100;
UPDATE branches SET balance = balance + $_ WHERE bid = ($s + $_) % 10;
INSERT INTO history VALUES (($s * 17 + $_) % 1000, ($s + $_) % 100, ($s + $_) % 10, $_);
SELECT 'logged $s.$_' WHERE dblink_exec('remote', 'insert into log values (''$s.$_'')') = 'INSERT 0 1';
$end;
EOT
}

# some of each kind are killed, each time after more lines have arrived
foreach my $round (1 .. 8)
{
	my $lines = $remote->safe_psql('remote_db', 'SELECT count(*) FROM log');

	last if $lines >= $nsessions * $per_session;
	wait_until($remote, sub { $remote->safe_psql('remote_db', "SELECT count(*) > $lines FROM log") eq 't' || !grep { !$_->done } @sessions }, '1');
	if ($round % 4 == 0)
	{
		$local->safe_psql('postgres', 'SELECT pg_terminate_backend(pid) FROM pgpool.workers WHERE pid IS NOT NULL');
	}
	elsif ($round % 2 == 0)
	{
		$local->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $sessions[$round]->pid . ')');
	}
	else
	{
		$remote->safe_psql('remote_db', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'remote_app' LIMIT 2});
	}
}

push @acknowledged, $_->finish =~ /^logged (\S+)$/mg foreach @sessions;
my %logged = map { $_ => 1 } split /\n/, $remote->safe_psql('remote_db', 'SELECT id FROM log');

cmp_ok(scalar(@acknowledged), '>', $nsessions * $per_session / 2, scalar(@acknowledged) . ' calls have returned');
is(join(' ', grep { !$logged{$_} } @acknowledged), '', 'each line whose call has returned is in the log');
is($local->safe_psql('postgres', <<'EOT'), '1', 'the local balances agree');
SELECT count(DISTINCT sum) FROM (SELECT sum(balance) FROM accounts UNION ALL SELECT sum(balance) FROM tellers
	UNION ALL SELECT sum(balance) FROM branches UNION ALL SELECT sum(delta) FROM history) AS t
EOT
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM (SELECT FROM log GROUP BY id HAVING count(*) > 1) AS t'), '0', 'no line is there twice');
cmp_ok($local->safe_psql('postgres', q{SELECT calls FROM pgpool.dblink_calls WHERE outcome = 'pooled'}), '>', 0, 'calls were pooled');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'", '0'), 'no transaction is left open');
$_->quit foreach @sessions;
check_invariants($local);
leak_check($local, $remote);
done_testing();
