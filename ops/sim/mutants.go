package sim

// Mutants are known mistakes, or pairs of them, that the simulator must find
// within so many seeds of the small plan. Those that it is not expected to find
// alone are not here: noFence, lateResp, divOnce and noEpochStart are each
// covered by another rule.
var Mutants = []struct {
	Name  string // mutations with + between them
	Seeds uint64
}{
	{"hwTrunc", 40_000}, {"noFsync", 40_000}, {"optShrink", 40_000}, {"smallISR", 40_000},
	{"anyLeader", 40_000}, {"isrAll", 40_000}, {"byFolder", 40_000}, {"noInc", 40_000},
	{"noIncLead", 40_000}, {"hwBelowMin", 40_000}, {"elrKeep", 40_000}, {"splitBad", 40_000},
	{"divOnce+noFence", 40_000}, {"divOnce+lateResp", 40_000},
	{"settleEarly", 1_000_000}, {"slotsFirst", 40_000},
}
