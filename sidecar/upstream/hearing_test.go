package upstream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// However an answer is cut into pieces, and whatever is between, what brokers say
// of produce requests is heard, in each version that has words, and nothing else.
func TestTheEarHearsProduceAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var heard, want []string
		e := ear{asked: map[int32]int16{}, heard: func(topic, uuid string, partition int32, err error) {
			heard = append(heard, fmt.Sprint(topic, uuid, partition, err))
		}}
		var stream []byte
		frame := func(id int32, body []byte) {
			stream = binary.BigEndian.AppendUint32(stream, uint32(len(body)+4))
			stream = binary.BigEndian.AppendUint32(stream, uint32(id))
			stream = append(stream, body...)
		}
		for id := range rapid.Int32Range(1, 6).Draw(t, "requests") {
			if rapid.Bool().Draw(t, "other") {
				e.wrote(requestOf(kmsg.Metadata.Int16(), 9, id))
				frame(id, rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "body"))
				continue
			}
			version := rapid.Int16Range(8, 13).Draw(t, "version")
			e.wrote(requestOf(kmsg.Produce.Int16(), version, id))
			resp := kmsg.NewPtrProduceResponse()
			resp.Version = version
			rt := kmsg.NewProduceResponseTopic()
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition = id
			var said error
			if rapid.Bool().Draw(t, "fails") {
				rp.ErrorCode, rp.ErrorMessage = kerr.KafkaStorageError.Code, new("not appended: full")
				said = errors.New("KAFKA_STORAGE_ERROR: full")
			}
			rt.Partitions = append(rt.Partitions, rp)
			id16 := [16]byte{1}
			if version < 13 {
				rt.Topic, id16 = "t", [16]byte{}
			} else {
				rt.TopicID = id16
			}
			resp.Topics = append(resp.Topics, rt)
			body := resp.AppendTo(nil)
			if resp.IsFlexible() {
				body = append([]byte{0}, body...)
			}
			frame(id, body)
			want = append(want, fmt.Sprint(rt.Topic, uuid(id16), id, said))
		}
		for len(stream) > 0 {
			n := rapid.IntRange(1, len(stream)).Draw(t, "piece")
			e.read(stream[:n])
			stream = stream[n:]
		}
		if fmt.Sprint(heard) != fmt.Sprint(want) {
			t.Fatalf("heard %v, want %v", heard, want)
		}
		if len(e.asked) > 5 {
			t.Fatal("what was answered is remembered")
		}
	})
}

func requestOf(key, version int16, id int32) []byte {
	b := binary.BigEndian.AppendUint32(nil, 12)
	b = binary.BigEndian.AppendUint16(b, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, uint32(id))
	return append(b, 0, 0, 0, 0)
}

func TestSaid(t *testing.T) {
	long := string(make([]byte, 2000))
	for words, want := range map[string]string{
		"":                      "KAFKA_STORAGE_ERROR: Disk error when trying to access log file on the disk.",
		"not appended: ":        "KAFKA_STORAGE_ERROR: Disk error when trying to access log file on the disk.",
		"not appended: full\n.": "KAFKA_STORAGE_ERROR: full .",
		"i/o error":             "KAFKA_STORAGE_ERROR: i/o error",
		long:                    "KAFKA_STORAGE_ERROR: Disk error when trying to access log file on the disk.",
	} {
		err := Said(kerr.KafkaStorageError.Code, &words)
		if err.Error() != want || !errors.Is(err, kerr.KafkaStorageError) {
			t.Errorf("%q is told as %q, want %q", words, err, want)
		}
	}
	if Said(0, new("x")) != nil {
		t.Error("no error is one")
	}
}
