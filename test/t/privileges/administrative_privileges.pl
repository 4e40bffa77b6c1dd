# Privileges of administrative functions: a superuser grants EXECUTE, and the owner of
# the server or a member of pg_signal_backend may call them. terminate follows the rule
# of pg_terminate_backend. The user of a pool sees its errors in the views; a member of
# that role does not.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'owned', options => { pool_size => 4 });
make_pool($local, $remote, server => 'foreign_', options => { pool_size => 4 });
$local->safe_psql('postgres', <<'EOT');
CREATE ROLE owner LOGIN;
CREATE ROLE signaller LOGIN IN ROLE pg_signal_backend;
CREATE ROLE friend LOGIN IN ROLE app;
CREATE ROLE nobody LOGIN;
GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO owner;
ALTER SERVER owned OWNER TO owner;
EOT

my %session = map { $_ => PgpxSession->new($local, user => $_) } qw(app owner signaller friend nobody);
my $super = PgpxSession->new($local);
my @functions = qw(pause resume drain reconnect reset_stats);

sub call
{
	my ($function, $server) = @_;
	my $pool = defined $server ? "'$server'" : 'NULL';

	return "SELECT pgpool.$function($pool" . ($function eq 'drain' ? ", '20 s')" : ')');
}

is($super->run("SELECT pgpool.exec('$_', 'select 1')"), '1', "$_ is used") foreach qw(owned foreign_);

# not granted to PUBLIC
foreach my $function (@functions)
{
	$session{$_}->fails(call($function, 'owned'), '42501', qr/permission denied for function $function/, "$function: $_ has no EXECUTE privilege")
	  foreach qw(nobody app owner signaller);
}
$session{nobody}->fails("SELECT pgpool.prewarm('owned', 1)", '42501', qr/permission denied for function prewarm/,
	'prewarm: role "nobody" has no EXECUTE privilege');

# EXECUTE alone is not enough
$local->safe_psql('postgres', "GRANT EXECUTE ON FUNCTION pgpool.$_(text" . ($_ eq 'drain' ? ', interval' : '') . ') TO PUBLIC') foreach @functions;
$local->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION pgpool.prewarm(text, int, interval) TO PUBLIC');
foreach my $function (@functions)
{
	$session{$_}->fails(call($function, 'owned'), '42501', qr/must be owner of foreign server owned/, "$function: EXECUTE alone is not enough for $_")
	  foreach qw(nobody app);
	$session{owner}->run(call($function, 'owned'));
	is($session{owner}->error, '', "$function: owner of the server succeeds");
	$session{owner}->fails(call($function, 'foreign_'), '42501', qr/must be owner of foreign server foreign_/, "$function: owner of another server fails");
	$session{signaller}->run(call($function, $_)), is($session{signaller}->error, '', "$function: member of pg_signal_backend succeeds with $_")
	  foreach qw(owned foreign_);
	$session{nobody}->fails(call($function, 'nowhere'), '42704', qr/server "nowhere" does not exist/, "$function: unknown server fails");
}

# NULL: all servers on which the caller has the privilege
my $states = "SELECT string_agg(server || ' ' || state, ',' ORDER BY server) FROM pgpool.pools";
$super->run(call('resume'));
$session{owner}->run(call('pause'));
is($local->safe_psql('postgres', $states), 'foreign_ ready,owned paused', 'NULL: owner can pause only its own servers');
$session{nobody}->run(call('resume'));
is($session{nobody}->error . $local->safe_psql('postgres', $states), 'foreign_ ready,owned paused', 'NULL: ordinary role resumes none');
$session{signaller}->run(call('pause'));
is($local->safe_psql('postgres', $states), 'foreign_ paused,owned paused', 'NULL: member of pg_signal_backend pauses all');
$super->run(call('resume'));
is($local->safe_psql('postgres', $states), 'foreign_ ready,owned ready', 'NULL: superuser resumes all');

# prewarm needs this privilege, and those of a checkout
$session{$_}->fails("SELECT pgpool.prewarm('owned', 2, '30 s')", '42501', qr/must be owner of foreign server owned/, "prewarm: EXECUTE alone is not enough for $_")
  foreach qw(nobody app);
$session{signaller}->fails("SELECT pgpool.prewarm('owned', 1)", '42501', qr/permission denied for foreign server/, 'prewarm: USAGE is required');
$local->safe_psql('postgres', 'GRANT pg_signal_backend TO app');
is($session{app}->run("SELECT pgpool.prewarm('owned', 2, '30 s')") . $session{app}->error, '2', 'prewarm: member of pg_signal_backend can open its own pool');
$local->safe_psql('postgres', 'REVOKE pg_signal_backend FROM app');
is($super->run("SELECT pgpool.prewarm('foreign_', 1, '30 s')") . $super->error, '1', 'prewarm: superuser succeeds');

# terminate
my $lease = lease($super, 'owned');
$session{$_}->fails("SELECT pgpool.terminate($lease)", '42501', qr/^DETAIL:  Only superusers can terminate the lease of a superuser\.$/m, "terminate: $_ cannot end a superuser's lease")
  foreach qw(nobody app owner signaller);
is($super->run("SELECT pgpool.terminate($lease)"), 't', 'terminate: superuser succeeds');
$super->run('SELECT pgpool.checkin_all()');
foreach my $who (qw(app friend signaller))
{
	$lease = lease($session{app}, 'owned');
	$session{$_}->fails("SELECT pgpool.terminate($lease)", '42501', qr/permission denied to terminate lease \d+\nDETAIL:  Only members of the lease's role or of pg_signal_backend can terminate it\.$/m, "terminate: $_ cannot end the lease of another user")
	  foreach qw(nobody owner);
	is($session{$who}->run("SELECT pgpool.terminate($lease)"), 't', "terminate: $who succeeds");
	$session{app}->fails("SELECT pgpool.exec($lease, 'select 1')", 'PX001', qr/./, 'terminate: holder receives the error');
	$session{app}->run('SELECT pgpool.checkin_all()');
}
is($session{nobody}->run("SELECT pgpool.terminate($_)"), 'f', "terminate: lease $_ does not exist") foreach $lease, 0, -1, 9_223_372_036_854_775_807;
$super->fails('SELECT pgpool.terminate(NULL)', '22004', qr/null/, 'terminate: NULL is refused');

# errors of a server that cannot be reached
make_pool($local, $remote, server => 'unreachable', options => { port => 1 });
$_->fails(q{SELECT pgpool.exec('unreachable', 'select 1')}, '08001', qr/./, 'errors: server cannot connect') foreach $super, $session{app};
foreach my $who (qw(app friend nobody))
{
	is($session{$who}->run(q{SELECT string_agg((last_error !~ '^<insufficient')::text, ',' ORDER BY pool_id) FROM pgpool.pools WHERE server = 'unreachable'}),
		$who eq 'app' ? 'false,true' : 'false,false', "errors: view pools as $who");
}

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
