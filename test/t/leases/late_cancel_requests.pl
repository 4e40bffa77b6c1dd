# A cancel request that arrives late could cancel a statement of the next lease. A
# session is cancelled around the end of its query, many times on a pool of one. Neither
# the next session's statements nor its own next statement may be cancelled.
# PGPX_TEST_ROUNDS: default 60; timing/late_cancel_requests runs 1000.
use strict;
use warnings;

use List::Util 'max';
use PgpxFailing 'libpq_cancels';
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rounds = $ENV{PGPX_TEST_ROUNDS} // 60;
my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'one', options => { pool_size => 1 });

my $victim = PgpxSession->new($local);
my $bystander = PgpxSession->new($local);
my $canceller = PgpxSession->new($local);
my $row = 'AS t(a int)';
my %count = (cancelled => 0, undisturbed => 0);
my $slow = 0;    # ms that a short statement takes longer than its sleep
my @wrong;
my $seed = $ENV{PGPX_TEST_SEED} // time;

note "seed $seed (PGPX_TEST_SEED)";
srand $seed;

# Statements of the session that is not cancelled: each lasts long enough to be hit by a
# late request, and returns a number of its own.
my $number = 0;

sub bystander_statements
{
	my ($where) = @_;

	return map { ++$number; "SELECT * FROM pgpool.query($where, 'select $number from pg_sleep(0.0005)') $row;" } 1 .. 2;
}

# The session must have received its numbers and no error.
sub check_bystander
{
	my ($session, $what) = @_;
	my $wanted = join "\n", $number - 1, $number;

	push @wrong, "$what: wanted $wanted, got " . $session->{text} . $session->error
	  if $session->{text} !~ /(?:^|\n)\Q$wanted\E$/ || $session->error =~ /ERROR/;
	return;
}

sub note_victim
{
	my ($session) = @_;
	my $said = $session->error;

	# so that on a slow machine, too, some statements end before the cancel
	$slow = $said =~ /57014/ ? $slow + 0.5 : max(0, $slow - 0.5);
	$count{ $said =~ /57014/ ? 'cancelled' : 'undisturbed' }++;
	push @wrong, "cancelled session: $said" if $said =~ /ERROR:  (?!57014)/;
	return;
}

for my $round (1 .. $rounds)
{
	my $ms = 1 + int($slow) + int rand 4;

	# the timeout expires shortly before, at, or shortly after the end of the query
	my $length = ($ms - int($slow) + rand(2) - 1.2) / 1000;
	my $kind = $round % 4;

	if ($kind == 0)
	{
		# the same session's next statements on the lease
		my $lease = lease($victim, 'one');
		$victim->run("SET statement_timeout = $ms; SELECT pgpool.exec($lease, 'select pg_sleep($length)')");
		note_victim($victim);
		$victim->reset_statement_timeout;
		$victim->run(join ' ', bystander_statements($lease));

		# a late cancel request is a "user request"; see reset_statement_timeout
		check_bystander($victim, "round $round, same lease")
		  unless $victim->error =~ /due to statement timeout/;
		$victim->run("SELECT pgpool.checkin($lease)");
	}
	elsif ($kind == 1)
	{
		# a lease that the next session acquires at once
		my $lease = lease($victim, 'one');
		$bystander->start(join ' ', bystander_statements("'one'"));
		$victim->run("SET statement_timeout = $ms; SELECT pgpool.exec($lease, 'select pg_sleep($length)');\nSELECT pgpool.checkin($lease)");
		note_victim($victim);
		$victim->reset_statement_timeout;
		$victim->run('SELECT pgpool.checkin_all()');
		$bystander->finish;
		check_bystander($bystander, "round $round, next lease");
	}
	elsif ($kind == 2)
	{
		# one more statement on the lease before it is returned
		my $lease = lease($victim, 'one');
		$bystander->start(join ' ', bystander_statements("'one'"));
		$victim->run("SET statement_timeout = $ms; SELECT pgpool.exec($lease, 'select pg_sleep($length)')");
		note_victim($victim);
		$victim->reset_statement_timeout;
		$victim->run("SELECT pgpool.exec($lease, 'select 1'); SELECT pgpool.checkin($lease)");
		$bystander->finish;
		check_bystander($bystander, "round $round, next lease after one more statement");
	}
	else
	{
		# a call, cancelled by another session
		my $pid = $victim->pid;
		$victim->start("SELECT pgpool.exec('one', 'select pg_sleep($length)')");
		$canceller->run("SELECT pg_sleep($length - 0.0002); SELECT pg_cancel_backend($pid)");
		$bystander->start(join ' ', bystander_statements("'one'"));
		$victim->finish;
		note_victim($victim);
		$bystander->finish;
		check_bystander($bystander, "round $round, next call");

		# a cancel that arrived after the end of the call hits the local session's next
		# statement
		$victim->run('SELECT 1');
	}
}

