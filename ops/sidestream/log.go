package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"sidestream/broker/commitlog"
	"sidestream/broker/disk"
	"sidestream/broker/record"
	"sidestream/broker/record/unpack"
)

// errDamaged: a segment was read as far as it goes.
var errDamaged = errors.New("damaged")

func newLog() *cobra.Command {
	return parent("log", "Look into log files", "Look into log files.", newLogDump())
}

func newLogDump() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump FILE...",
		Short: "Print the batches and records of segment files",
		Long: `Print what segment files (….log) hold: each batch with its offsets, CRC, codec
and producer, and with --records its records. A folder stands for all segments
in it. Files are only read, also those of a running broker.

A batch that unpacks to more than --max-unpacked bytes is printed without its
records: a small one may be made to unpack to gigabytes.

Where a file is damaged, the position and the reason are printed, and the exit
code is 1. The end of a segment that a broker is writing, or was writing when it
crashed, may be such a place: the broker cuts it off when it starts.`,
		Example: `  sidestream log dump data/agent/hello-0/00000000000000000000.log --records
  sidestream log dump data/agent/hello-0 --json | jq .`,
		Args: arguments("FILE..."),
	}
	o := dumpOptions{maxUnpacked: unpack.DefaultLimit}
	cmd.Flags().BoolVarP(&o.records, "records", "r", false, "print the records too")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print one JSON object a batch, a line each")
	cmd.Flags().Int64Var(&o.maxUnpacked, "max-unpacked", o.maxUnpacked, "with --records, bytes that a batch may unpack to, at least 1")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.maxUnpacked < 1 {
			return usageError{fmt.Errorf("--max-unpacked: got %d: use a number of bytes, such as %d", o.maxUnpacked, unpack.DefaultLimit)}
		}
		files, err := segmentFiles(args)
		if err != nil {
			return err
		}
		d := dumper{options: o, out: cmd.OutOrStdout(), fs: disk.OS}
		var errs []error
		for _, f := range files {
			if err := d.file(f); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f, err))
			}
		}
		return errors.Join(errs...)
	}
	return cmd
}

// segmentFiles replaces folders by the segments in them.
func segmentFiles(args []string) ([]string, error) {
	var files []string
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			if filepath.Ext(arg) != ".log" {
				return nil, usageError{fmt.Errorf("%s is no segment: name a file that ends in .log, or a partition's folder", arg)}
			}
			files = append(files, arg)
			continue
		}
		found, err := filepath.Glob(filepath.Join(arg, "*.log"))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, usageError{fmt.Errorf("%s holds no segment (….log): name the folder of a partition, such as %s", arg, filepath.Join(arg, "hello-0"))}
		}
		files = append(files, found...)
	}
	return files, nil
}

type dumpOptions struct {
	records, asJSON bool
	maxUnpacked     int64 // bytes of one batch
}

type dumper struct {
	options dumpOptions
	out     io.Writer
	fs      disk.FS
}

// batchView is one batch as --json prints it.
type batchView struct {
	File          string       `json:"file"`
	Position      int64        `json:"position"`
	Size          int          `json:"size"`
	BaseOffset    int64        `json:"base_offset"`
	LastOffset    int64        `json:"last_offset"`
	Count         int32        `json:"count"`
	LeaderEpoch   int32        `json:"leader_epoch"`
	CRC           string       `json:"crc"`
	CRCValid      bool         `json:"crc_valid"`
	Codec         string       `json:"codec"`
	Control       bool         `json:"control"`
	Transactional bool         `json:"transactional"`
	ProducerID    int64        `json:"producer_id"`
	ProducerEpoch int16        `json:"producer_epoch"`
	BaseSequence  int32        `json:"base_sequence"`
	FirstTime     int64        `json:"first_timestamp"`
	MaxTime       int64        `json:"max_timestamp"`
	Records       []recordView `json:"records,omitempty"`
	Oversized     string       `json:"oversized,omitempty"` // why the records are left out
	Error         string       `json:"error,omitempty"`
}

type recordView struct {
	Offset    int64             `json:"offset"`
	Timestamp int64             `json:"ts"`
	Key       *string           `json:"key,omitempty"`
	Key64     *string           `json:"key64,omitempty"`
	Value     *string           `json:"value"`
	Value64   *string           `json:"value64,omitempty"`
	Headers   []recordHeaderRow `json:"headers,omitempty"`
}

type recordHeaderRow struct {
	Name    string  `json:"name"` // when UTF-8
	Name64  *string `json:"name64,omitempty"`
	Value   *string `json:"value,omitempty"`
	Value64 *string `json:"value64,omitempty"`
}

// file dumps one segment as far as it can be read.
func (d dumper) file(path string) error {
	if !d.options.asJSON {
		if _, err := fmt.Fprintf(d.out, "%s\n", path); err != nil {
			return err
		}
	}
	batches, records := 0, int64(0)
	for entry, err := range commitlog.ReadSegment(d.fs, path) {
		if err != nil {
			return fmt.Errorf("%w after %d batches: %w", errDamaged, batches, err)
		}
		view := d.view(path, entry)
		if err := d.print(view); err != nil {
			return err
		}
		batches++
		records += int64(view.Count)
		if view.Error != "" {
			return fmt.Errorf("%w: batch at position %d, offset %d: %s", errDamaged, view.Position, view.BaseOffset, view.Error)
		}
	}
	if d.options.asJSON {
		return nil
	}
	_, err := fmt.Fprintf(d.out, "batches: %d, records: %d\n", batches, records)
	return err
}

