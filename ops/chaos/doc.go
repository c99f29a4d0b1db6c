// Package chaos holds the whole-system tests: the real binary as separate
// processes (agents and sidecars) around a real Consul with a data folder,
// with page views going through them while parts are killed.
//
// cluster.go starts and kills the processes, client.go speaks to them over
// HTTP, ledger.go keeps what was promised and what was seen, and judges.
package chaos
