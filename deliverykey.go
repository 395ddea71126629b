package samekey

import (
	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/framed"
)

// DeliveryKey returns the key that the intent of this action and part under k carries to the vendor. It is equal for
// equal arguments in every process, release and language, and differs if scope, value, action or part differ (apart
// from a collision in 122 bits of SHA-256). So if a failover loses the last second and the request is made once more,
// the vendor sees the same key. It does not check its arguments.
//
// A vendor learns nothing about the caller's key from it, unless the vendor can guess that key.
//
// The delivery key is a UUID of version 8 (RFC 9562). The SQL function samekey.delivery_key(scope, idem_key, action,
// part) computes the same one, in three steps:
//
//  1. Concatenate the 19 ASCII bytes "samekey/delivery/v1" and then, for each of scope, value, action and part in this
//     order, the length in bytes as a 32-bit big-endian integer, followed by the bytes. Because of the lengths,
//     "a.b"+"c" and "a"+"b.c" differ. An absent part is empty: four zero bytes.
//  2. Take the first 16 bytes of the SHA-256 digest.
//  3. Byte 6 (counted from 0) = (byte 6 AND 0x0f) OR 0x80, the version. Byte 8 = (byte 8 AND 0x3f) OR 0x80, the
//     variant.
//
// For the scope "acme/orders.create", the value "order-1", the action "charge_card" and no part, step 1 gives, in
// hexadecimal,
//
//	73616d656b65792f64656c69766572792f7631
//	00000012 61636d652f6f72646572732e637265617465
//	00000007 6f726465722d31
//	0000000b 6368617267655f63617264
//	00000000
//
// and the delivery key is 19ff97c1-7f6e-8cca-a424-270c1111580a.
func DeliveryKey(k Key, action, part string) uuid.UUID {
	return hashedUUID("samekey/delivery/v1", k.Scope, k.Value, action, part)
}

// hashedUUID returns a UUID of version 8 derived from a label and texts.
func hashedUUID(label string, texts ...string) uuid.UUID {
	digest := framed.Sum(label, texts...)
	id := uuid.UUID(digest[:16])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}
