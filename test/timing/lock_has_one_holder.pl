# The test of the same name, with more acquisitions.
use strict;
use warnings;

use File::Basename 'dirname';

$ENV{PGPX_LOCK_ACQUISITIONS} //= 10_000;
my $file = dirname(__FILE__) . '/../t/locks/lock_has_one_holder.pl';
do $file or die $@ || "could not run $file: $!";
