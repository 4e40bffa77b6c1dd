/*-------------------------------------------------------------------------
 *
 * checkout_validate.h
 *	  Checkout: validate the connection of a new lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPX_CHECKOUT_VALIDATE_H
#define PGPX_CHECKOUT_VALIDATE_H

#include "session/checkout_pool.h"

/*
 * Extra time that a checkout has after its deadline once a connection was
 * granted.  It covers the transfer of the socket or the answer of a pending
 * reset.
 */
#define PGPX_CHECKOUT_GRACE_US (100 * 1000)

typedef enum PgpxValidation
{
	PGPX_VALIDATION_OK,
	PGPX_VALIDATION_DEAD,		/* released; retry with another connection */
	PGPX_VALIDATION_LATE		/* deadline passed; released */
} PgpxValidation;

/*
 * pgpx_checkout_validate
 *		Fetch the socket of a new lease, check that the connection is alive,
 *		and reset it if necessary.
 *
 * On any result but OK, and on an error, the lease has been released.
 */
extern PgpxValidation pgpx_checkout_validate(PgpxCheckout *c, PgpxLease *lease);

/*
 * pgpx_checkout_validate_quickly
 *		Validate a lease whose socket is cached and that needs no reset.
 *
 * Never throws.  Returns false if the lease needs pgpx_checkout_validate.
 */
extern bool pgpx_checkout_validate_quickly(PgpxLease *lease);

#endif							/* PGPX_CHECKOUT_VALIDATE_H */
