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
	for _, d := range s.backend.LogDirs() {
		resp.Dirs = append(resp.Dirs, describeLogDir(d, req))
	}
	return encode(c.header, resp), nil
}

func describeLogDir(d LogDir, req *kmsg.DescribeLogDirsRequest) kmsg.DescribeLogDirsResponseDir {
	out := kmsg.NewDescribeLogDirsResponseDir()
	out.Dir, out.TotalBytes, out.UsableBytes = d.Path, d.TotalBytes, d.UsableBytes
	if d.Err != nil {
		out.ErrorCode = codeKafkaStorageError
	}
	slices.SortFunc(d.Partitions, func(a, b LogDirPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	for _, p := range d.Partitions {
		if !logDirWanted(req, p) {
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

// logDirWanted: a null list of topics is all.
func logDirWanted(req *kmsg.DescribeLogDirsRequest, p LogDirPartition) bool {
	return req.Topics == nil || slices.ContainsFunc(req.Topics, func(t kmsg.DescribeLogDirsRequestTopic) bool {
		return t.Topic == p.Topic && slices.Contains(t.Partitions, p.Partition)
	})
}