is(scalar @wrong, 0, "no statement of another session was cancelled in $rounds rounds")
  or diag(join "\n", @wrong[ 0 .. ($#wrong > 4 ? 4 : $#wrong) ]);
note "$count{cancelled} queries were cancelled, $count{undisturbed} ended before the cancel";
note 'connections opened: ' . $local->safe_psql('postgres', 'SELECT connects FROM pgpool.stats');
ok(wait_until($remote, sub { remote_sessions($remote) <= 1 ? 1 : 0 }, 1), 'remote server has one session at most');

# --- a request that is still in the remote server's accept queue at operation_timeout
# and is executed later: the remote postmaster is stopped meanwhile, its sessions are
# not. (libpq 17 and later first negotiates TLS, and sends no request before that.)
make_pool($local, $remote, server => 'stopped', options => { pool_size => 1, operation_timeout => '300ms', connect_timeout => '100s',
	libpq_cancels() ? (sslmode => 'disable') : () });
my ($postmaster) = split /\n/, slurp_file($remote->data_dir . '/postmaster.pid');
my $later = "select 8 from pg_sleep(0.5)";

END
{
	kill 'CONT', $postmaster if defined $postmaster;
}
foreach my $next ($ENV{PGPX_TEST_TLS} && libpq_cancels() ? () : ('the same lease', 'the next lease', 'the next call'))
{
	my $lease = lease($victim, 'stopped');
	my $cancels = $local->safe_psql('postgres', "SELECT cancels FROM pgpool.stats WHERE server = 'stopped'");

	kill 'STOP', $postmaster;
	is($victim->run("SELECT pgpool.send($lease, 'select 7 from pg_sleep(0.3)'), pgpool.cancel($lease)"), '|t', "$next: statement is cancelled");
	is($victim->run("SELECT * FROM pgpool.result($lease) $row") . $victim->error, '7', "$next: statement ends by itself");
	ok(wait_until($local, "SELECT cancels > $cancels FROM pgpool.stats WHERE server = 'stopped'"), "$next: cancel request has timed out");
	if ($next eq 'the same lease')
	{
		$bystander->start('SELECT 8');
		$victim->start("SELECT * FROM pgpool.query($lease, '$later') $row");
	}
	else
	{
		$victim->start("SELECT pgpool.checkin($lease)");
		$bystander->start($next eq 'the next call' ? "SELECT * FROM pgpool.query('stopped', '$later') $row"
			: "SELECT a FROM pgpool.checkout('stopped') l, pgpool.query(l, '$later') $row");
	}

	# the statement already runs, or waits for another connection, or has failed
	my $under_way = q{SELECT EXISTS (SELECT FROM pgpool.waiters) OR EXISTS (SELECT FROM pgpool.leases WHERE state = 'active')};
	my $failed = sub { $next eq 'the same lease' && $victim->done };
	ok(wait_until($local, sub { $failed->() ? 't' : $local->safe_psql('postgres', $under_way) }), "$next: connection is used again");
	kill 'CONT', $postmaster;
	$_->finish foreach $victim, $bystander;
	$victim->failed('08006', qr/was lost\nDETAIL:  A cancel request did not end within operation_timeout\./, "$next: lease is unusable")
	  if $next eq 'the same lease';
	is($bystander->{text} . $bystander->error, '8', "$next: statement of the other session is not cancelled");
	$_->run('SELECT pgpool.checkin_all()') foreach $victim, $bystander;
}

# --- a lease that is returned while its cancel request is under way: the reset, which
# the request could cancel, must wait for the end of the request
make_pool($local, $remote, server => 'under_way', options => { pool_size => 1, operation_timeout => '100s', connect_timeout => '100s' });
{
	my $lease = lease($victim, 'under_way');
	my $stats = sub { $local->safe_psql('postgres', "SELECT $_[0] FROM pgpool.stats WHERE server = 'under_way'") };
	my $resets = $stats->('resets');

	kill 'STOP', $postmaster;
	is($victim->run("SELECT pgpool.send($lease, 'select 7 from pg_sleep(0.1)'), pgpool.cancel($lease)"), '|t', 'cancel under way: statement is cancelled');
	is($victim->run("SELECT * FROM pgpool.result($lease) $row") . $victim->error, '7', 'cancel under way: statement ends by itself');
	is($victim->run("SELECT pgpool.checkin($lease)") . $victim->error, '', 'cancel under way: lease is returned');
	is($stats->('resets'), $resets, 'cancel under way: no reset is sent');
	$bystander->start("SELECT * FROM pgpool.query('under_way', 'select 8 from pg_sleep(0.1)') $row");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1), 'cancel under way: next call waits');
	kill 'CONT', $postmaster;
	$bystander->finish;
	is($bystander->{text} . $bystander->error, '8', 'cancel under way: next call is not cancelled');
	is($stats->('connects'), 1, 'cancel under way: next call uses the same connection');
}
$_->quit foreach $victim, $bystander, $canceller;

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
