#!/usr/bin/env bash
# META.json complies with PGXN's specification (pgxn.org/spec), and the version is the
# same in all files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

exec perl - <<'PERL'
use strict;
use warnings;
use JSON::PP;

my @wrong;
my $semver = qr/^(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-?[A-Za-z][0-9A-Za-z-]*)?$/;
my %license = map { $_ => 1 } qw(agpl_3 apache_1_1 apache_2_0 artistic_1 artistic_2 bsd freebsd
  gfdl_1_2 gfdl_1_3 gpl_1 gpl_2 gpl_3 lgpl_2_1 lgpl_3_0 mit mozilla_1_0 mozilla_1_1 none
  open_source openssl perl_5 postgresql qpl_1_0 restricted ssleay sun unknown unrestricted zlib);

sub slurp
{
	my ($path) = @_;

	open my $file, '<', $path or die "meta: no $path\n";
	local $/;
	return <$file>;
}

# found TEXT PATTERN: the match in a file
sub found
{
	my ($path, $pattern) = @_;
	my ($value) = slurp($path) =~ $pattern;

	push @wrong, "$path has no version" unless defined $value;
	return $value // '';
}

# (both in scalar context: a failed match is not an empty list)
sub must($$)
{
	my ($true, $what) = @_;

	push @wrong, $what unless $true;
	return;
}

sub text { return defined $_[0] && !ref $_[0] && $_[0] ne ''; }

my $meta = eval { JSON::PP->new->decode(slurp('META.json')) } or die "meta: META.json: $@";

foreach my $key (qw(abstract license maintainer meta-spec name provides version))
{
	must(defined $meta->{$key}, "META.json has no $key");
}
my %known = map { $_ => 1 } qw(abstract license maintainer meta-spec name provides version
  description generated_by no_index prereqs release_status resources tags);
must($known{$_} || /^x_/i, "META.json: $_ is not in the specification") foreach keys %$meta;
must(text($meta->{$_}), "META.json: $_ is not a text") foreach qw(abstract description generated_by name maintainer license);
must($license{ $meta->{license} // '' }, 'META.json: an unknown license');
must(($meta->{name} // '') =~ /^[^\/\\\s\x00-\x1f]{2,}$/, 'META.json: a wrong name');
must(($meta->{version} // '') =~ $semver, 'META.json: version is not a semantic one');
must(($meta->{'meta-spec'}{version} // '') eq '1.0.0', 'META.json: meta-spec is not 1.0.0');
must(ref $meta->{tags} eq 'ARRAY' && !grep({ !text($_) || length > 256 } @{ $meta->{tags} }), 'META.json: wrong tags');
must(($meta->{release_status} // 'stable') =~ /^(stable|testing|unstable)$/, 'META.json: wrong release_status');
foreach my $phase (keys %{ $meta->{prereqs} // {} })
{
	must($phase =~ /^(configure|build|test|runtime|develop)$/, "META.json: no phase $phase");
	foreach my $relation (keys %{ $meta->{prereqs}{$phase} })
	{
		my $needs = $meta->{prereqs}{$phase}{$relation};

		must($relation =~ /^(requires|recommends|suggests|conflicts)$/, "META.json: no relation $relation");
		must($needs->{$_} =~ $semver || $needs->{$_} eq '0', "META.json: version of $_") foreach keys %$needs;
	}
}

my $provides = $meta->{provides}{pgpool_ext} // {};
my $default = found('pgpool_ext.control', qr/^default_version = '(.*)'$/m);
must(text($provides->{file}) && -f $provides->{file}, 'META.json: provides no file');
must(text($provides->{docfile}) && -f $provides->{docfile}, 'META.json: docfile is not there');
must(($provides->{file} // '') eq "sql/pgpool_ext--$default.sql", "META.json: file is not the script of version $default");
must(keys %{ $meta->{provides} // {} } == 1, 'META.json: provides more than pgpool_ext');

# the version of a release has three numbers, that of the script the first two
my %at = (
	'META.json, provides' => $provides->{version} // '',
	'CHANGELOG.md' => found('CHANGELOG.md', qr/\A## (\S+)/),
	'.debian/changelog' => found('.debian/changelog', qr/\Apgpool-ext \((.*?)-\d+\)/));
must($at{$_} eq ($meta->{version} // ''), "$_ says $at{$_}, META.json $meta->{version}") foreach sort keys %at;
%at = (
	'pgpool_ext.control' => $default,
	'src/pgpool_ext.c' => found('src/pgpool_ext.c', qr/\.version = "(.*?)"/));
must("$at{$_}." eq (($meta->{version} // '') =~ s/\d+$//r), "$_ says $at{$_}, META.json $meta->{version}") foreach sort keys %at;

print map { "meta: $_\n" } @wrong;
exit 1 if @wrong;
print "meta: ok\n";
PERL
