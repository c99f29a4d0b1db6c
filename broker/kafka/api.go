package kafka

import (
	"bufio"
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// kind says where a request may be served.
type kind uint8

const (
	// inline requests are answered from memory at once, so an event loop serves them itself.
	inline kind = iota
	// produce requests are queued at once and answered later; several of a connection may be on their way.
	produce
	// waiting requests read the disk, ask the cluster or poll: only a goroutine serves them, one at a time, after all
	// earlier requests of the connection have been answered.
	waiting
)

// api is one request kind that the server knows. Each is declared in the file that is named after its key.
type api struct {
	key      int16
	name     string
	min, max int16 // versions, which ApiVersions advertises
	hidden   bool  // known only to be refused, and not advertised
	kind     kind
	flexible int16 // first version with tagged fields, filled in from kmsg
	request  func() kmsg.Request
	// shape looks at the body before it is decoded, for what decoding would cost or lose; nil where that is nothing.
	shape func(body []byte, version int16) error
	// serve answers an inline or waiting request. An inline one returns errWouldBlock to be called again from a
	// goroutine (call.mayBlock). Another error closes the connection.
	serve func(s *Server, c *call) (*response, error)
	// takeOver is there instead of serve for a waiting request after which the connection speaks another protocol. It has
	// the connection, of which nothing is in flight then, until it returns, and the connection is closed: it reads from r
	// without a deadline and writes by c.write, both of which end when the connection is killed.
	takeOver func(c *conn, call *call, r *bufio.Reader) error
	// enqueue starts a produce request and later calls finish exactly once.
	enqueue func(s *Server, c *call, finish func(*response, error))
}

// call is one request being served.
type call struct {
	ctx      context.Context // over when the server stops
	header   header
	req      kmsg.Request
	mayBlock bool
	gone     func() bool   // whether the client is away, for who waits; nil where nobody may wait
	mute     time.Duration // how long the connection is not read after this request, set by the handler
}

// Keys of the requests that the code below asks for by name.
const (
	keyProduce     = 0
	keyFetch       = 1
	keyApiVersions = 18
)

// apiTable is what this server speaks; ApiVersions answers from it. It is filled in init, because a handler may read
// the table that it is part of.
var apiTable map[int16]*api

func init() {
	apiTable = map[int16]*api{}
	for _, a := range []*api{
		&produceAPI, &fetchAPI, &listOffsetsAPI, &metadataAPI, &findCoordinatorAPI, &apiVersionsAPI,
		&createTopicsAPI, &deleteTopicsAPI, &initProducerIDAPI, &describeConfigsAPI, &createPartitionsAPI,
		&offsetCommitAPI, &offsetFetchAPI, &joinGroupAPI, &describeGroupsAPI, &listGroupsAPI, &deleteGroupsAPI, &offsetDeleteAPI,
		&deleteRecordsAPI, &offsetForLeaderEpochAPI, &alterConfigsAPI, &describeLogDirsAPI, &incrementalAlterConfigsAPI,
		&describeClusterAPI, &describeAclsAPI, &listPartitionReassignmentsAPI,
	} {
		apiTable[a.key] = a
		for a.flexible = a.min; a.flexible <= a.max; a.flexible++ {
			req := a.request()
			if req.SetVersion(a.flexible); req.IsFlexible() {
				break
			}
		}
	}
}

// flexible tells whether a request has tagged fields in its header, and whether this server knows its form at all.
func flexible(key, version int16) (isFlexible, known bool) {
	a := apiTable[key]
	if a == nil || version < a.min || version > a.max {
		return false, false
	}
	return version >= a.flexible, true
}
