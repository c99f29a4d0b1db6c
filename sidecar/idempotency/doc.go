// Package idempotency makes a repeated publish the same publish: a request that
// carries an Idempotency-Key which an earlier one carried gets the earlier
// one's answer, and writes nothing that is written already.
//
// # What is on disk when
//
// Before anything of a request with a key is sent, an intent is on this host's
// disk: the key and the request as digests, and where its records may come to
// lie, which is partitions with the offsets at which they ended before. Each
// record carries an id in a header that is made of the key, so it can be found
// again. After the answer its fates follow, without a sync of their own: if a
// crash takes them they are found out again.
//
// So a crash before the intent leaves nothing, and nothing was sent; one after
// it leaves an intent whose fate is open, wherever it struck: before the
// records were sent, on their way, written, or answered. Open ones are settled
// by looking into the partitions for the ids, in the background and before
// anything is sent for the key again. What was not written is sent by the
// repeat.
//
// While a record is still on its way in this process nobody looks and nobody
// sends: it may land after the look. After a crash, and where a connection broke
// without an answer, a broker may still hold a request in its queue; so a record
// is believed to be absent only when two looks, some time apart, did not find
// it. A broker that stalls for longer than that, and comes back with the queue
// that it had, is the edge of the promise.
package idempotency
