package replica

// Mutation is a known mistake in the protocol. A build with the tag mutants can
// put one back, and the simulator must find it: that is the test of the
// simulator. In every other build none is there.
type Mutation string

// The mistakes, with the systems that shipped them.
const (
	HWTrunc      Mutation = "hwTrunc"      // a follower cuts its log to its high watermark (Kafka before KIP-101)
	NoFsync      Mutation = "noFsync"      // the high watermark counts what is not synced (Kafka's default; NATS 2.12.1)
	OptShrink    Mutation = "optShrink"    // a shrink counts before it is written: a zombie leader commits alone
	SmallISR     Mutation = "smallISR"     // a growth does not count while it is being written (KIP-497)
	AnyLeader    Mutation = "anyLeader"    // a leader from outside the ISR
	ISRAll       Mutation = "isrAll"       // a new leader takes all replicas for in sync
	ByFolder     Mutation = "byFolder"     // a broker leads by its folder while the store is away
	NoInc        Mutation = "noInc"        // nobody looks at the folder's nonce (KIP-858, KIP-903)
	NoIncLead    Mutation = "noIncLead"    // the broker itself does not look before it leads
	HWBelow      Mutation = "hwBelowMin"   // the high watermark moves below min.insync.replicas (KIP-966)
	ELRKeep      Mutation = "elrKeep"      // the ELR is kept when the ISR is whole again (KIP-966)
	SplitBad     Mutation = "splitBad"     // what a follower has appended counts as synced
	DivOnce      Mutation = "divOnce"      // divergence is looked for once an epoch (KIP-101, KIP-279)
	NoFence      Mutation = "noFence"      // a leader does not look at the epoch of its followers
	LateResp     Mutation = "lateResp"     // a follower takes what an earlier leader sent
	SettleEarly  Mutation = "settleEarly"  // a refusal counts as "not written"
	SlotsFirst   Mutation = "slotsFirst"   // the folders are read after the slots
	JoinByID     Mutation = "joinByID"     // the controller does not look at the folder that a growth rests on (KIP-903)
	NoHeld       Mutation = "noHeld"       // a controller writes without holding its lock
	NoEpochStart Mutation = "noEpochStart" // no rule about the epoch's start
)
