// Package chaos holds the whole-system tests: the real binary as separate
// processes (agents and sidecars) around a real Consul with a data folder,
// with page views going through them while parts are killed.
//
// cluster.go starts and kills the processes, client.go speaks to them over
// HTTP, ledger.go keeps what was promised and what was seen. Some tests let one
// thing fail and look closely; TestRandomFaults lets everything fail in a seeded
// order (faults.go) under a load (load.go), and checker.go judges every answer.
// TestPublishFaults does the same to applications that publish (publishers.go):
// brokers, sidecars, disks and the wires between them fail (publishrun.go,
// wire.go), and posts.go judges every answer against what the log has in the end.
package chaos
