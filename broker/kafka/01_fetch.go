package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/cluster"
	"sidestream/broker/commitlog"
)

var fetchAPI = api{
	key: keyFetch, name: "Fetch", min: 4, max: 13,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrFetchRequest() },
	serve:   serveFetch,
}

const (
	codeFetchSessionNotFound = 70
	fetchByID                = 13 // from this version on topics are named by their UUID (KIP-516)
)

// fetched is one partition of a Fetch answer in the making.
type fetched struct {
	req     kmsg.FetchRequestTopicPartition
	part    Partition
	err     error
	at      Offsets
	slice   commitlog.Slice
	present bool // slice holds data and must be released
}

func (f *fetched) drop() {
	if f.present {
		f.slice.Release()
		f.present = false
	}
}

// fetchedTopic keeps the request's order, which the answer follows.
type fetchedTopic struct {
	name  string
	id    cluster.UUID
	parts []*fetched
}

func serveFetch(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.FetchRequest)
	if req.SessionEpoch > 0 {
		// Only a fetch that goes on in a session has such an epoch: 0 asks for one and -1 does without, both whatever the
		// id (KIP-227). We never give one out (that is always legal), so this one is not ours.
		s.metrics.failed(codeFetchSessionNotFound)
		return encodeFetch(c.header, req, nil, codeFetchSessionNotFound, 0)
	}
	if most := s.fetch.atOnce(c.header.clientID); most > 0 {
		req.MaxBytes = int32(min(int64(req.MaxBytes), most))
	}
	topics := s.resolveFetch(req)
	size, failed := s.readFetch(req, topics)
	if wait := s.fetchWait(req); size < int64(req.MinBytes) && !failed && wait > 0 {
		size = s.pollFetch(c, req, topics, wait)
	}
	for _, t := range topics {
		for _, f := range t.parts {
			if f.err != nil {
				s.metrics.failed(codeOf(f.err))
			}
		}
	}
	return encodeFetch(c.header, req, topics, codeNone, s.throttle(c, s.fetch, "fetch", size))
}

// resolveFetch finds the partitions that the request names.
func (s *Server) resolveFetch(req *kmsg.FetchRequest) []fetchedTopic {
	topics := make([]fetchedTopic, 0, len(req.Topics))
	for _, t := range req.Topics {
		ft := fetchedTopic{name: t.Topic, id: t.TopicID}
		known := true
		if req.Version >= fetchByID {
			tv := s.backend.View().TopicByID(t.TopicID)
			if known = tv != nil; known {
				ft.name = tv.Name
			}
		}
		for _, p := range t.Partitions {
			f := &fetched{req: p, at: Offsets{Start: -1, HighWatermark: -1, End: -1}}
			if !known {
				f.err = ErrUnknownTopicID
			} else if f.part, f.err = s.backend.Partition(ft.name, p.Partition); f.err == nil {
				f.err = checkEpoch(p.CurrentLeaderEpoch, f.part.Epoch())
			}
			ft.parts = append(ft.parts, f)
		}
		topics = append(topics, ft)
	}
	return topics
}

// readFetch takes hold of what there is to send, within the request's limits: the first batch of the answer whole even
// if it is larger than both (KIP-74), any later partition only if its first batch fits in what is left. It tells how
// many bytes that is and whether a partition failed.
func (s *Server) readFetch(req *kmsg.FetchRequest, topics []fetchedTopic) (size int64, failed bool) {
	left := min(int64(req.MaxBytes), s.cfg.MaxFetchBytes)
	for _, t := range topics {
		for _, f := range t.parts {
			f.drop()
			if f.err == nil {
				f.read(min(left, int64(f.req.PartitionMaxBytes)))
			}
			if f.err != nil {
				failed = true
				continue
			}
			if !f.present {
				continue
			}
			if n := int64(f.slice.Size); size > 0 && n > left {
				f.drop()
				continue
			}
			size += int64(f.slice.Size)
			left = max(0, left-int64(f.slice.Size))
		}
	}
	return size, failed
}

func (f *fetched) read(maxBytes int64) {
	if f.err = f.part.Err(); f.err != nil { // resigned while we waited
		return
	}
	f.at = f.part.Offsets()
	switch {
	case f.req.FetchOffset < f.at.Start || f.req.FetchOffset > f.at.End:
		f.err = commitlog.ErrOutOfRange
		return
	case f.req.FetchOffset >= f.at.HighWatermark:
		return // nothing that a consumer may see yet
	}
	slice, err := f.part.Read(f.req.FetchOffset, int(max(maxBytes, 1)))
	if err != nil {
		f.err = err
		return
	}
	if slice.Size == 0 {
		slice.Release()
		return
	}
	f.slice, f.present = slice, true
}

func (s *Server) fetchWait(req *kmsg.FetchRequest) time.Duration {
	return min(time.Duration(req.MaxWaitMillis)*time.Millisecond, s.cfg.MaxFetchWait)
}

// pollFetch waits until there are MinBytes, a partition fails, the time is over, the client goes away or the server
// stops, and returns how many bytes there are then. It sleeps until a high watermark moves: no polling of the logs.
func (s *Server) pollFetch(c *call, req *kmsg.FetchRequest, topics []fetchedTopic, wait time.Duration) int64 {
	wake := make(chan struct{}, 1)
	for _, t := range topics {
		for _, f := range t.parts {
			if f.part != nil {
				f.part.Watch(wake)
				defer f.part.Unwatch(wake)
			}
		}
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		// Read after Watch began, or a move between the first read and Watch would be missed.
		size, failed := s.readFetch(req, topics)
		if failed || size >= int64(req.MinBytes) {
			return size
		}
		select {
		case <-wake:
			continue
		case <-look.C:
			if c.gone == nil || !c.gone() {
				continue
			}
		case <-timer.C:
		case <-c.ctx.Done():
		}
		return size
	}
}
