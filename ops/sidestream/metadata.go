package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const rebuildTimeout = 2 * time.Minute

func newMetadata() *cobra.Command {
	return parent("metadata", "Repair what the coordination store knows of the cluster",
		"Repair what the coordination store knows of the cluster.", newMetadataRebuild())
}

func newMetadataRebuild() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rebuild [CLUSTER-ID]",
		Short: "Write topics and leaders again from what the brokers hold",
		Long: `Write the keys of topics, partitions and leaders again from the partition
folders of the named agents, after the coordination store was wiped or restored
from an old copy. Nothing is deleted, and keys that are there are kept.

The cluster-id says which cluster to keep; every agent tells its own under
/status and in its alarm. Name all agents of the cluster: a partition that no
named agent holds stays unknown.`,
		Example: `  curl -s 127.0.0.1:4101/status        # shows the cluster_id
  sidestream metadata rebuild --cluster-id 6f1c… --agent host1:4101 --agent host2:4101`,
		Args: arguments("[CLUSTER-ID]"),
	}
	id := cmd.Flags().String("cluster-id", "", "id of the cluster to keep")
	agents := cmd.Flags().StringSlice("agent", []string{"127.0.0.1:4101"}, "host:port of an agent's HTTP; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			if *id != "" && *id != args[0] {
				return usageError{fmt.Errorf("two cluster-ids are given, %s and %s: name one", *id, args[0])}
			}
			*id = args[0]
		}
		if *id == "" {
			return usageError{errors.New("name the cluster to keep with --cluster-id: an agent's /status shows it as cluster_id")}
		}
		var errs []error
		for _, agent := range *agents {
			written, err := rebuild(cmd.Context(), agent, *id)
			if err != nil {
				errs = append(errs, fmt.Errorf("agent %s: %w", agent, err))
				continue
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "agent %s wrote:\n%s\n", agent, written); err != nil {
				return err
			}
		}
		return errors.Join(errs...)
	}
	return cmd
}

// rebuild asks one agent and returns what it wrote, as indented JSON.
func rebuild(ctx context.Context, agent, clusterID string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, rebuildTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]string{"cluster_id": clusterID})
	if err != nil {
		return "", err
	}
	if !strings.Contains(agent, "://") {
		agent = "http://" + agent
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(agent, "/")+"/metadata/rebuild", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }() // it was read to its end, or has failed
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %s: %s", resp.Status, strings.TrimSpace(string(answer)))
	}
	var written map[string]any
	if err := json.Unmarshal(answer, &written); err != nil {
		return "", fmt.Errorf("the answer is no JSON object (is an agent listening there?): %w", err)
	}
	for name, value := range written {
		if value == nil {
			written[name] = []string{} // an empty list of an agent
		}
	}
	indented, err := json.MarshalIndent(written, "", "  ")
	return string(indented), err
}
