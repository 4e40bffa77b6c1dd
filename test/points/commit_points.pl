# A commit on several servers, interrupted at each of its debug points: sessions, the worker,
# the resolver, the local server, a remote server and the network fail. Afterwards both shards
# and the ledger agree, and no part is prepared. Each fault at every fourth point;
# PGPX_TEST_ALLOCATIONS=all: at each one.
use strict;
use warnings;

use PgpxPoints;
use PgpxProcesses;
use PgpxProxy;
use PgpxTest;
use PgpxTransfers;
use PostgreSQL::Test::Utils;
use Test::More;

my $each = ($ENV{PGPX_TEST_ALLOCATIONS} // '') eq 'all' ? 1 : 4;
my @shards = map { shard_node($_) } qw(one two);
my @proxies = map { PgpxProxy->new($_->port) } @shards;
my $local = local_node('local', conf => [ 'restart_after_crash = on', 'max_connections = 60', q{pgpool_ext.resolve_interval = '500ms'} ]);
my $checkpointer = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'};
my $resolver = q{FROM pg_stat_activity WHERE backend_type ~ 'pgpool_ext.*resolver'};
my $n = 0;
my $cases = 0;

points_of($local);
make_shards($local, \@proxies, options => { operation_timeout => '1s', checkout_timeout => '60s' });
commits('before the faults');

my @before = qw(commit_ask commit_asked commit_registered commit_row commit_preparing commit_prepare_sent commit_prepared);
my @after = qw(commit_decided commit_finishing commit_finish_sent commit_finished);
my @abort = qw(commit_abort commit_rolled_back);

# The faults that occur while the session is stopped at a point. The function of a fault may return a
# function, which removes the fault after the session has ended. 'alone': the server needs no resume.
my %faults = (
	terminate => sub { $local->safe_psql('postgres', "SELECT pg_terminate_backend($_[0])"); },
	cancel => sub { $local->safe_psql('postgres', "SELECT pg_cancel_backend($_[0])"); },
	worker => sub { $local->safe_psql('postgres', 'SELECT pg_terminate_backend(' . worker_pid($local) . ')'); },
	resolver => sub { $local->safe_psql('postgres', "SELECT pg_terminate_backend(pid) $resolver"); },
	'kill' => sub { kills($_[0]) },
	server => sub { kill_all($local); start_again($local); },
	remote => sub { $shards[1]->stop('immediate'); return sub { $shards[1]->start } },
	leases => sub { terminate($shards[$_], lease_of($_[0], $_)) foreach grep { lease_of($_[0], $_) ne '' } 0, 1; return },
	network => sub { $_->command('reset 1') foreach @proxies; return sub { $_->command('pass') foreach @proxies } },
	silence => sub { $proxies[1]->command('freeze'); return sub { $proxies[1]->command('pass') } });

# the remote session of a local one on a shard
sub lease_of
{
	my ($pid, $shard) = @_;

	return $local->safe_psql('postgres', "SELECT remote_pid FROM pgpool.leases WHERE pid = $pid AND server = 'shard" . ($shard + 1) . q{'});
}

# kill a process, and wait for the restart after the crash
sub kills
{
	my ($pid) = @_;
	my $before = $local->safe_psql('postgres', $checkpointer);

	kill 'KILL', $pid;
	restarts($before);
	return;
}

sub restarts
{
	my ($before) = @_;

	return wait_until($local, "SELECT pid <> $before FROM ($checkpointer) AS c", 't');
}

sub commits
{
	my ($name) = @_;
	my $session = PgpxSession->new($local, user => 'app');

	# (operation_timeout can leave a part to the resolver, with a warning)
	$session->run(transfer(++$n));
	is($session->sqlstate, '', "$name: a transfer succeeds") or diag($session->error);
	$session->quit;
	return;
}

# Return whether this case is run.
sub is_due { return $cases++ % $each == 0; }

# Return whether a process is a resolver, or so new that it has no title yet.
sub is_resolver
{
	my $title = eval { slurp_file("/proc/$_[0]/cmdline") } // '';

	return $title ne '' && $title !~ /^postgres: (?!.*resolver)/;
}

# Set the debug point of the resolvers. Wait until no resolver has the former setting, unless one
# stops at the new point.
sub set_point
{
	my ($setting) = @_;
	my ($point) = split / /, $setting;

	read_rows($local, 'postgres', "ALTER SYSTEM SET pgpool_ext.debug_point = '$setting'");
	$local->reload;
	wait_until($local, 'SHOW pgpool_ext.debug_point', $setting);
	my (undef, @former) = eval { processes($local) };
	wait_until($local, sub { ($point && -e path($point, 'at')) || !grep { is_resolver($_) } @former }, 1);
	return;
}

# Disarm the points of the resolver, when no process is left that has the former setting or waits
# at a point. Until then the files of the point must stay.
sub calm
{
	set_point('');
	disarm();
	return;
}

sub arm_resolver
{
	my ($setting) = @_;

	calm();
	set_point($setting);
	return;
}

sub is_committed
{
	my ($number) = @_;

	return (read_rows($local, 'postgres', "SELECT count(*) FROM ledger WHERE n = $number"))[0];
}

# --- the session is stopped, and something fails
foreach my $point (@before, @after, @abort)
{
	my $decided = grep { $_ eq $point } @after;
	my $aborts = grep { $_ eq $point } @abort;

	foreach my $fault (sort keys %faults)
	{
		# before the decision nothing bounds the wait for an answer
		next if $fault eq 'silence' && !$decided;
		next unless is_due();
		my $name = "$point, $fault";
		my $session = PgpxSession->new($local, user => 'app');

		disarm();
		$session->run("SET pgpool_ext.debug_point = '$point wait'");
		$session->start(transfer(++$n, note => $aborts ? 'fails' : undef));
		ok(reached($point), "$name: session reaches the point");
		my $undo = $faults{$fault}->($session->pid);
		resume($point);
		eval { $session->finish };
		$session->quit;
		$undo->() if ref $undo;
		all_agree($local, \@shards, $name);
		is(is_committed($n), '1', "$name: transfer is committed") if $decided;
		is(is_committed($n), '0', "$name: transfer is not committed") if $aborts || (!$decided && $fault =~ /^(?:kill|server)$/);
	}
	commits($point);
}

# the process itself fails
foreach my $action (qw(error exit crash))
{
	foreach my $point (@before, $action eq 'crash' ? @after : (), $action eq 'error' ? () : @abort)
	{
		next unless is_due();
		my $name = "$point $action";
		my $session = PgpxSession->new($local, user => 'app');
		my $before = $local->safe_psql('postgres', $checkpointer);

		disarm();
		$session->run("SET pgpool_ext.debug_point = '$point $action'");
		$session->run(transfer(++$n, note => (grep { $_ eq $point } @abort) ? 'fails' : undef));
		isnt($session->sqlstate, '', "$name: transfer reports an error");
		restarts($before) if $action eq 'crash';
		$session->quit;
		all_agree($local, \@shards, $name);
		is(is_committed($n), (grep { $_ eq $point } @after) ? '1' : '0', "$name: outcome is as decided");
	}
}
commits('session fails');

# --- DDL while a living session has asked: it holds no lock, and registers again
{
	my $session = PgpxSession->new($local, user => 'app');

	disarm();
	$session->run(q{SET pgpool_ext.debug_point = 'commit_asked wait'});
	$session->start(transfer(++$n));
	ok(reached('commit_asked'), 'session has asked');
	is(scalar $local->psql('postgres', q{ALTER SERVER shard1 OPTIONS (ADD keepalives_idle '60')}), 0, 'server is changed meanwhile');
	resume('commit_asked');
	is($session->finish . $session->sqlstate, '', 'transfer succeeds') or diag($session->error);
	is(is_committed($n), 1, 'and is committed');
	$session->quit;
}

# --- the resolver fails with parts to commit, and to roll back
foreach my $point (qw(resolver_visit resolver_listed resolver_running resolver_decided resolver_resolved resolver_clean))
{
	foreach my $left (qw(commit_prepared commit_decided))
	{
		foreach my $fault (qw(error exit crash server remote network))
		{
			next unless is_due();
			my $name = "$left crash, $point $fault";
			my $session = PgpxSession->new($local, user => 'app');
			my $before = $local->safe_psql('postgres', $checkpointer);

			arm_resolver("$point " . ($fault =~ /^(?:error|exit|crash)$/ ? $fault : 'wait'));
			$session->run("SET pgpool_ext.debug_point = '$left crash'");
			$session->run(transfer(++$n));
			restarts($before);
			$session->quit;
			ok(reached($point), "$name: resolver reaches the point");
			my $undo = $faults{$fault} ? $faults{$fault}->() : undef;
			resume($point);
			$undo->() if ref $undo;
			all_agree($local, \@shards, $name);

			# a crash of the resolver can precede the decision
			is(is_committed($n), $left eq 'commit_decided' ? '1' : '0', "$name: outcome is as decided") if $left eq 'commit_prepared' || -e path($left, 'at');
		}
	}
	calm();
	commits($point);
}

# --- the log has the part that was resolved before the visit failed, and then the other one
{
	my $origin = $local->safe_psql('postgres', 'SELECT pgpool.commit_origin()');
	my $at = -s $local->logfile;

	arm_resolver('resolver_resolved wait');
	foreach my $part (1, 2)
	{
		$shards[0]->safe_psql('remote_db', "SET SESSION AUTHORIZATION remote_app; BEGIN; INSERT INTO accounts VALUES (-$part, 0); PREPARE TRANSACTION 'pgpx_${origin}_3_000000000000000${part}_1'");
	}
	ok(reached('resolver_resolved'), 'resolver has rolled back a part');
	is(prepared_on($shards[0]), '1', 'other part is prepared');
	$shards[0]->stop('immediate');
	resume('resolver_resolved');
	$shards[0]->start;
	nothing_is_prepared(\@shards, 'visit fails');
	ok(wait_until($local, sub { scalar(() = slurp_file($local->logfile, $at) =~ /has committed 0 and rolled back 1 prepared/g) }, 2), 'log has both parts');
	calm();
}

# --- The transaction ends while the resolver is between two of its readings. The session cannot
# resolve its parts, because its remote sessions have ended.
foreach my $point (qw(resolver_listed resolver_running resolver_decided))
{
	foreach my $commits (1, 0)
	{
		my $name = "$point, then " . ($commits ? 'commit' : 'rollback');
		my $session = PgpxSession->new($local, user => 'app');

		calm();
		$session->run(q{SET pgpool_ext.debug_point = 'commit_prepared wait'});
		$session->start(transfer(++$n));
		ok(reached('commit_prepared'), "$name: both parts are prepared");
		$local->safe_psql('postgres', "ALTER SYSTEM SET pgpool_ext.debug_point = '$point wait'");
		$local->reload;
		ok(reached($point), "$name: resolver has seen them");
		$faults{leases}->($session->pid);
		if ($commits)
		{
			resume('commit_prepared');
			$session->finish;
			like($session->error, qr/WARNING.*still prepared/s, "$name: transaction commits, and leaves its parts");
			is(join(' ', map { prepared_on($_) } @shards), '1 1', "$name: they are prepared");
			resume($point);
		}
		else
		{
			# the server is killed: its next resolver begins anew
			kills($session->pid);
		}
		resume($point);
		all_agree($local, \@shards, $name);
		is(is_committed($n), $commits, "$name: outcome is as decided");
		$session->quit;
	}
}

# a decision that is made after the visits of a round is not deleted at its end
{
	my $session = PgpxSession->new($local, user => 'app');

	arm_resolver('resolver_clean wait');
	ok(reached('resolver_clean'), 'resolver has visited both shards');
	$session->run(q{SET pgpool_ext.debug_point = 'commit_prepared wait'});
	$session->start(transfer(++$n));
	ok(reached('commit_prepared'), 'then both parts are prepared');
	$faults{leases}->($session->pid);
	resume('commit_prepared');
	$session->finish;
	like($session->error, qr/WARNING.*still prepared/s, 'transaction commits, and leaves its parts');
	resume('resolver_clean');
	all_agree($local, \@shards, 'decision after the visits');
	is(is_committed($n), 1, 'decision after the visits: transfer is committed');
	$session->quit;
}
calm();
commits('resolver reads');

# --- each allocation of a commit fails once, also if the second shard refuses PREPARE
foreach my $note (undef, 'fails')
{
	my $session = PgpxSession->new($local, user => 'app');
	my $state = $note ? 'XX123' : '';
	my ($number, %states) = (0);

	do
	{
		disarm();
		$session->run(transfer(++$n, note => $note, end => 'SET pgpool_ext.debug_oom = ' . ++$number));
		$session->run('COMMIT');
		$states{ $session->sqlstate }++;
		$session->run('RESET pgpool_ext.debug_oom');
		is(is_committed($n), '0', "allocation $number: transfer that has failed is not committed") if $session->sqlstate ne '';
	} while -e path('oom', 'at');
	$session->quit;
	all_agree($local, \@shards, "$number allocations");
	is(join(' ', sort keys %states), join(' ', sort 53200, $state), "each of $number allocations of a commit has failed");
}

# --- Every sixteenth allocation of the resolver fails once, or each one. Its settings are those of
# the database.
$local->safe_psql('postgres', q{ALTER ROLE app SET pgpool_ext.debug_oom = 0; ALTER SYSTEM SET pgpool_ext.resolve_interval = '10s'});
for (my ($number, $failed) = (1, 1); $failed; $number += $each ** 2)
{
	my $session = PgpxSession->new($local, user => 'app');

	calm();
	$session->run(q{SET pgpool_ext.debug_point = 'commit_prepared wait'});
	$session->start(transfer(++$n));
	ok(reached('commit_prepared'), "allocation $number of the resolver: both parts are prepared");
	$faults{leases}->($session->pid);
	$local->safe_psql('postgres', "ALTER DATABASE postgres SET pgpool_ext.debug_oom = $number");
	resume('commit_prepared');
	$session->finish;
	nothing_is_prepared(\@shards, "allocation $number of the resolver");
	$local->safe_psql('postgres', 'ALTER DATABASE postgres RESET pgpool_ext.debug_oom');
	$failed = -e path('oom', 'at');
	is(is_committed($n), 1, "allocation $number of the resolver: transfer is committed");
	$session->quit;
}
calm();

# --- the registration of a participant fails
foreach my $point (qw(register_claimed register_commit))
{
	foreach my $fault (qw(error exit crash server terminate remote))
	{
		next unless is_due();
		my $name = "$point, $fault";
		my $server = "fresh$cases";
		my $session = PgpxSession->new($local, user => 'app');
		my $before = $local->safe_psql('postgres', $checkpointer);

		make_shard($local, $shards[1], $server);
		arm_resolver("$point " . ($fault =~ /^(?:error|exit|crash)$/ ? $fault : 'wait'));
		$session->start(transfer(++$n, to => $server));
		ok(reached($point), "$name: registration reaches the point");
		restarts($before) if $fault eq 'crash';
		my $undo = $faults{$fault} ? $faults{$fault}->($session->pid) : undef;
		resume($point);
		eval { $session->finish };
		$session->quit;
		$undo->() if ref $undo;
		calm();
		all_agree($local, \@shards, $name);
		$session = PgpxSession->new($local, user => 'app');
		$session->run(transfer(++$n, to => $server));
		is($session->sqlstate, '', "$name: next transfer to the server succeeds") or diag($session->error);
		$session->quit;
	}
}

# --- a resolver that finds no participant keeps its slot while one is registered
{
	$local->safe_psql('postgres', 'CREATE DATABASE other');
	make_shards($local, [ $shards[0] ], dbname => 'other');
	my $session = PgpxSession->new($local, dbname => 'other', user => 'app');

	arm_resolver('register_claimed wait');
	$session->start('BEGIN; INSERT INTO shard1.accounts VALUES (-3, 0); INSERT INTO ledger VALUES (1, 0); COMMIT');
	ok(reached('register_claimed'), 'slot is claimed, and the participant is not committed');
	$local->safe_psql('postgres', q{ALTER SYSTEM SET pgpool_ext.debug_point = 'resolver_ends wait'});
	$local->reload;
	ok(reached('resolver_ends'), 'resolver has found no participant');
	resume('register_claimed');
	is($session->finish . $session->error, '', 'commit in the other database succeeds');
	resume('resolver_ends');
	has_visited($local, 'and its database has a resolver', dbname => 'other');
	$session->quit;
	calm();
	$local->safe_psql('postgres', 'DROP DATABASE other');
}

# --- A session prepares its parts, and ends, after the resolver has found nothing on a server without
# the option. The resolver looks again under its lock.
{
	my $session = PgpxSession->new($local, user => 'app');

	my $participant = q{SELECT p.id FROM pgpool.commit_participants AS p JOIN pg_foreign_server AS s ON s.oid = p.server WHERE srvname = 'shard2'};
	my $id = $local->safe_psql('postgres', $participant);

	# the setting precedes the visit that finds the option off
	arm_resolver('resolver_clean wait');
	ok(reached('resolver_clean'), 'resolver has visited the shards');
	$local->safe_psql('postgres', q{ALTER SYSTEM SET pgpool_ext.debug_point = 'resolver_remove wait'});
	$local->reload;
	wait_until($local, 'SHOW pgpool_ext.debug_point', 'resolver_remove wait');
	$local->safe_psql('postgres', q{ALTER SERVER shard2 OPTIONS (SET two_phase_commit 'off')});
	resume('resolver_clean');
	ok(reached('resolver_remove'), 'resolver is about to remove the participant');
	$local->safe_psql('postgres', q{ALTER SERVER shard2 OPTIONS (SET two_phase_commit 'on')});
	$session->run(q{SET pgpool_ext.debug_point = 'commit_prepare_sent wait'});
	$session->start(transfer(++$n));
	ok(reached('commit_prepare_sent'), 'session sends PREPARE TRANSACTION');
	ok(wait_until($local, sub { prepared_on($shards[1]) }, '1'), 'its part is prepared');
	$faults{terminate}->($session->pid);
	resume('commit_prepare_sent');
	eval { $session->finish };
	$session->quit;
	resume('resolver_remove');
	calm();
	all_agree($local, \@shards, 'option is turned off and on');
	is($local->safe_psql('postgres', $participant), $id, 'participant is not removed');
}

all_agree($local, \@shards, 'at the end');
stats_add_up($local);
check_invariants($local);
is(scalar(() = slurp_file($local->logfile) =~ /PANIC|TRAP|terminated by signal (?:6|11)/g), 0, 'no process has crashed by itself');
leak_check($local, @shards);
done_testing();
