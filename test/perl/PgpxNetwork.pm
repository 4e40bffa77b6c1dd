# A network of its own for a test, in which all packets can be dropped: nothing is
# refused, reset or answered, as when a firewall has lost its state or a machine its
# power.
#
#   use PgpxNetwork;    # must come first: it runs the test again, inside the namespace
#   use PgpxTest;
#
#   PgpxNetwork::skip_all_without();
#   my $network = PgpxNetwork->new;
#   my $remote = $network->remote_node('far', conf => [...]);
#   make_pool($local, $remote, options => { host => $network->address });
#   $network->cut;
#   $network->restore;
#
# use PgpxNetwork 'names': the test also has its own /etc/hosts and /etc/resolv.conf,
# which are empty at first; see hosts and resolver.
#
# The test and the servers that it starts run in one network namespace, those of
# remote_node in a second one at the other end of a veth pair. This needs no root, but
# the program ip and a kernel that lets users create user namespaces. Unix-domain
# sockets are not affected.
#
# Packets are dropped by using an Ethernet address that does not exist, so no firewall
# is needed, and a connection attempt receives no answer of any kind.
package PgpxNetwork;

use strict;
use warnings;

use File::Temp ();
use IPC::Open2;
use PostgreSQL::Test::Utils ();
use Test::More;

my @unshare = (qw(unshare --user --keep-caps --net), '--map-user=' . $<, '--map-group=' . (split / /, $()[0]);

# mount must run as root, which inside the namespace is its creator
my @with_names = (qw(unshare --user --map-root-user --mount sh -c),
	'mount --bind "$1/hosts" /etc/hosts && mount --bind "$1/resolv.conf" /etc/resolv.conf && shift && exec "$@"', 'sh');
my %near = (device => 'pgpx0', address => '10.213.97.1', ether => '02:00:00:00:97:01');
my %far = (device => 'pgpx1', address => '10.213.97.2', ether => '02:00:00:00:97:02');
my $unused = '02:00:00:00:97:99';
my $trouble;
my @networks;

sub import
{
	my ($class, $names) = @_;
	my @inside = @unshare;

	return if $ENV{PGPX_NETWORK};
	$ENV{PGPX_NETWORK} = 'inside';
	if ($names)
	{
		$ENV{PGPX_NETWORK} = File::Temp::tempdir('pgpx_names_XXXXXX', TMPDIR => 1);
		etc($_, '') foreach qw(hosts resolv.conf);
		@inside = (@with_names, $ENV{PGPX_NETWORK}, @unshare);
	}

	# what unshare reports if it fails
	open my $said, '-|', 'sh', '-c', 'exec "$@" 2>&1', 'sh', @inside, 'sh', '-c',
	  "ip link set lo up && ip link add name $near{device} type veth peer name $far{device}";
	$trouble = join ' ', map { s/\s+/ /gr } <$said>;
	undef $trouble if close $said;
	return if defined $trouble;
	exec @inside, $^X, $0, @ARGV or die "could not start the test once more: $!\n";
}

# Writes a file mounted over one in /etc, in place.
sub etc
{
	my ($name, $text) = @_;

	open my $file, '>', "$ENV{PGPX_NETWORK}/$name" or die "could not write $name: $!\n";
	print $file $text;
	close $file or die "could not write $name: $!\n";
	return;
}

# Sets the addresses of names: name => address, ...
sub hosts
{
	my ($self, %names) = @_;

	return etc('hosts', join '', map { "$names{$_} $_\n" } sort keys %names);
}

# Sets the name server for all other names.
sub resolver
{
	my ($self, $address) = @_;

	return etc('resolv.conf', "nameserver $address\noptions timeout:30 attempts:5\n");
}

sub skip_all_without
{
	plan skip_all => "users of this machine cannot create a network namespace: $trouble" if defined $trouble;
	return;
}

sub run
{
	my (@command) = @_;

	system(@command) == 0 or die "failed: @command\n";
	return;
}

sub new
{
	my ($class) = @_;
	my $self = bless {}, $class;

	# this process holds the far namespace, and exits at the end of its input
	$self->{pid} = open2($self->{out}, $self->{in}, qw(unshare --net sh -c), 'echo made; exec cat');
	readline $self->{out};
	push @networks, $self;
	$self->{inside} = [ 'nsenter', "--target=$self->{pid}", '--net' ];

	run(qw(ip link set lo up));
	run(qw(ip link add name), $near{device}, 'address', $near{ether}, qw(type veth peer name), $far{device},
		'address', $far{ether}, 'netns', $self->{pid});
	run(@{ $self->{inside} }, qw(ip link set lo up));
	foreach my $end ([ \%near ], [ \%far, @{ $self->{inside} } ])
	{
		my ($place, @inside) = @$end;

		run(@inside, qw(ip addr add), "$place->{address}/30", 'dev', $place->{device});
		run(@inside, qw(ip link set), $place->{device}, 'up');
	}
	$self->restore;
	return $self;
}

# The address of servers made by remote_node.
sub address { return $far{address}; }

# Like PgpxTest::remote_node, in the far namespace.
sub remote_node
{
	my ($self, $name, %args) = @_;
	my $node = PgpxTest::remote_node($name, %args, start => 0);
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my ($pg_ctl) = grep { -x } map { "$_/pg_ctl" } split /:/, $ENV{PATH};

	$node->append_conf('pg_hba.conf', "host all all $near{address}/32 scram-sha-256");
	$node->append_conf('postgresql.conf', "listen_addresses = '$far{address}'");
	PostgreSQL::Test::Utils::append_to_file("$folder/pg_ctl", "#!/bin/sh\nexec @{ $self->{inside} } '$pg_ctl' \"\$@\"\n");
	chmod 0755, "$folder/pg_ctl" or die "chmod: $!\n";
	local $ENV{PATH} = "$folder:$ENV{PATH}";
	$node->start;
	return $node;
}

# Sets the Ethernet addresses to which both ends send.
sub send_to
{
	my ($self, $to_far, $to_near) = @_;
	my @replace = qw(ip neigh replace nud permanent);

	run(@replace, 'to', $far{address}, 'dev', $near{device}, 'lladdr', $to_far);
	run(@{ $self->{inside} }, @replace, 'to', $near{address}, 'dev', $far{device}, 'lladdr', $to_near);
	return;
}

sub cut { return $_[0]->send_to($unused, $unused); }

sub restore { return $_[0]->send_to($far{ether}, $near{ether}); }

END
{
	my $status = $?;

	foreach my $network (@networks)
	{
		close $network->{in};
		waitpid $network->{pid}, 0;
	}
	$? = $status;
}

1;
