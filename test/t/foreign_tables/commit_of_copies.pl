# Copies of a server, and of a database, know decisions of the original, but not all of them: a
# clone beside the original, a promoted standby, a database made from a template. They commit
# what was decided, and roll back nothing of the original until they have adopted it. The same
# with remote servers: a standby or a promoted standby at the address of a participant is no proof
# that its parts are committed. (commit_participants has another server at that address.)
use strict;
use warnings;

use PgpxNode;
use PgpxTest;
use PgpxTransfers;
use PostgreSQL::Test::Utils;
use Test::More;

my @streaming = ('wal_level = replica', 'max_wal_senders = 5', 'hot_standby = on');
my @shards = map { shard_node($_) } qw(one two);

# A local server with the shards, and a first transfer.
sub original
{
	my ($name) = @_;
	my $node = local_node($name, conf => [ @streaming, 'max_connections = 60', q{pgpool_ext.resolve_interval = '500ms'} ]);

	make_shards($node, \@shards);
	$node->safe_psql('postgres', 'GRANT SELECT ON ALL TABLES IN SCHEMA pgpool TO app');
	commits($node, 1);
	return $node;
}

# A copy of a local server from a backup that is made now; it is not started.
sub copy_of
{
	my ($node, $name, %args) = @_;
	my $copy = PgpxNode->new($name);

	$node->backup($name);
	$copy->init_from_backup($node, $name, %args);
	$copy->append_conf('postgresql.conf', 'port = ' . $copy->port);
	return $copy;
}

sub commits
{
	my ($node, $number, %args) = @_;
	my $session = PgpxSession->new($node, user => 'app', %args);

	$session->run(transfer($number));
	is($session->error, '', "transfer $number of " . $node->name . ' is committed');
	$session->quit;
	return;
}

# Delete all transfers before another part begins.
sub forget_transfers
{
	$_->safe_psql('remote_db', 'DELETE FROM transfers') foreach @shards;
	return;
}

# A session that waits at the gate of the second shard, and one whose decision is durable and
# waits for a standby that does not exist. Returns them, and the gate.
sub undecided_and_decided
{
	my ($node) = @_;
	my $gate = close_gate($shards[1]);
	my ($undecided, $decided) = map { PgpxSession->new($node, user => 'app') } 1 .. 2;

	$undecided->start(transfer(2, note => 'gate'));
	is_at_gate($shards[1]);
	commits_wait($node);
	$decided->start(transfer(3));
	commit_waits($node, $decided);
	ok(wait_until($shards[0], sub { prepared_on($shards[0]) }, '2'), 'both have a part on the first shard');
	return ($undecided, $decided, $gate);
}

sub states
{
	my ($node) = @_;

	return $node->safe_psql('postgres', q{SELECT string_agg(server || ' ' || state, ', ' ORDER BY server, state) FROM pgpool.prepared_transactions});
}

clone_beside_the_original();
forget_transfers();
promoted_standby();
forget_transfers();
database_from_a_template();
forget_transfers();
standby_of_the_remote();

