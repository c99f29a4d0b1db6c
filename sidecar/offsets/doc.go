// Package offsets keeps what of each partition a consumer group has
// acknowledged: a [Position], its merge by union, the sidecar's [Local] store
// on disk, and the [Checkpointer] that writes positions to discovery.
//
// Acknowledgements only ever add to a position, so whatever order copies of it
// meet in (local and remote, old owner and new), their union is right and
// nothing rewinds.
package offsets
