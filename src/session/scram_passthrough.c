/*-------------------------------------------------------------------------
 *
 * scram_passthrough.c
 *	  SCRAM pass-through: the keys with which a session logs in to a remote
 *	  server as it has logged in here.
 *
 * A client that logs in by SCRAM proves that it knows the client key.  The key
 * depends on the role's password, salt and iterations only, so all sessions of
 * the role have the same key until the password is changed.  Another server
 * accepts the key if the role has the same SCRAM secret there.
 *
 * Sessions with the same keys share a pool.  Its key has a digest of the stored
 * key, the part of the secret in pg_authid that is derived from the client key.
 * So the digest can be compared with the catalog after the password was
 * changed.  It is an HMAC with a random key in the private memory of the
 * server's processes, so that shared memory contains nothing with which
 * passwords can be guessed.
 *
 *-------------------------------------------------------------------------
 */
#include "session/server_spec.h"

#ifdef PGPX_HAS_SCRAM_PASSTHROUGH
/*
 * The headers of GSSAPI may be missing.  Without ENABLE_GSS the offsets in Port
 * are the same, as libpq-be.h promises.
 */
#undef ENABLE_GSS
#include "libpq/libpq-be.h"
#include "catalog/pg_authid.h"
#include "common/base64.h"
#include "common/hmac.h"
#include "common/scram-common.h"
#include "libpq/crypt.h"
#include "libpq/scram.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

static uint8 digest_key[32];	/* random; inherited from the postmaster */

/* Compute the digest of a stored key. */
static void
compute_digest(const uint8 *stored_key, uint32 digest[3])
{
	uint8		hash[PG_SHA256_DIGEST_LENGTH];
	pg_hmac_ctx *hmac = pg_hmac_create(PG_SHA256);

	if (hmac == NULL ||
		pg_hmac_init(hmac, digest_key, sizeof(digest_key)) < 0 ||
		pg_hmac_update(hmac, stored_key, SCRAM_SHA_256_KEY_LEN) < 0 ||
		pg_hmac_final(hmac, hash, sizeof(hash)) < 0)
	{
		/* matches no key, so the pool counts as outdated */
		memset(hash, 0, sizeof(hash));
	}
	pg_hmac_free(hmac);
	memcpy(digest, hash, 3 * sizeof(uint32));
}

/*
 * Compute the digest of a role's keys from its SCRAM secret in the catalog.
 * Return false if it has none.  Raise no error.
 */
static bool
compute_role_digest(Oid role, uint32 digest[3])
{
	HeapTuple	row = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	Datum		password;
	bool		none;
	char	   *secret = NULL;
	int			iterations;
	pg_cryptohash_type hash_type;
	int			key_length;
	char	   *salt = NULL;
	uint8		stored_key[SCRAM_MAX_KEY_LEN];
	uint8		server_key[SCRAM_MAX_KEY_LEN];
	bool		valid;

	if (!HeapTupleIsValid(row))
		return false;
	password = SysCacheGetAttr(AUTHOID, row, Anum_pg_authid_rolpassword, &none);
	if (!none)
		secret = TextDatumGetCString(password);
	ReleaseSysCache(row);
	valid = secret != NULL &&
		get_password_type(secret) == PASSWORD_TYPE_SCRAM_SHA_256 &&
		parse_scram_secret(secret, &iterations, &hash_type, &key_length, &salt,
						   stored_key, server_key);
	if (valid)
		compute_digest(stored_key, digest);
	if (secret != NULL)
		explicit_bzero(secret, strlen(secret));
	explicit_bzero(stored_key, sizeof(stored_key));
	explicit_bzero(server_key, sizeof(server_key));
	return valid;
}

void
pgpx_scram_init(void)
{
	if (!pg_strong_random(digest_key, sizeof(digest_key)))
		elog(FATAL, "could not generate a random number");
}

bool
pgpx_scram_is_current(const PgpxPoolKey *key)
{
	uint32		digest[3];

	return !OidIsValid(key->scram_role) ||
		(compute_role_digest(key->scram_role, digest) &&
		 memcmp(digest, key->scram_digest, sizeof(digest)) == 0);
}

bool
pgpx_scram_find_keys(PgpxServerSpec *spec, PgpxScramKeys *keys)
{
	uint8		stored_key[SCRAM_MAX_KEY_LEN];
	const char *error = NULL;
	Oid			role;

	/* a background worker has no client, and so no port */
	if (MyProcPort == NULL || !MyProcPort->has_scram_keys)
		return false;
	role = GetAuthenticatedUserId();
	(void) pgpx_server_catalog_is_created(NameStr(spec->server_name), AUTHOID,
										  role);
	if (scram_H(MyProcPort->scram_ClientKey, PG_SHA256, SCRAM_SHA_256_KEY_LEN,
				stored_key, &error) < 0)
		elog(ERROR, "could not compute a SCRAM key: %s", error);
	spec->key.scram_role = role;
	compute_digest(stored_key, spec->key.scram_digest);
	explicit_bzero(stored_key, sizeof(stored_key));
	if (!pgpx_scram_is_current(&spec->key))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION),
				 errmsg("SCRAM keys of this session are outdated"),
				 errdetail("The password of role \"%s\" was changed after the "
						   "session had logged in.",
						   GetUserNameFromId(role, false)),
				 errhint("Log in again.")));
	memset(keys, 0, sizeof(*keys));
	if (pg_b64_encode(MyProcPort->scram_ClientKey, SCRAM_SHA_256_KEY_LEN,
					  keys->client, sizeof(keys->client) - 1) < 0 ||
		pg_b64_encode(MyProcPort->scram_ServerKey, SCRAM_SHA_256_KEY_LEN,
					  keys->server, sizeof(keys->server) - 1) < 0)
		elog(ERROR, "could not encode a SCRAM key");
	return true;
}
#else
void
pgpx_scram_init(void)
{
}

bool
pgpx_scram_is_current(const PgpxPoolKey *key)
{
	return true;
}

bool
pgpx_scram_find_keys(PgpxServerSpec *spec, PgpxScramKeys *keys)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("server \"%s\" cannot be used as a pool",
					NameStr(spec->server_name)),
			 errdetail("Option \"use_scram_passthrough\" needs PostgreSQL 18 "
					   "or later.")));
}
#endif