foreach my $shard (@shards)
{
	ok(wait_until($shard, q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'}, '0'), 'no session is left on a shard');
}
done_testing();

sub clone_beside_the_original
{
	my $local = original('original');
	my ($undecided, $decided, $gate) = undecided_and_decided($local);
	my $clone = copy_of($local, 'clone');

	$clone->append_conf('postgresql.auto.conf', "synchronous_standby_names = ''");
	$clone->start;
	has_visited($clone, 'resolver of the clone visits the shards');
	ok(wait_until($shards[0], sub { prepared_on($shards[0]) }, '1'), 'clone commits what was decided');
	ok(wait_until($clone, sub { states($clone) }, 'shard1 foreign'), 'clone shows the other part as foreign');
	commits_synchronously($local);
	is($decided->finish . $decided->error, '', 'commit of the original succeeds, without a warning');
	has_visited($clone, 'clone visits the shards again');
	is(prepared_on($shards[0]), '1', 'clone does not roll back the part without a decision');
	$gate->quit;
	is($undecided->finish . $undecided->error, '', 'original commits the part without a decision');
	all_agree($local, \@shards, 'clone is beside the original', 3);
	$_->quit foreach $undecided, $decided;

	# the original sees no decision of the clone's transactions. The first one registers
	# participants, and fires the triggers before it prepares.
	commits($clone, 6000);
	$gate = close_gate($shards[1]);
	my $there = PgpxSession->new($clone, user => 'app');
	$there->start(transfer(7000, note => 'gate'));
	is_at_gate($shards[1], 'transaction of the clone waits at the gate');
	ok(wait_until($shards[0], sub { prepared_on($shards[0]) }, '1'), 'its part is prepared');
	has_visited($local, 'original visits the shards');
	is(prepared_on($shards[0]), '1', 'original does not roll back the part of the clone');
	$gate->quit;
	is($there->finish . $there->error, '', 'clone commits its part');
	$there->quit;
	nothing_is_prepared(\@shards, 'clone writes');
	is(join(' ', map { $_->safe_psql('remote_db', 'SELECT count(*) FROM transfers WHERE n = 7000') } @shards), '1 1', 'on both shards');

	# the original is gone, and the clone takes over
	$gate = close_gate($shards[1]);
	my $orphan = PgpxSession->new($local, user => 'app');
	$orphan->start(transfer(8000, note => 'gate'));
	is_at_gate($shards[1]);
	ok(wait_until($shards[0], sub { prepared_on($shards[0]) }, '1'), 'original has prepared a part');
	kill_all($local);
	$gate->quit;
	ok(wait_until($shards[1], sub { prepared_on($shards[1]) }, '1'), 'second part is prepared after the end of the original');
	has_visited($clone, 'clone visits the shards');
	is(states($clone), 'shard1 foreign, shard2 foreign', 'parts of the original are foreign to it');
	is($clone->safe_psql('postgres', 'SELECT pgpool.adopt_prepared()'), '2', 'clone adopts them');
	nothing_is_prepared(\@shards, 'adopted');
	is(join(' ', map { $_->safe_psql('remote_db', 'SELECT count(*) FROM transfers WHERE n = 8000') } @shards), '0 0', 'parts are rolled back');
	$orphan->quit;
	check_invariants($clone);
	leak_check($clone);
	return;
}

sub promoted_standby
{
	my $primary = original('primary');
	my $standby = copy_of($primary, 'standby', has_streaming => 1);

	$standby->start;
	my ($undecided, $decided, $gate) = undecided_and_decided($primary);
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
	is($standby->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'resolver'}), '0', 'no resolver runs in recovery');
	is(join(' ', map { prepared_on($_) } @shards), '2 1', 'nothing is resolved');
	kill_all($primary);
	$_->quit foreach $undecided, $decided;
	$gate->quit;
	ok(wait_until($shards[1], sub { prepared_on($shards[1]) }, '2'), 'other part is prepared, too');

	$standby->promote;
	ok(wait_until($standby, sub { prepared_on($shards[0]) }, '1'), 'promoted standby commits what was decided');
	has_visited($standby, 'its resolver visits the shards');
	is(join(' ', map { prepared_on($_) } @shards), '1 1', 'parts without a decision stay');
	is(states($standby), 'shard1 foreign, shard2 foreign', 'as foreign ones');
	commits($standby, 4);
	$standby->append_conf('postgresql.conf', 'pgpool_ext.adopt_prepared = on');
	$standby->reload;
	all_agree($standby, \@shards, 'promotion', 3);
	is($standby->safe_psql('postgres', q{SELECT string_agg(n::text, ' ' ORDER BY n) FROM ledger}), '1 3 4', 'decided transfer is committed, and the other one is not');
	commits($standby, 5);
	check_invariants($standby);
	leak_check($standby);
	return;
}