func (d dumper) view(path string, e commitlog.Entry) batchView {
	h := e.Header
	crcError := record.CheckCRC(e.Raw, h)
	v := batchView{
		File: path, Position: e.Pos, Size: h.Size(), BaseOffset: h.BaseOffset, LastOffset: h.LastOffset(), Count: h.Count,
		LeaderEpoch: h.LeaderEpoch, CRC: fmt.Sprintf("%08x", h.CRC), CRCValid: crcError == nil, Codec: h.Codec().String(),
		Control: h.IsControl(), Transactional: h.IsTransactional(), ProducerID: h.ProducerID, ProducerEpoch: h.ProducerEpoch,
		BaseSequence: h.BaseSequence, FirstTime: h.FirstTimestamp, MaxTime: h.MaxTimestamp,
	}
	if crcError != nil {
		v.Error = crcError.Error()
		return v
	}
	if d.options.records {
		if err := d.records(&v, e); err != nil {
			v.Error = err.Error()
		}
	}
	return v
}

// recordSize is about what a record takes in memory beside its bytes: millions of
// empty ones fit into a small batch.
const recordSize = 200

func (d dumper) records(v *batchView, e commitlog.Entry) error {
	u := unpack.Unpacker{Limit: d.options.maxUnpacked}
	plain, err := u.Unpack(context.Background(), nil, e.Codec(), e.Raw[record.HeaderSize:])
	switch {
	case errors.Is(err, record.ErrTooLarge):
		v.Oversized = err.Error()
		return nil
	case err != nil:
		return fmt.Errorf("decompressing: %w", err)
	case e.Codec() != record.None && int64(len(plain))+recordSize*int64(e.Count) > d.options.maxUnpacked:
		v.Oversized = fmt.Sprintf("%d records in %d bytes", e.Count, len(plain))
		return nil
	}
	for r, err := range record.Records(plain, e.Header) {
		if err != nil {
			return err
		}
		row := recordView{Offset: r.Offset, Timestamp: r.Timestamp}
		row.Key, row.Key64 = textOr64(r.Key)
		row.Value, row.Value64 = textOr64(r.Value)
		for _, h := range r.Headers {
			header := recordHeaderRow{Name: h.Key}
			if !utf8.ValidString(h.Key) {
				header.Name = ""
				_, header.Name64 = textOr64([]byte(h.Key))
			}
			header.Value, header.Value64 = textOr64(h.Value)
			row.Headers = append(row.Headers, header)
		}
		v.Records = append(v.Records, row)
	}
	return nil
}

// textOr64 is the pair of fields that bytes are shown in, as in the HTTP API.
func textOr64(b []byte) (text, base *string) {
	switch {
	case b == nil:
		return nil, nil
	case utf8.Valid(b):
		return new(string(b)), nil
	}
	return nil, new(base64.StdEncoding.EncodeToString(b))
}

func (d dumper) print(v batchView) error {
	if d.options.asJSON {
		line, err := json.Marshal(v)
		if err != nil {
			return err
		}
		_, err = d.out.Write(append(line, '\n'))
		return err
	}
	kind := ""
	if v.Control {
		kind += " control"
	}
	if v.Transactional {
		kind += " transactional"
	}
	crc := "ok"
	if !v.CRCValid {
		crc = "WRONG"
	}
	producer := "none"
	if v.ProducerID >= 0 {
		producer = fmt.Sprintf("%d epoch %d sequence %d", v.ProducerID, v.ProducerEpoch, v.BaseSequence)
	}
	if _, err := fmt.Fprintf(d.out, "at %-10d offsets %d to %d, %d records, %d bytes, epoch %d, codec %s, crc %s %s, producer %s, time %s%s\n",
		v.Position, v.BaseOffset, v.LastOffset, v.Count, v.Size, v.LeaderEpoch, v.Codec, v.CRC, crc, producer, timeText(v.MaxTime), kind); err != nil {
		return err
	}
	if v.Oversized != "" {
		if _, err := fmt.Fprintf(d.out, "    records left out: %s (--max-unpacked)\n", v.Oversized); err != nil {
			return err
		}
	}
	for _, r := range v.Records {
		if _, err := fmt.Fprintf(d.out, "    %d  %s  key %s  value %s", r.Offset, timeText(r.Timestamp), bytesText(r.Key, r.Key64), bytesText(r.Value, r.Value64)); err != nil {
			return err
		}
		for _, h := range r.Headers {
			name := h.Name
			if h.Name64 != nil {
				name = bytesText(nil, h.Name64)
			}
			if _, err := fmt.Fprintf(d.out, "  %s=%s", name, bytesText(h.Value, h.Value64)); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(d.out); err != nil {
			return err
		}
	}
	return nil
}

// timeText shows a timestamp; a batch of which compaction has removed all records has none.
func timeText(millis int64) string {
	if millis < 0 {
		return "none"
	}
	return time.UnixMilli(millis).UTC().Format("2006-01-02T15:04:05.000Z")
}

func bytesText(text, base *string) string {
	switch {
	case text != nil:
		return strconv.Quote(*text)
	case base != nil:
		return "base64:" + *base
	}
	return "null"
}
