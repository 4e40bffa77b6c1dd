# The network truncates or corrupts an answer at many of its bytes: the session
# receives an error or, if the answer was complete, the right rows, and the pool works
# afterwards. Also:
# delays, no traffic at all, the end of one direction, lost cancel requests.
use strict;
use warnings;

use PgpxProxy;
use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $proxy = PgpxProxy->new($remote->port);
my $local = local_node('local');
my $session = PgpxSession->new($local);

make_pool($local, $proxy, server => 'way', options => { pool_size => 2, operation_timeout => '500 ms' });
make_pool($local, $remote, server => 'other');

# one statement uses the simple protocol, one the extended protocol
my %asked = (
	simple => [ q{'select 7, ''aé'' union all select 8, null'}, "7|aé\n8|" ],
	extended => [ q{'select 100 + g, $1 from generate_series(1, 2) g', 'xyz'}, "101|xyz\n102|xyz" ],
);

sub query
{
	my ($where, $sql) = @_;

	return "SELECT * FROM pgpool.query($where, $sql) AS t(a int, b text)";
}

# Describe the error of a statement whose answer is damaged, '' for none.
sub check_fault
{
	my ($kind, $fault, $complete) = @_;
	my ($sql, $rows) = @{ $asked{$kind} };
	my $lease = lease($session, 'way');
	my $wrong = '';

	$proxy->command($fault);
	my $got = $session->run(query($lease, $sql), 30);
	$wrong .= " got \"$got\"" if $got ne ($complete ? $rows : '');
	# 22021: garbage in a value is found before the missing rest
	$wrong .= ' returned ' . $session->error if $session->sqlstate !~ ($complete ? qr/^$/ : $fault =~ /garbage/ ? qr/^(?:08006|08P01|22021)$/ : qr/^(?:08006|08P01)$/);
	$proxy->command('pass');
	$session->run("SELECT pgpool.checkin($lease)");
	$wrong .= ' checkin: ' . $session->error if $session->error;

	$got = $session->run(query("'way'", $sql), 30);
	$wrong .= " the next got \"$got\"" . $session->error if $got ne $rows;
	return $wrong && "$fault:$wrong\n";
}

my $worker = worker_pid($local);
foreach my $kind (sort keys %asked)
{
	my ($sql, $rows) = @{ $asked{$kind} };
	my $lease = lease($session, 'way');

	$session->run(query($lease, $sql));
	$proxy->command('pass');
	is($session->run(query($lease, $sql)), $rows, "$kind: answer is correct");
	my $length = $proxy->command('count');
	$session->run("SELECT pgpool.checkin($lease)");
	cmp_ok($length, '>', 80, "$kind: answer has $length bytes");

	# each third position for one kind of fault; for other kinds some positions; and the end
	my @some = grep { $_ % 17 == 0 || $_ > $length - 7 } 0 .. $length - 1;
	my %where = (cut => $kind eq 'simple' ? \@some : [ grep { $_ % 3 == 0 || $_ > $length - 7 } 0 .. $length - 1 ], reset => \@some, half => \@some, garbage => \@some);

	foreach my $fault (sort keys %where)
	{
		is(join('', map { check_fault($kind, "$fault $_", 0) } @{ $where{$fault} }), '', "$kind, $fault: no row is returned, and the next statement is answered");
		is(check_fault($kind, "$fault $length", 1), '', "$kind, $fault: all rows are returned if the answer was complete") if $fault eq 'cut';
	}
}
is(worker_pid($local), $worker, 'worker was not restarted by truncated answers');
check_invariants($local);

# one call reads the answer to the previous reset, and that to the statement
my $check_fault = sub {
	my ($n) = @_;

	$session->run("SELECT pgpool.exec('way', 'select 1')");
	$proxy->command("cut $n");
	my $got = $session->run(query("'way'", $asked{extended}[0]));
	$proxy->command('pass');
	return $got eq $asked{extended}[1] && !$session->error || $got eq '' && $session->sqlstate eq '08006' ? '' : "$n: $got " . $session->error;
};
is(join('', map { $check_fault->(10 * $_) } 1 .. 20), '', 'behind a reset: statement returns the right rows or reports a lost connection');

# a delay is not an error
$proxy->command('delay 20');
is($session->run(query("'way'", $asked{$_}[0])), $asked{$_}[1], "delay, $_: rows are right") foreach sort keys %asked;
$proxy->command('pass');

# one direction has ended while the statement runs on the remote server
my $asleep = q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app' AND state = 'active'};
my $sleep = query("'way'", q{'select 1, pg_sleep(600)::text'});
$session->run("SELECT pgpool.exec('way', 'select 1')");
wait_until($local, "SELECT idle > 0 AND reset_pending = 0 FROM pgpool.pools WHERE server = 'way'");
$session->start($sleep);
ok(wait_until($remote, $asleep, '1'), 'half: statement runs');
$proxy->command('half 0');
$remote->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app'});
$session->finish(30);
$session->failed('08006', qr/was lost/, 'half: statement fails as lost');
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'way' AND state <> 'idle'", '0'), 'half: connection is closed');
$proxy->command('pass');

# no byte is passed on
$proxy->command('freeze');
$session->fails("SET statement_timeout = '200 ms'; $sleep", '57014', qr/statement timeout/, 'freeze: statement can be cancelled');
$session->reset_statement_timeout;
is($session->run(query("'other'", $asked{simple}[0])), $asked{simple}[1], 'freeze: another pool works');
$proxy->command('pass');
ok(wait_until($local, "SELECT * FROM pgpool.query('way', 'select 7') AS t(a int)", '7'), 'freeze: pool works again afterwards');
ok(wait_until($remote, $asleep, '0'), 'freeze: nothing runs on the remote server');

# Cancel requests are accepted and not passed on. From libpq 17 on they use TLS if the
# connection does.
$session->run("SELECT pgpool.exec('way', 'select 1')");
$proxy->command(over_tls() ? 'hold all' : 'hold');
$session->fails("SET statement_timeout = '200 ms'; $sleep", '57014', qr/statement timeout/, 'hold: statement times out');
$session->reset_statement_timeout;
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'way' AND state NOT IN ('idle', 'reset_pending')", '0'),
	'hold: slot is free after operation_timeout');
$proxy->command('pass');
is($session->run(query("'way'", $asked{simple}[0])) . $session->error, $asked{simple}[1], 'hold: pool works again');
ok(wait_until($local, 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers', '0'), 'hold: no file descriptor is left open');
$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app'});

# garbage and RST on an idle connection
foreach my $fault ('garbage 0', 'reset 0')
{
	$session->run("SELECT pgpool.exec('way', 'select 1')");
	wait_until($local, "SELECT reset_pending FROM pgpool.pools WHERE server = 'way'", '0');
	$proxy->command($fault);
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/way'});
	ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'way'", '0'), "$fault while idle: connection is closed");
	$proxy->command('pass');
	is($session->run(query("'way'", $asked{simple}[0])) . $session->error, $asked{simple}[1], "$fault while idle: next call succeeds");
}

is(worker_pid($local), $worker, 'worker was not restarted');
$session->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
