# A copy of the server's installation for one test, into which other versions of the
# extension can be installed, or from which it can be removed.
#
#   use PgpxInstall;
#
#   my $install = PgpxInstall->new;
#   my $local = local_node('local', install => $install);
#   $install->write_script('1.0--1.1', $sql);
#   $install->newer_library($c);      # for processes that load it from now on
#   $install->remove;
#
# Programs are copied, all other files are links, as in private_install of test/lib.sh.
package PgpxInstall;

use strict;
use warnings;

use File::Basename;
use File::Copy;
use PostgreSQL::Test::Utils ();

sub new
{
	my ($class) = @_;
	my $root = PostgreSQL::Test::Utils::tempdir();
	my %real = map { $_ => pg_config($_) } qw(bindir pkglibdir sharedir);
	my $self = bless {
		bin => $root . $real{bindir},
		lib => $root . $real{pkglibdir},
		share => "$root$real{sharedir}/extension" }, $class;

	run('mkdir', '-p', $self->{bin}, $self->{lib}, $self->{share});
	run('sh', '-c', 'cp -L "$1"/* "$2"', 'cp', $real{bindir}, $self->{bin});
	if (-e "$self->{bin}/postgres.real")
	{
		# under valgrind: a script that starts the real server
		run('sed', '-i', "s|$real{bindir}|$self->{bin}|", "$self->{bin}/postgres");
	}
	foreach my $file (glob "$real{pkglibdir}/* $real{sharedir}/* $real{sharedir}/extension/*")
	{
		next if $file eq "$real{sharedir}/extension";
		if (basename($file) =~ /^pgpool_ext(\.|--)/)
		{
			run('cp', '-L', $file, "$root$file");
		}
		else
		{
			symlink $file, "$root$file" or die "could not link $root$file: $!\n";
		}
	}
	return $self;
}

# The installation's path for PostgreSQL::Test::Cluster.
sub path { return dirname($_[0]->{bin}); }

# The path of a program.
sub program { return "$_[0]->{bin}/$_[1]"; }

# The text of an extension script, by the part of its name behind "--".
sub script
{
	my ($self, $versions) = @_;

	return PostgreSQL::Test::Utils::slurp_file("$self->{share}/pgpool_ext--$versions.sql");
}

sub write_script
{
	my ($self, $versions, $sql) = @_;

	open my $file, '>', "$self->{share}/pgpool_ext--$versions.sql" or die "no script $versions: $!\n";
	print $file $sql;
	close $file;
	return;
}

# All scripts, by the part of their names behind "--".
sub scripts
{
	my ($self) = @_;

	return sort map { /pgpool_ext--(.*)\.sql$/ } glob "$self->{share}/pgpool_ext--*.sql";
}

# Replaces the installed library by one that contains all its functions and those of a C
# source. Processes that have loaded the old one keep it.
sub newer_library
{
	my ($self, $c) = @_;
	my $source = "$self->{lib}/newer.c";

	move("$self->{lib}/pgpool_ext.so", "$self->{lib}/pgpool_ext_old.so");
	open my $file, '>', $source or die "could not write $source: $!\n";
	print $file $c;
	close $file;
	run('cc', '-shared', '-fPIC', '-o', "$self->{lib}/pgpool_ext.so", $source,
		'-Wl,--no-as-needed', "$self->{lib}/pgpool_ext_old.so");
	return;
}

# Removes all files of the extension.
sub remove
{
	my ($self) = @_;

	unlink glob "$self->{lib}/pgpool_ext*.so $self->{share}/pgpool_ext.control $self->{share}/pgpool_ext--*.sql";
	return;
}

sub pg_config
{
	my ($what) = @_;
	my $answer = `pg_config --$what`;

	chomp $answer;
	die "pg_config knows no --$what\n" unless $? == 0 && $answer ne '';
	return $answer;
}

sub run
{
	my @command = @_;

	system(@command) == 0 or die "failed: @command\n";
	return;
}

1;
