# Follow contrib/docker without a container engine, as root in a minimal Debian with the
# server packages of POSTGRES: perl compose.pl MAJOR
#
# The instructions of the Dockerfile are executed, and each service of compose.yaml becomes
# a cluster with an address of its own, which is initialized as the image postgres does it.
# Then the commands "docker compose exec" in the head of compose.yaml are executed. An
# instruction or a key that is unknown here is an error.
# It changes the machine: for test/packages/containers.
use strict;
use warnings;

use CPAN::Meta::YAML;
use Cwd qw(abs_path);
use File::Basename;
use JSON::PP;

my ($major) = @ARGV;
my $top = abs_path(dirname(__FILE__) . '/../..');
my $folder = "$top/contrib/docker";
my $bindir = "/usr/lib/postgresql/$major/bin";
my $passed = 0;
my @cmd;
$ENV{PATH} .= ":$bindir";

sub slurp
{
	my ($path) = @_;

	open my $file, '<', $path or die "could not read $path: $!\n";
	local $/;
	return <$file>;
}

# run TEXT COMMAND ..
sub run
{
	my ($text, @command) = @_;

	print "# @command\n";
	system(@command) == 0 or die "FAILED: $text\n";
	print "ok: $text\n";
	$passed++;
}

# as user postgres, in its environment of a container: TEXT COMMAND ENVIRONMENT
sub run_in
{
	my ($text, $command, %environment) = @_;

	run($text, qw(setpriv --reuid=postgres --regid=postgres --init-groups env -C /),
		(map { "$_=$environment{$_}" } sort keys %environment), 'sh', '-c', $command);
}

sub only_keys
{
	my ($hash, @known) = @_;
	my %unknown = %$hash;

	delete @unknown{@known};
	die 'unknown: ' . join(', ', sort keys %unknown) . "\n" if %unknown;
}

sub build
{
	my %arg = (PG_MAJOR => $major);    # --build-arg

	foreach (split /\n/, slurp("$folder/Dockerfile") =~ s/^#.*\n//mgr =~ s/\\\n\s*//gr)
	{
		if (/^ARG PG_MAJOR(=\d+)?$/ || /^$/ || /^FROM postgres:\$PG_MAJOR$/) { next; }
		elsif (m{^COPY \. (/\S+)$}) { run('COPY', 'cp', '-r', $top, $1); }
		elsif (/^RUN (.*)$/) { run('RUN', 'env', (map { "$_=$arg{$_}" } keys %arg), 'sh', '-c', $1); }
		elsif (/^CMD (\[.*\])$/) { @cmd = @{ decode_json($1) }; }
		else { die "Dockerfile: unknown instruction: $_\n"; }
	}
}

sub start
{
	my ($name, $service, $address) = @_;
	my %env = (POSTGRES_USER => 'postgres', %{ $service->{environment} });
	my ($data, $sockets) = ("/var/lib/postgresql/$name", "/run/$name");
	my $options = join ' ', $service->{build} ? @cmd[ 1 .. $#cmd ] : ();
	my $pg_ctl = "pg_ctl -w -D $data -l $data.log";

	only_keys($service, qw(build image environment volumes healthcheck depends_on));
	only_keys(\%env, qw(POSTGRES_USER POSTGRES_DB POSTGRES_PASSWORD));
	if ($service->{build})
	{
		only_keys($service->{build}, qw(context dockerfile));
		die "$name: wrong context\n" if abs_path("$folder/$service->{build}{context}") ne $top;
		die "$name: no Dockerfile\n" if !-f "$top/$service->{build}{dockerfile}";
	}
	elsif ($service->{image} !~ /^postgres:\d+$/) { die "$name: unknown image\n"; }

	run("$name: folder of sockets", qw(install -d -o postgres), $sockets);
	run_in("$name: initdb", qq{echo "\$POSTGRES_PASSWORD" >$data.pw; initdb -D $data -U "\$POSTGRES_USER" --pwfile=$data.pw --auth-host=scram-sha-256 && }
		  . "echo 'host all all all scram-sha-256' >>$data/pg_hba.conf", %env);
	run_in("$name: first start", qq{$pg_ctl -o "$options -c listen_addresses= -c unix_socket_directories=$sockets" start && }
		  . qq{createdb -h $sockets -U "\$POSTGRES_USER" "\$POSTGRES_DB"}, %env);
	foreach (@{ $service->{volumes} })
	{
		my ($file, $inside) = m{^\./(\S+?):/docker-entrypoint-initdb\.d/(\S+):ro$} or die "$name: unknown volume $_\n";

		run("$name: copy of $file", qw(install -m 755), "$folder/$file", "/tmp/$inside");
		run_in("$name: $inside", $inside =~ /\.sql$/ ? qq{psql -X -v ON_ERROR_STOP=1 -w -U "\$POSTGRES_USER" -d "\$POSTGRES_DB" -f /tmp/$inside} : "/tmp/$inside",
			%env, PGHOST => $sockets);
	}
	run_in("$name: start", "$pg_ctl -m fast stop && "
		  . qq{$pg_ctl -o "$options -c listen_addresses=$address -c unix_socket_directories=$sockets" start});
	only_keys($service->{healthcheck}, qw(test interval retries));
	run_in("$name: health", $service->{healthcheck}{test} =~ s/127\.0\.0\.1/$address/r);
}

build();
my $text = slurp("$folder/compose.yaml");
my $compose = CPAN::Meta::YAML->read_string($text)->[0];
my %services = %{ $compose->{services} };
my %address;

only_keys($compose, qw(name services));
open my $hosts, '>>', '/etc/hosts' or die "could not write /etc/hosts: $!\n";
foreach my $name (sort keys %services)
{
	$address{$name} = '127.0.0.' . (2 + keys %address);
	print $hosts "$address{$name} $name\n";
}
close $hosts;
while (my ($name) = grep { !grep { $services{$_} } keys %{ $services{$_}{depends_on} // {} } } sort keys %services)
{
	start($name, delete $services{$name}, $address{$name});
}
die 'services depend on each other: ' . join(', ', sort keys %services) . "\n" if %services;
foreach ($text =~ /^#   docker compose exec (.*)$/mg)
{
	my ($name, $command) = /^(\w+) (.*)$/;

	run_in($command, $command, PGHOST => "/run/$name");
}
run_in('tables of both shards, over pools',
	q{test "$(psql -XAtq -U app demo -c 'SELECT count(*) FROM accounts1' -c 'SELECT count(*) FROM accounts2' -c 'SELECT count(*) FROM pgpool.pools WHERE total = 1' | xargs)" = "200000 200000 2"},
	PGHOST => '/run/hub');
print "$passed passed, 0 failed\n";
