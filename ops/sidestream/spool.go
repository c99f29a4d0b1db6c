package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"sidestream/sdk/api"
	"sidestream/sidecar/spool"
)

func newSpool() *cobra.Command {
	return parent("spool", "Show what waits on this host to be written, and what was rejected",
		"Show what a sidecar keeps on its disk until the brokers have it, and what can never be written.",
		newSpoolStatus(), newSpoolShow(), newSpoolRejects())
}

func newSpoolStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show how much waits to be written, and why",
		Example: "  sidestream spool status",
		Args:    usage(noArgs),
	}
	address := sidecarFlag(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print the sidecar's answer")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := client(cmd, *address)
		if err != nil {
			return err
		}
		defer c.Close()
		st, err := c.Spool(cmd.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), st)
		}
		return printSpool(cmd.OutOrStdout(), st)
	}
	return cmd
}

func printSpool(w io.Writer, st api.SpoolStatus) error {
	line := "nothing waits to be written"
	if st.Pending > 0 {
		line = fmt.Sprintf("%s for %s to be written, the oldest for %s", waits(int(st.Pending)), plural(st.Partitions, "partition"),
			time.Duration(st.OldestSeconds*float64(time.Second)).Round(100*time.Millisecond))
	}
	line += fmt.Sprintf("; %d of %d bytes are used", st.Bytes, st.MaxBytes)
	if err := say(w, line); err != nil {
		return err
	}
	if st.RejectBytes > 0 {
		if err := say(w, fmt.Sprintf("rejected messages: %d bytes in %s (sidestream spool rejects)", st.RejectBytes, st.RejectFile)); err != nil {
			return err
		}
	}
	if len(st.Away) == 0 {
		return nil
	}
	if err := say(w, fmt.Sprintf("%s away:", plural(st.AwayPartitions, "partition"))); err != nil {
		return err
	}
	return table(w, "TOPIC\tPARTITION\tPENDING\tSINCE\tCAUSE", func(row func(...any)) {
		for _, a := range st.Away {
			row(a.Topic, a.Partition, a.Pending, a.Since.Local().Format(time.RFC3339), a.Cause)
		}
	})
}

func waits(n int) string {
	if n == 1 {
		return "1 message waits"
	}
	return fmt.Sprintf("%d messages wait", n)
}

func newSpoolShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show what became of a spooled message",
		Example: "  sidestream spool show 5f3a9c1b22d04e77-1a2b",
		Args:    arguments("ID"),
	}
	address := sidecarFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := client(cmd, *address)
		if err != nil {
			return err
		}
		defer c.Close()
		ev, err := c.Spooled(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		switch line := fmt.Sprintf("%s for %s/%d", ev.State, ev.Topic, ev.Partition); {
		case ev.State == api.SpoolWritten:
			return say(cmd.OutOrStdout(), fmt.Sprintf("%s at %s/%d/%d", ev.State, ev.Topic, ev.Partition, ev.Offset))
		case ev.Error != nil:
			return say(cmd.OutOrStdout(), line+": "+ev.Error.Message)
		default:
			return say(cmd.OutOrStdout(), line)
		}
	}
	return cmd
}

func newSpoolRejects() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rejects [FILE]",
		Short: "Show messages that could never be written",
		Long: `Show messages that were spooled and could never be written, of the file of the
sidecar on this host, or of FILE. With --records they are printed as records of
the batch API, which "produce --json" takes.`,
		Example: `  sidestream spool rejects
  sidestream spool rejects --topic orders --records | sidestream produce orders --json`,
		Args: arguments("[FILE]"),
	}
	address := sidecarFlag(cmd)
	topic := cmd.Flags().String("topic", "", "of this topic only")
	records := cmd.Flags().Bool("records", false, "print records of the batch API, one a line")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var name string
		if len(args) == 1 {
			name = args[0]
		} else {
			c, err := client(cmd, *address)
			if err != nil {
				return err
			}
			defer c.Close()
			st, err := c.Spool(cmd.Context())
			if err != nil {
				return err
			}
			name = st.RejectFile
		}
		file, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) && len(args) == 0 {
			return say(cmd.ErrOrStderr(), "no rejected messages")
		}
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // only read
		return printRejects(cmd.OutOrStdout(), file, *topic, *records)
	}
	return cmd
}

func printRejects(w io.Writer, in io.Reader, topic string, records bool) error {
	if records {
		return spool.ReadRejects(in, func(r spool.Rejected) error {
			if topic != "" && r.Topic != topic {
				return nil
			}
			line, err := recordLine(r)
			if err != nil {
				return err
			}
			return say(w, string(line))
		})
	}
	var read error
	err := table(w, "REJECTED\tID\tTOPIC\tPARTITION\tKEY\tVALUE\tERROR", func(row func(...any)) {
		read = spool.ReadRejects(in, func(r spool.Rejected) error {
			if topic != "" && r.Topic != topic {
				return nil
			}
			why := "-"
			if r.Error != nil {
				why = short(r.Error.Message)
			}
			row(r.Rejected.Local().Format(time.RFC3339), r.ID, r.Topic, r.Partition, glimpse(r.Key, r.Key64), glimpse(r.Value, r.Value64), why)
			return nil
		})
	})
	return errors.Join(err, read)
}

// recordLine is a rejected message as the batch API takes it, for any partition.
func recordLine(r spool.Rejected) ([]byte, error) {
	out := api.Record{Value64: r.Value64, Key: r.Key, Key64: r.Key64, Timestamp: &r.TS}
	for _, h := range r.Headers {
		out.HeaderList = append(out.HeaderList, api.HeaderPair(h))
	}
	if r.Value != nil {
		text, err := json.Marshal(*r.Value)
		if err != nil {
			return nil, err
		}
		out.Value = text
	}
	return json.Marshal(out)
}
