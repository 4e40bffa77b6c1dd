# Everything that a database's catalogs contain about the extension, as lines of text that
# do not depend on how the objects were made: members, definitions, owners, privileges,
# initial privileges (used by pg_dump), comments. Used to compare an upgraded schema
# with a new one, and a restored schema with the dumped one.
#
#   use PgpxSchema;
#
#   my @lines = extension_lines($node, 'postgres');
#   is(differences(\@lines, \@others), '', 'schemas are equal');
package PgpxSchema;

use strict;
use warnings;

use Exporter 'import';

our @EXPORT = qw(extension_lines differences);

# Privileges as they apply; none means the defaults.
my $acl = q{(SELECT string_agg(concat(coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC'), ' ',
	a.privilege_type, CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' END), ', '
	ORDER BY coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC'), a.privilege_type) FROM aclexplode(%s) a)};

sub acl { return sprintf $acl, $_[0]; }

sub extension_lines
{
	my ($node, $dbname) = @_;
	my %acl = (
		proc => acl("coalesce(p.proacl, acldefault('f', p.proowner))"),
		proc_init => acl("coalesce(i.initprivs, acldefault('f', p.proowner))"),
		class => acl("coalesce(c.relacl, acldefault('r', c.relowner))"),
		class_init => acl("coalesce(i.initprivs, acldefault('r', c.relowner))"),
		column => acl('a.attacl'),
		schema => acl("coalesce(n.nspacl, acldefault('n', n.nspowner))"),
		schema_init => acl("coalesce(i.initprivs, acldefault('n', n.nspowner))"),
		fdw => acl("coalesce(w.fdwacl, acldefault('F', w.fdwowner))"),
		fdw_init => acl("coalesce(i.initprivs, acldefault('F', w.fdwowner))"));
	my $lines = $node->safe_psql($dbname, <<"EOT");
SET search_path = pg_catalog;
WITH member AS (
	SELECT d.classid, d.objid, pg_describe_object(d.classid, d.objid, 0) AS name
	FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid AND e.extname = 'pgpool_ext'
	WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
		-- members from 17 on: the row types of tables and views, and arrays
		AND NOT (d.classid = 'pg_type'::regclass AND EXISTS (SELECT FROM pg_type t
			LEFT JOIN pg_class c ON c.oid = t.typrelid
			WHERE t.oid = d.objid AND (t.typcategory = 'A' OR c.relkind IN ('r', 'v'))))),
init AS (SELECT * FROM pg_init_privs WHERE objsubid = 0)
SELECT replace(line, E'\\n', E'\\r') FROM (
	SELECT concat_ws(' | ', 'extension', extversion, extnamespace::regnamespace, extrelocatable,
		extconfig::text, extcondition::text, obj_description(oid, 'pg_extension')) AS line
		FROM pg_extension WHERE extname = 'pgpool_ext'
	UNION ALL SELECT name || CASE WHEN classid NOT IN ('pg_proc'::regclass, 'pg_class'::regclass,
			'pg_namespace'::regclass, 'pg_foreign_data_wrapper'::regclass, 'pg_type'::regclass, 'pg_cast'::regclass)
		OR EXISTS (SELECT FROM pg_class c WHERE classid = 'pg_class'::regclass AND c.oid = objid AND c.relkind <> 'v')
		THEN ' | PgpxSchema.pm does not compare such objects' ELSE '' END FROM member
	UNION ALL SELECT concat_ws(' | ', name, 'comment', a.attname, description)
		FROM member JOIN pg_description d ON d.objoid = member.objid AND d.classoid = member.classid
		LEFT JOIN pg_attribute a ON d.objsubid > 0 AND a.attrelid = d.objoid AND a.attnum = d.objsubid
	UNION ALL SELECT concat_ws(' | ', name, 'privileges', $acl{proc}, 'initial', $acl{proc_init},
			'owner', p.proowner::regrole, pg_get_functiondef(p.oid))
		FROM member JOIN pg_proc p ON member.classid = 'pg_proc'::regclass AND p.oid = objid
		LEFT JOIN init i ON i.classoid = member.classid AND i.objoid = objid
	UNION ALL SELECT concat_ws(' | ', name, 'privileges', $acl{class}, 'initial', $acl{class_init},
			'owner', c.relowner::regrole, c.reloptions::text)
		FROM member JOIN pg_class c ON member.classid = 'pg_class'::regclass AND c.oid = objid
		LEFT JOIN init i ON i.classoid = member.classid AND i.objoid = objid
	UNION ALL SELECT concat_ws(' | ', name, t.typtype, t.typcategory, t.typispreferred, t.typinput, t.typoutput,
			t.typreceive, t.typsend, t.typlen, t.typbyval, t.typalign, t.typstorage, t.typbasetype::regtype,
			'owner', t.typowner::regrole)
		FROM member JOIN pg_type t ON member.classid = 'pg_type'::regclass AND t.oid = objid
	UNION ALL SELECT concat_ws(' | ', name, 'attribute', a.attnum, a.attname, format_type(a.atttypid, a.atttypmod))
		FROM member JOIN pg_type t ON member.classid = 'pg_type'::regclass AND t.oid = objid
			JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
	UNION ALL SELECT concat_ws(' | ', name, c.castmethod, c.castcontext, c.castfunc::regprocedure)
		FROM member JOIN pg_cast c ON member.classid = 'pg_cast'::regclass AND c.oid = objid
	UNION ALL SELECT concat_ws(' | ', name, 'rule', pg_get_ruledef(r.oid))
		FROM member JOIN pg_rewrite r ON member.classid = 'pg_class'::regclass AND r.ev_class = objid
	UNION ALL SELECT concat_ws(' | ', name, 'column', a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
			a.attcollation::regcollation, 'privileges', $acl{column})
		FROM member JOIN pg_attribute a ON member.classid = 'pg_class'::regclass AND a.attrelid = objid AND a.attnum > 0
	UNION ALL SELECT concat_ws(' | ', name, 'privileges', $acl{schema}, 'initial', $acl{schema_init},
			'owner', n.nspowner::regrole)
		FROM member JOIN pg_namespace n ON member.classid = 'pg_namespace'::regclass AND n.oid = objid
		LEFT JOIN init i ON i.classoid = member.classid AND i.objoid = objid
	UNION ALL SELECT concat_ws(' | ', name, 'privileges', $acl{fdw}, 'initial', $acl{fdw_init},
			'owner', w.fdwowner::regrole, 'handler', w.fdwhandler::regproc, 'validator', w.fdwvalidator::regproc,
			w.fdwoptions::text)
		FROM member JOIN pg_foreign_data_wrapper w
			ON member.classid = 'pg_foreign_data_wrapper'::regclass AND w.oid = objid
		LEFT JOIN init i ON i.classoid = member.classid AND i.objoid = objid
) AS all_lines ORDER BY 1
EOT

	return split /\n/, $lines;
}

# The lines that only one side has, or ''.
sub differences
{
	my ($got, $expected) = @_;
	my %got = map { $_ => 1 } @$got;
	my %expected = map { $_ => 1 } @$expected;

	return join "\n",
	  (map { "+ $_" } grep { !$expected{$_} } sort keys %got),
	  (map { "- $_" } grep { !$got{$_} } sort keys %expected);
}

1;
