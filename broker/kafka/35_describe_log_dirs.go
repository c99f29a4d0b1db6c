package kafka

import (
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

var describeLogDirsAPI = api{
	key: 35, name: "DescribeLogDirs", min: 1, max: 4,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrDescribeLogDirsRequest() },
	serve:   serveDescribeLogDirs,
}

func serveDescribeLogDirs(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.DescribeLogDirsRequest)
	resp := kmsg.NewPtrDescribeLogDirsResponse()
	resp.Version = req.Version
	wanted := wantedInLogDirs(req)
	for _, d := range s.backend.LogDirs() {
		resp.Dirs = append(resp.Dirs, describeLogDir(d, wanted))
	}
	return encode(c.header, resp), nil
}

func describeLogDir(d LogDir, wanted func(LogDirPartition) bool) kmsg.DescribeLogDirsResponseDir {
	out := kmsg.NewDescribeLogDirsResponseDir()
	out.Dir, out.TotalBytes, out.UsableBytes = d.Path, d.TotalBytes, d.UsableBytes
	if d.Err != nil {
		out.ErrorCode = codeKafkaStorageError
	}
	slices.SortFunc(d.Partitions, func(a, b LogDirPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	for _, p := range d.Partitions {
		if !wanted(p) {
			continue
		}
		if n := len(out.Topics); n == 0 || out.Topics[n-1].Topic != p.Topic {
			t := kmsg.NewDescribeLogDirsResponseDirTopic()
			t.Topic = p.Topic
			out.Topics = append(out.Topics, t)
		}
		rp := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
		rp.Partition, rp.Size = p.Partition, p.Bytes
		t := &out.Topics[len(out.Topics)-1]
		t.Partitions = append(t.Partitions, rp)
	}
	return out
}

// wantedInLogDirs tells which partitions are asked for: a null list of topics is all.
func wantedInLogDirs(req *kmsg.DescribeLogDirsRequest) func(LogDirPartition) bool {
	if req.Topics == nil {
		return func(LogDirPartition) bool { return true }
	}
	type id struct {
		topic     string
		partition int32
	}
	asked := map[id]bool{}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			asked[id{t.Topic, p}] = true
		}
	}
	return func(p LogDirPartition) bool { return asked[id{p.Topic, p.Partition}] }
}