sub database_from_a_template
{
	my $local = local_node('databases', conf => [ 'max_connections = 60', q{pgpool_ext.resolve_interval = '500ms'} ]);
	my ($gate, $session);

	$local->safe_psql('postgres', 'CREATE EXTENSION pgpool_ext');
	$local->safe_psql('postgres', 'CREATE DATABASE origin');
	make_shards($local, \@shards, dbname => 'origin');
	commits($local, 1, dbname => 'origin');
	ok(wait_until($local, sub { scalar $local->psql('postgres', 'CREATE DATABASE copy TEMPLATE origin', stderr => \my $e) }, '0'), 'database whose parts are resolved can be a template');
	$local->safe_psql('copy', 'DELETE FROM ledger');

	$gate = close_gate($shards[1]);
	$session = PgpxSession->new($local, dbname => 'origin', user => 'app');
	$session->start(transfer(2, note => 'gate'));
	is_at_gate($shards[1]);
	ok(wait_until($shards[0], sub { prepared_on($shards[0]) }, '1'), 'part is prepared');
	commits($local, 7000, dbname => 'copy');
	is($local->safe_psql('copy', 'SELECT count(DISTINCT origin) FROM pgpool.commit_participants'), '2', 'copy of the database has another origin');
	has_visited($local, 'resolver of the copy visits the shards', dbname => 'copy');
	is(prepared_on($shards[0]), '1', 'it does not roll back the part of the other database');
	$gate->quit;
	is($session->finish . $session->error, '', 'session of the other database commits its part');
	$session->quit;
	nothing_is_prepared(\@shards, 'template');
	is(join(' ', map { $_->safe_psql('remote_db', q{SELECT string_agg(n::text, ',' ORDER BY n) FROM transfers}) } @shards), '1,2,7000 1,2,7000', 'all transfers are committed');
	check_invariants($local);
	leak_check($local);
	return;
}

sub standby_of_the_remote
{
	my $local = original('local');
	my $primary = shard_node('remote_primary', conf => [ @streaming, 'log_connections = on' ]);
	my $standby = PgpxNode->new('remote_standby');
	my $session = PgpxSession->new($local, user => 'app');
	my $decisions = sub { $local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.commit_decisions WHERE array_length(participants, 1) = 2') };
	my ($address, $log);

	$primary->append_conf('pg_hba.conf', 'local replication all trust');
	$primary->reload;
	$primary->backup('backup');
	$standby->init_from_backup($primary, 'backup', has_streaming => 1);
	$standby->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'\nport = " . $standby->port);
	$standby->start;
	make_shard($local, $primary, 'hosts', options => { host => '127.0.0.1,127.0.0.1', port => join(',', $primary->port, $standby->port) });

	# a commit whose part is on the primary, which fails before COMMIT PREPARED
	my $fails = sub {
		my ($number) = @_;

		# the view would show the parts of earlier decisions, too
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.commit_decisions', '0'), 'earlier decisions are removed');
		commits_wait($local);
		$session->start(transfer($number, to => 'hosts'));
		commit_waits($local, $session);
		is(prepared_on($primary), '1', 'part is prepared on the primary');
		$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush')) if $standby->{_pid};
		$primary->stop('immediate');
		commits_synchronously($local);
		$session->finish;
		like($session->error, qr/WARNING.*"hosts"/, 'COMMIT warns');
		unlike($session->error, qr/ERROR/, 'and succeeds');
	};
	my $asked = sub {
		my ($node, $name) = @_;
		my $logins = sub { scalar(() = slurp_file($node->logfile, $log) =~ /connection authorized: user=remote_app/g) };

		# the resolver logs in again after an error
		$log = -s $node->logfile;
		ok(wait_until($local, sub { $logins->() >= 3 ? 1 : 0 }, 1), "$name: resolver logs in");
		ok(wait_until($local, q{SELECT count(*) FROM pgpool.prepared_transactions WHERE server = 'hosts' AND state = 'commit' AND last_error IS NOT NULL}, '1'), "$name: view shows the part");
		isnt($decisions->(), '0', "$name: decision is kept");
	};

	# registration waits for the standby, too
	$session->run(transfer(9, to => 'hosts'));
	is($session->error, '', 'participant is registered');
	$fails->(2);
	$asked->($standby, 'standby');
	$primary->start;
	nothing_is_prepared([ $shards[0], $primary ], 'primary is back');
	is($primary->safe_psql('remote_db', 'SELECT count(*) FROM transfers WHERE n = 2'), '1', 'part is committed');

	# the standby is promoted, and has the part
	$local->safe_psql('postgres', q{SELECT pgpool.reconnect('hosts')});
	$fails->(4);
	$asked->($standby, 'standby again');
	$standby->promote;
	nothing_is_prepared([ $shards[0], $standby ], 'standby is promoted');
	is($standby->safe_psql('remote_db', 'SELECT count(*) FROM transfers WHERE n = 4'), '1', 'part is committed');
	$session->quit;
	check_invariants($local);
	leak_check($local);
	return;
}
